//! Tests admission through a real API server: schema, CEL rules and the webhook, with the permissions, Service and
//! configurations of the chart.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that panics is a test that fails"
)]

mod api;
mod binding;
mod defaults;
mod facts;
mod load;
mod place;
mod release;
mod replicas;
mod rotation;
#[path = "../../../../crates/webhook/tests/rows/mod.rs"]
mod rows;
mod schema;
mod table;
