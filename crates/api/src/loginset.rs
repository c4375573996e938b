//! LoginSet: pods that users log in to.

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

/// Pods that users log in to by SSH and submit jobs from.
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
    doc = "Pods that users log in to by SSH and submit jobs from.",
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
    /// Controller whose cluster the login pods belong to. Cannot be changed.
    pub controller_ref: LocalObjectReference,

    /// How many login pods.
    #[serde(default = "defaults::one")]
    pub replicas: i32,

    /// Changes to the login container; fields of a core/v1 Container. Its `image` must be written, here or in
    /// `template`: there is no default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<RawObject>,

    /// Changes to the init container that puts keys and configuration in place; fields of a core/v1 Container. Its `image`
    /// must be written, too; that of `login` will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initconf: Option<RawObject>,

    /// Changes to the login pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,

    /// Public keys that may log in as root, one a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_ssh_authorized_keys: Option<String>,

    /// Lines added to `sshd_config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_sshd_config: Option<String>,

    /// Secret key that holds sssd.conf. Required unless `sssd.enabled` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sssd_conf_ref: Option<SecretKeySelector>,

    /// Whether users come from SSSD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sssd: Option<Sssd>,

    /// How the Deployment replaces its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<DeploymentStrategy>,

    /// Changes to the Service.
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

/// How a Deployment replaces its pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentStrategy {
    /// `RollingUpdate` or `Recreate`; `RollingUpdate` when absent.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// For `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdateDeployment>,
}

/// Bounds of a Deployment's rolling update.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdateDeployment {
    /// How many pods may be there on top of the desired ones: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// How many pods may be unavailable: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// What was last seen of a LoginSet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoginSetStatus {
    /// Generation that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Progressing, Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Where to log in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub endpoints: Vec<Endpoint>,
    /// Login pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Login pods that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Label selector of the login pods, for autoscalers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selector: String,
}
