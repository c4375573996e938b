//! A typed, version-neutral client for Slurm's REST API.
//!
//! It speaks v0.0.41 to v0.0.45, whichever is the newest that the server offers, and reads answers tolerantly:
//! flags, states and fields of later releases never fail a list. Of long lists only the facts that are used are
//! kept. Every call has a deadline; reads are repeated, writes are not.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use jiff::{SignedDuration, Timestamp};
//! use slurm_rest::node::NodeUpdate;
//! use slurm_rest::token::Signer;
//! use slurm_rest::{Client, Credentials, Hostlist, Options};
//!
//! # async fn drain() -> Result<(), Box<dyn std::error::Error>> {
//! let key = std::fs::read("/etc/slurm/jwt.key")?;
//! let signer = Signer::new("slurm", key.into(), SignedDuration::from_mins(10), Arc::new(Timestamp::now));
//! let credentials = Credentials::Signer(Arc::new(signer));
//! let client = Client::new(Options::new("http://slurmrestd:6820".parse()?, credentials))?;
//!
//! let list = client.nodes(None).await?.changed().unwrap_or_default();
//! let idle = list.items.iter().filter(|node| !node.state.is_busy()).map(|node| &*node.name);
//! client.update_nodes(&Hostlist::from_names(idle)?, &NodeUpdate::drain("maintenance")).await?;
//! # Ok(())
//! # }
//! ```
#![warn(missing_docs)]

pub mod accounting;
pub mod control;
pub mod endpoint;
pub mod job;
pub mod node;
pub mod partition;
pub mod reservation;
pub mod token;

mod client;
mod error;
#[doc(hidden)]
pub mod fields;
mod response;
mod since;
mod value;
mod version;

pub use client::{Client, Credentials, Deadlines, OnCall, Options};
pub use error::{Complaint, Error, Peer};
pub use response::Listing;
pub use since::Fetched;
pub use slurm_conf::hostlist::Hostlist;
pub use value::{NoVal, Words};
pub use version::{Served, Version};
