//! Parts that the child objects of several kinds have in common. Pure: values in, JSON out.
//!
//! Objects are built as JSON, because what users write over them is JSON too and must reach the API server exactly as
//! written, fields that our types do not know included.

pub mod checksum;
pub mod container;
pub mod metadata;
pub mod pod;
pub mod service;
pub mod service_monitor;
pub mod volume;
