//! Parts that the child objects of several kinds share. Pure: values in, JSON out.
//!
//! Objects are built as JSON because the user's overrides are JSON too and must reach the API server exactly as
//! written, including fields that our types do not know.

pub mod checksum;
pub mod container;
pub mod mariadb;
pub mod metadata;
pub mod pod;
pub mod service;
pub mod service_monitor;
pub mod volume;
