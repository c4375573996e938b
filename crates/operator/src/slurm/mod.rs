//! Connections to Slurm, its cached state, and the operations on it.

pub mod awaited;
pub mod connection;
pub mod control;
pub mod facts;
pub mod jobs;
pub mod meter;
pub mod mirror;
pub mod mirrors;
mod registrations;
