//! A thin layer over kube: one watch per kind feeding indexed caches, a trigger queue with back-off and deadlines,
//! leader election, health, metrics, events, and writes that cost nothing when nothing changed.
//!
//! Nothing here knows what a NodeSet is. The controllers say what to watch, whom a change concerns and what to do;
//! this crate makes sure that it happens once at a time, soon, again after a failure, and only on the leader.

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
mod ownership;
pub mod queue;
pub mod run;
pub mod watch;

pub use cache::{Cache, Change};
pub use clock::Clock;
pub use key::Key;
pub use queue::Queue;
pub use run::{ReconcileError, Requeue, Retry};
