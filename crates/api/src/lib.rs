//! The `slinky.slurm.net/v1beta1` API: types, CRDs, defaults, rules and well-known names.
//!
//! Six kinds: [`Controller`], [`NodeSet`], [`LoginSet`], [`Accounting`], [`RestApi`], [`Token`]. Two rules hold for every
//! field: one that has a default in the CRD is a plain value here, every other optional one is an `Option`; and what users
//! write over pods, containers and Services stays raw JSON ([`overrides::RawObject`]).
//!
//! Nothing here talks to a server, reads a clock or starts a task.

#![warn(missing_docs)]
#![expect(
    clippy::doc_markdown,
    reason = "field docs become CRD descriptions, where Kubernetes kinds read as plain words"
)]

pub mod accounting;
pub mod assemble;
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
pub mod status;
pub mod token;
pub mod validate;
pub mod well_known;

pub use accounting::{Accounting, AccountingSpec, AccountingStatus};
pub use controller::{Controller, ControllerSpec, ControllerStatus};
pub use crd::{CrdError, crds, crds_yaml};
pub use loginset::{LoginSet, LoginSetSpec, LoginSetStatus};
pub use nodeset::{NodeSet, NodeSetSpec, NodeSetStatus};
pub use restapi::{RestApi, RestApiSpec, RestApiStatus};
pub use token::{Token, TokenSpec, TokenStatus};
