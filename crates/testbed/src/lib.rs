//! A real Kubernetes and a real Slurm on one machine.

pub mod binaries;
pub mod cache;
pub mod cert_manager;
mod cgroups;
pub mod cluster;
pub mod command;
pub mod host;
pub mod image;
pub mod init;
pub mod layout;
mod manifests;
pub mod namespaces;
mod pki;
pub mod progress;
pub mod prometheus_operator;

pub use cluster::Cluster;

/// The name of a cluster when none is given.
pub const DEFAULT_NAME: &str = "keelson";
