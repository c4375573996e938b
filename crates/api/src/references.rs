//! References to other objects in the same namespace. This API has no cross-namespace references.

use k8s_openapi::api::core::v1 as core;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reference to an object in the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LocalObjectReference {
    /// Name of the object.
    #[serde(default)]
    pub name: String,
}

impl From<&str> for LocalObjectReference {
    fn from(name: &str) -> Self {
        Self {
            name: name.to_owned(),
        }
    }
}

/// Reference to a key of a Secret in the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct SecretKeySelector {
    /// Name of the Secret.
    #[serde(default)]
    pub name: String,
    /// Key in the Secret.
    pub key: String,
    /// Whether the Secret or its key may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

impl From<SecretKeySelector> for core::SecretKeySelector {
    fn from(SecretKeySelector { name, key, optional }: SecretKeySelector) -> Self {
        Self { name, key, optional }
    }
}

/// Reference to a key of a ConfigMap in the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ConfigMapKeySelector {
    /// Name of the ConfigMap.
    #[serde(default)]
    pub name: String,
    /// Key in the ConfigMap.
    pub key: String,
    /// Whether the ConfigMap or its key may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

impl From<ConfigMapKeySelector> for core::ConfigMapKeySelector {
    fn from(ConfigMapKeySelector { name, key, optional }: ConfigMapKeySelector) -> Self {
        Self { name, key, optional }
    }
}

/// Address of a daemon that runs outside this Kubernetes cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ExternalConfig {
    /// Host name or IP address.
    pub host: String,
    /// Port.
    pub port: i32,
}

/// The JWT key in use if both the current and the deprecated field may be set.
pub(crate) fn effective_jwt_key<'a>(
    current: Option<&'a SecretKeySelector>,
    deprecated: Option<&'a SecretKeySelector>,
) -> Option<&'a SecretKeySelector> {
    current.or(deprecated)
}
