//! The user's overrides of the pods, containers and Services that the operator builds.
//!
//! Kept as raw JSON: an explicit value (`false`, `0`, `""`, `[]`, `null`) differs from an absent one, and fields of newer
//! Kubernetes versions must be kept. [`crate::merge`] merges them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A JSON object kept exactly as written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawObject(pub Map<String, Value>);

impl RawObject {
    /// The value at a JSON pointer such as `/securityContext/privileged`.
    pub fn pointer(&self, pointer: &str) -> Option<&Value> {
        let (first, rest) = match pointer.strip_prefix('/')?.split_once('/') {
            Some((first, rest)) => (first, Some(rest)),
            None => (pointer.strip_prefix('/')?, None),
        };
        let value = self.0.get(first)?;
        match rest {
            Some(rest) => value.pointer(&format!("/{rest}")),
            None => Some(value),
        }
    }

    /// The value of a top-level key, if it is a string.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(Value::as_str)
    }

    /// Whether this is the spec of a Service of type ExternalName.
    pub fn is_external_name(&self) -> bool {
        self.text("type") == Some("ExternalName")
    }
}

impl From<Map<String, Value>> for RawObject {
    fn from(map: Map<String, Value>) -> Self {
        Self(map)
    }
}

impl JsonSchema for RawObject {
    fn schema_name() -> Cow<'static, str> {
        "RawObject".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        crate::schema::raw_object()
    }
}

/// Labels and annotations to add to a child object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Metadata {
    /// Labels to add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations to add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Overrides of the pods that the operator builds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PodTemplate {
    /// Labels and annotations of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Fields of a core/v1 PodSpec, merged into the operator's with the strategic merge rules of the pod schema. Containers
    /// are added to the operator's; a container with the name of one of the operator's is merged into it. `null` removes a
    /// field of the operator's. So does `$patch: delete`, which tools that drop `null` keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<RawObject>,
}

/// Overrides of the Service that the operator builds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceOverride {
    /// Labels and annotations of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Fields of a core/v1 ServiceSpec. `externalIPs` is not used (CVE-2020-8554).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<RawObject>,
    /// Port of the Service. Defaults to the daemon's port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// Node port, for Services of type `NodePort` or `LoadBalancer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i32>,
}
