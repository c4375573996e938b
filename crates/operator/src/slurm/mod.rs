//! What the controllers know of Slurm and may ask of it.

pub mod connection;
pub mod control;
pub mod facts;
pub mod jobs;
pub mod meter;
pub mod mirror;
pub mod mirrors;
mod registrations;
