//! A typed client for slurmrestd, covering the calls that the operator needs: nodes, jobs, partitions, reservations,
//! reconfiguration, and the clusters in the accounting database.
//!
//! The client negotiates the newest API version that the server supports, from v0.0.41 to v0.0.45. It decodes responses
//! tolerantly: unknown flags, states and fields of later releases never fail a list. Lists keep only the fields that
//! callers use. Every call has a deadline; reads are retried, writes are not.
//!
//! This crate must not make policy decisions: it does not know about Kubernetes, does not decide which node to drain or
//! which job to cancel, and does not write to the accounting database. It must not log, or put into errors, keys, tokens
//! or text from servers other than Slurm. Do not add a call before a caller needs it.
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
mod verdict;
mod version;

pub use client::{Client, Credentials, Deadlines, OnCall, Options};
pub use error::{Complaint, Error, Peer};
pub use response::Listing;
pub use since::Fetched;
pub use slurm_conf::hostlist::Hostlist;
pub use value::{NoVal, Words};
pub use version::{Served, Version};
