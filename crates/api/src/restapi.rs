//! RestApi: slurmrestd.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::overrides::{PodTemplate, RawObject, ServiceOverride};
use crate::references::LocalObjectReference;
use crate::schema;
use crate::status::{Condition, Endpoint};

/// slurmrestd: Slurm's REST API, for clients and for the operator itself.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "RestApi",
    plural = "restapis",
    shortname = "slurmrestd",
    namespaced,
    status = "RestApiStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "slurmrestd: Slurm's REST API, for clients and for the operator itself.",
    crates(kube_core = "::kube_core"),
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
pub struct RestApiSpec {
    /// Controller of the Slurm cluster to serve.
    pub controller_ref: LocalObjectReference,

    /// Number of pods.
    #[serde(default = "defaults::one")]
    pub replicas: i32,

    /// Overrides of the slurmrestd container; fields of a core/v1 Container. `image` has no default: set it here or in
    /// `template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurmrestd: Option<RawObject>,

    /// Overrides of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,

    /// Overrides of the Service `<name>-restapi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceOverride>,
}

impl Default for RestApiSpec {
    fn default() -> Self {
        Self {
            controller_ref: LocalObjectReference::default(),
            replicas: defaults::one(),
            slurmrestd: None,
            template: None,
            service: None,
        }
    }
}

/// Observed state of a RestApi.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestApiStatus {
    /// Generation of the object that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions: Ready, Progressing, Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Addresses of slurmrestd.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub endpoints: Vec<Endpoint>,
    /// Number of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Number of ready pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
}
