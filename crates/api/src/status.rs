//! Parts of `status` that multiple kinds share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A condition; see [`crate::well_known::condition`] for the types in use.
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// An address that users or clients connect to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint {
    /// Name of the service: `slurmctld`, `slurmdbd`, `slurmrestd`, `ssh`, `metrics`.
    pub name: String,
    /// `host:port`, or a URL if the protocol has one.
    pub address: String,
}
