//! Slurm configuration files as text: writers, a parser for the text that users add, host lists, and the effects of
//! configuration changes.
//!
//! The operator, the webhook and `init` share it, so each rule about these files has one place. It must stay pure: no
//! client, no clock, no file access. It must not depend on Kubernetes, because `init` runs in the Slurm images.
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use slurm_conf::catalogue::File;
//! use slurm_conf::change::{Class, change_class};
//! use slurm_conf::slurm_conf::{ControllerHost, SlurmConf, render};
//! use slurm_conf::syntax::parse;
//!
//! let write = |extra_conf: &str| {
//!     render(&SlurmConf {
//!         cluster_name: "c1".into(),
//!         hosts: vec![ControllerHost { name: "ctl".into(), address: None }],
//!         slurmctld_port: 6817,
//!         slurmd_port: 6818,
//!         extra_conf: extra_conf.into(),
//!         ..SlurmConf::default()
//!     })
//! };
//! let before = write("KillWait=30")?;
//! let after = write("KillWait=60\nSlurmUser=root")?;
//! assert_eq!(after.findings[0].to_string(), "line 2: SlurmUser is ignored because the operator requires SlurmUser=slurm");
//!
//! let read = |text: &str| parse(File::Slurm, text, &BTreeMap::new()).unwrap();
//! let changes = change_class(File::Slurm, &read(&before.text), &read(&after.text));
//! assert_eq!(changes.class(), Class::Reconfigure);
//! # Ok::<(), slurm_conf::merge::Error>(())
//! ```
#![warn(missing_docs)]

pub mod catalogue;
pub mod cgroup_conf;
pub mod change;
pub mod container;
pub mod fingerprint;
pub mod hostlist;
pub mod merge;
pub mod node_conf;
mod parameters;
pub mod partition_groups;
pub mod precheck;
pub mod sizing;
pub mod slurm_conf;
pub mod slurmdbd_conf;
pub mod sshd_config;
pub mod sssd_conf;
pub mod syntax;
pub mod topology;
pub mod value;
pub mod vocabulary;
