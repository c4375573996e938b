//! Parts of `status` that several kinds share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A condition; see [`crate::well_known::condition`] for the types in use.
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// An address that a person or a program connects to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint {
    /// What answers there: `slurmctld`, `slurmdbd`, `slurmrestd`, `ssh`, `metrics`.
    pub name: String,
    /// `host:port`, or a URL where the protocol has one.
    pub address: String,
}
