//! The controllers: from custom resources to running Slurm daemons.
//!
//! A folder per kind, each with the same steps: observe, validate, build or plan, apply or act, status.

pub mod caches;
mod children;
mod conditions;
mod context;
mod controller;
mod keys;
mod problem;
mod restapi;
mod secrets;
mod triggers;
mod written;
