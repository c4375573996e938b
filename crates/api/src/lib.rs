//! The API: types, CRDs, defaults, validation rules and well-known names.
//!
//! Six kinds of `slinky.slurm.net/v1beta1`: [`Controller`], [`NodeSet`], [`LoginSet`], [`Accounting`], [`RestApi`], [`Token`].
//! Our own kinds of `keelson.dev/v1alpha1`: [`SlurmCluster`]. A field with a default
//! in the CRD is a plain value, every other optional field is an `Option`. Overrides of pods, containers and Services
//! stay raw JSON ([`overrides::RawObject`]). This crate must not make API calls, read the clock or start tasks.

#![warn(missing_docs)]
#![expect(
    clippy::doc_markdown,
    reason = "field docs become CRD descriptions, where Kubernetes kinds read as plain words"
)]

pub mod accounting;
pub mod assemble;
pub mod auth;
pub mod controller;
mod crd;
pub mod defaults;
pub mod loginset;
pub mod merge;
pub mod metrics;
pub mod names;
pub mod nodeset;
pub mod overrides;
pub mod references;
pub mod restapi;
pub mod scalars;
mod schema;
pub mod slurmcluster;
pub mod status;
pub mod token;
pub mod validate;
pub mod well_known;
pub mod wording;

pub use accounting::{Accounting, AccountingSpec, AccountingStatus};
pub use controller::{Controller, ControllerSpec, ControllerStatus};
pub use crd::{CrdError, crds, crds_yaml};
pub use loginset::{LoginSet, LoginSetSpec, LoginSetStatus};
pub use nodeset::{NodeSet, NodeSetSpec, NodeSetStatus};
pub use restapi::{RestApi, RestApiSpec, RestApiStatus};
pub use slurmcluster::{SlurmCluster, SlurmClusterSpec, SlurmClusterStatus};
pub use token::{Token, TokenSpec, TokenStatus};
