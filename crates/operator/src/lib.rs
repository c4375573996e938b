//! The controllers, which turn custom resources into running Slurm daemons.
//!
//! Each kind has a folder with the same steps: observe, validate, build or plan, apply or act, status. A module either
//! decides or acts: a module that decides must not call Kubernetes or Slurm, and takes the time as an argument.

mod accounting;
mod anchor;
mod apply_child;
mod cached_fields;
mod caches;
mod children;
mod conditions;
mod context;
mod controller;
mod domain;
mod error;
mod fingerprints;
mod hold;
mod keys;
mod loginset;
mod nodeset;
mod orphaning;
mod pod_diagnosis;
mod pod_template;
mod port;
mod problem;
mod restapi;
mod run;
mod secrets;
mod slurm;
mod slurmcluster;
mod teardown;
mod token;
mod triggers;
mod watches;
mod workload;

use keelson_api::wording;

pub use context::Settings;
pub use domain::cluster_domain;
pub use run::{Error, NAME, Options, Workers, run};
