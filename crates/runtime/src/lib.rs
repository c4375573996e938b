//! The controller runtime, a thin layer over kube: one watch per kind that fills an indexed cache, a work queue with
//! backoff and deadlines, leader election, health, metrics, events, and writes that are skipped when nothing changed.
//!
//! This crate must not know any custom resource. Controllers define what to watch, which objects a change affects and how
//! to reconcile them; the runtime runs each object's reconcile one at a time, retries failures, and runs only on the
//! leader.

pub mod apply;
pub mod cache;
pub mod client;
pub mod clock;
pub mod contents;
mod event_series;
pub mod events;
mod field_managers;
pub mod health;
pub mod http;
pub mod key;
pub mod leader;
pub mod metrics;
pub mod optional_kind;
pub mod ownership;
pub mod queue;
pub mod run;
pub mod watch;

pub use cache::{Cache, Change};
pub use clock::Clock;
pub use key::Key;
pub use queue::Queue;
pub use run::{ReconcileError, Requeue};
