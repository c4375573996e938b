//! LoginSet: login pods.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::nodeset::Sssd;
use crate::overrides::{PodTemplate, RawObject, ServiceOverride};
use crate::references::{LocalObjectReference, SecretKeySelector};
use crate::scalars::IntOrString;
use crate::schema;
use crate::status::{Condition, Endpoint};

/// Pods that users log in to with SSH to submit jobs.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "LoginSet",
    plural = "loginsets",
    shortname = "loginsets",
    shortname = "lss",
    shortname = "sackd",
    namespaced,
    status = "LoginSetStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "Pods that users log in to with SSH to submit jobs.",
    crates(kube_core = "::kube_core"),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "REPLICAS", "type": "integer", "jsonPath": ".status.replicas"}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.sssdConfRef) || (has(self.sssd) && !self.sssd.enabled)",
     "message": "sssdConfRef must be set, or sssd.enabled must be false",
     "fieldPath": ".sssdConfRef", "reason": "FieldValueRequired"},
]))]
pub struct LoginSetSpec {
    /// Controller of the Slurm cluster of the login pods. Immutable.
    pub controller_ref: LocalObjectReference,

    /// Number of login pods.
    #[serde(default = "defaults::one")]
    pub replicas: i32,

    /// Overrides of the login container; fields of a core/v1 Container. `image` has no default: set it here or in
    /// `template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<RawObject>,

    /// Overrides of the init container that copies keys and configuration; fields of a core/v1 Container. `image` has no
    /// default; the image of `login` can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initconf: Option<RawObject>,

    /// Overrides of the login pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,

    /// Public keys that can log in as root, one per line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_ssh_authorized_keys: Option<String>,

    /// Lines to add to `sshd_config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_sshd_config: Option<String>,

    /// Secret key that holds sssd.conf. Required unless `sssd.enabled` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sssd_conf_ref: Option<SecretKeySelector>,

    /// Whether to get users from SSSD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sssd: Option<Sssd>,

    /// Update strategy of the Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<DeploymentStrategy>,

    /// Overrides of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceOverride>,
}

impl Default for LoginSetSpec {
    fn default() -> Self {
        Self {
            controller_ref: LocalObjectReference::default(),
            replicas: defaults::one(),
            login: None,
            initconf: None,
            template: None,
            root_ssh_authorized_keys: None,
            extra_sshd_config: None,
            sssd_conf_ref: None,
            sssd: None,
            strategy: None,
            service: None,
        }
    }
}

/// Update strategy of a Deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentStrategy {
    /// `RollingUpdate` or `Recreate`. Defaults to `RollingUpdate`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Parameters of `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdateDeployment>,
}

/// Parameters of a Deployment's rolling update.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdateDeployment {
    /// Maximum number of pods above the desired number: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// Maximum number of unavailable pods: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// Observed state of a LoginSet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoginSetStatus {
    /// Generation of the object that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions: Ready, Progressing, Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Addresses for SSH.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub endpoints: Vec<Endpoint>,
    /// Number of login pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Number of ready login pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Label selector of the login pods, for autoscalers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selector: String,
}
