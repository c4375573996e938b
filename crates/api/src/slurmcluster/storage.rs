//! Volumes and files that login pods and workers share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::references::ConfigMapKeySelector;

/// Volumes that login pods and workers share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Home directories, mounted at `/home`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<Volume>,
    /// Other volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedVolume>,
}

/// A volume. Set exactly one of `claim`, `nfs` and `hostPath`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// PersistentVolumeClaim. It must be ReadWriteMany, or ReadOnlyMany if `readOnly` is true, unless there is only one pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Directory of an NFS server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nfs: Option<NfsVolume>,
    /// Directory of the Kubernetes nodes, which must be the same file system on each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// Directory in the volume to mount instead of its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// Whether pods can only read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// Directory of an NFS server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NfsVolume {
    /// Host of the server.
    pub server: String,
    /// Exported directory.
    pub path: String,
}

/// A volume and where it is mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharedVolume {
    /// Directory in the pods.
    pub path: String,
    /// The volume.
    #[serde(flatten)]
    pub volume: Volume,
}

/// A file in login pods and workers. Set exactly one of `content` and `configMapKeyRef`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Content of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// ConfigMap key with the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<ConfigMapKeySelector>,
    /// How a change of the content reaches running pods. Defaults to `RollOut`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<FileUpdate>,
}

/// How a change of a file reaches running pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FileUpdate {
    /// Pods are replaced, workers as their jobs end.
    #[default]
    RollOut,
    /// Running pods see the change within about a minute. Requires Keelson's images.
    Live,
}
