//! The controllers: from custom resources to running Slurm daemons.
//!
//! A folder per kind, each with the same steps: observe, validate, build or plan, apply or act, status.

mod accounting;
mod anchor;
mod caches;
mod children;
mod conditions;
mod context;
mod controller;
mod domain;
mod fingerprints;
mod keys;
mod loginset;
mod nodeset;
mod pod_template;
mod pod_trouble;
mod problem;
mod prune;
mod restapi;
mod run;
mod secrets;
mod slurm;
mod teardown;
mod token;
mod triggers;
mod watches;
mod workload;
mod written;

pub use context::Settings;
pub use domain::cluster_domain;
pub use run::{Error, NAME, Options, Workers, run};
