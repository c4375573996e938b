//! The controllers: from custom resources to running Slurm daemons.
//!
//! A folder per kind, each with the same steps: observe, validate, build or plan, apply or act, status.

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
mod fingerprints;
mod keys;
mod loginset;
mod nodeset;
mod pod_diagnosis;
mod pod_template;
mod problem;
mod restapi;
mod run;
mod secrets;
mod slurm;
mod teardown;
mod token;
mod triggers;
mod watches;
mod workload;

pub use context::Settings;
pub use domain::cluster_domain;
pub use run::{Error, NAME, Options, Workers, run};
