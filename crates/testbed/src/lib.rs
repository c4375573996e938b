//! A real Kubernetes and a real Slurm on one machine, for development and tests, and the builder of the images.
//!
//! Clusters run in unnamed namespaces, which the kernel removes with their processes. Crates that run in users'
//! clusters must not depend on this crate.

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

/// The default name of a cluster.
pub const DEFAULT_NAME: &str = "keelson";
