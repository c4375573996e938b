//! A typed, version-neutral client for Slurm's REST API.
//!
//! It speaks v0.0.41 to v0.0.45, whichever is the newest that the server offers, and reads answers tolerantly:
//! flags, states and fields of later releases never fail a list. Of long lists only the facts that are used are
//! kept. Every call has a deadline; reads are repeated, writes are not.
#![warn(missing_docs)]

pub mod accounting;
pub mod call;
pub mod control;
pub mod job;
pub mod node;
pub mod partition;
pub mod reservation;
pub mod token;

mod answer;
mod client;
mod error;
#[doc(hidden)]
pub mod fields;
mod since;
mod value;
mod version;

pub use answer::Listing;
pub use client::{Client, Credentials, Deadlines, OnCall, Options};
pub use error::{Complaint, Error, Peer};
pub use since::Fetched;
pub use slurm_conf::hostlist::Hostlist;
pub use value::{NoVal, Words};
pub use version::{Served, Version};
