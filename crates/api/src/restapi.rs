//! RestApi: slurmrestd.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::overrides::{PodTemplate, RawObject, ServiceOverride};
use crate::references::LocalObjectReference;
use crate::schema;
use crate::status::{Condition, Endpoint};

/// slurmrestd: Slurm's REST API, for programs and for the operator itself.
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
    doc = "slurmrestd: Slurm's REST API, for programs and for the operator itself.",
    crates(kube_core = "::kube_core"),
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
pub struct RestApiSpec {
    /// Controller whose cluster is served.
    pub controller_ref: LocalObjectReference,

    /// How many pods.
    #[serde(default = "defaults::one")]
    pub replicas: i32,

    /// Changes to the slurmrestd container; fields of a core/v1 Container. Its `image` must be written, here or in
    /// `template`: there is no default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurmrestd: Option<RawObject>,

    /// Changes to the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,

    /// Changes to the Service `<name>-restapi`.
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

/// What was last seen of a RestApi.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestApiStatus {
    /// Generation that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Progressing, Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Where slurmrestd is reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub endpoints: Vec<Endpoint>,
    /// Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Pods that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
}
