//! Slurm's configuration as text: writers, a parser for what users add, host lists, and what a change of
//! the configuration needs. Pure: no client, no clock, no files.
#![warn(missing_docs)]

pub mod catalogue;
pub mod cgroup_conf;
pub mod change;
pub mod gres_conf;
pub mod hostlist;
pub mod merge;
pub mod node_conf;
pub mod sizing;
pub mod slurm_conf;
pub mod slurmdbd_conf;
pub mod sshd_config;
pub mod syntax;
pub mod topology;
pub mod value;
