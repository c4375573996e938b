//! The status of a SlurmCluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;
use crate::status::{Condition, Endpoint};

/// Observed state of a SlurmCluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlurmClusterStatus {
    /// Generation of the object that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Whether users can work, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Slurm release that slurmctld reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Addresses for users: `rest`, and `ssh-<name>` for each entry of `login`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub endpoints: Vec<Endpoint>,
    /// Workers of all NodeSets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// Partitions. A worker counts in each partition that contains it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub partitions: Vec<PartitionStatus>,
    /// The objects that the cluster consists of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]))]
    pub components: Vec<ComponentStatus>,
    /// Conditions: Ready, Progressing, Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Whether users can work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Components start for the first time.
    Creating,
    /// Every component is ready.
    Ready,
    /// Every component is ready, and a change is in progress.
    Updating,
    /// A component that was ready is not ready any more, or cannot become ready.
    NotReady,
    /// The cluster is being deleted.
    Deleting,
}

/// Numbers of workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Desired number.
    pub desired: i32,
    /// Number of ready pods.
    pub ready: i32,
    /// Number of idle Slurm nodes.
    pub idle: i32,
    /// Number of Slurm nodes that run jobs.
    pub allocated: i32,
    /// Number of Slurm nodes that are draining or drained.
    pub drained: i32,
    /// Number of Slurm nodes that are down.
    pub down: i32,
}

/// A partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionStatus {
    /// Name of the partition.
    pub name: String,
    /// Its workers.
    #[serde(flatten)]
    pub nodes: NodeCounts,
}

/// An object that the cluster consists of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentStatus {
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Whether the object is ready.
    pub ready: bool,
    /// Why not, or what is in progress, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
