//! NodeSet: a group of identical workers.

mod update;

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::controller::ClaimPolicy;
use crate::defaults;
use crate::overrides::{PodTemplate, RawObject};
use crate::references::{LocalObjectReference, SecretKeySelector};
use crate::scalars::GoDuration;
use crate::schema;
use crate::status::Condition;

pub use update::{RollingUpdate, ScheduledUpdate, UpdateStrategy, UpdateStrategyType};

/// A group of identical workers: pods that run slurmd and register with one Controller.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "NodeSet",
    plural = "nodesets",
    shortname = "nodesets",
    shortname = "nss",
    shortname = "slurmd",
    namespaced,
    status = "NodeSetStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "A group of identical workers: pods that run slurmd and register with one Controller.",
    crates(kube_core = "::kube_core"),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "DESIRED", "type": "integer", "jsonPath": ".status.desired"}"#,
    printcolumn = r#"{"name": "REPLICAS", "type": "integer", "jsonPath": ".status.replicas"}"#,
    printcolumn = r#"{"name": "UPDATED", "type": "integer", "jsonPath": ".status.updatedReplicas"}"#,
    printcolumn = r#"{"name": "READY", "type": "integer", "jsonPath": ".status.readyReplicas"}"#,
    printcolumn = r#"{"name": "IDLE", "type": "integer", "jsonPath": ".status.slurmIdle", "priority": 1}"#,
    printcolumn = r#"{"name": "ALLOCATED", "type": "integer", "jsonPath": ".status.slurmAllocated", "priority": 1}"#,
    printcolumn = r#"{"name": "DOWN", "type": "integer", "jsonPath": ".status.slurmDown", "priority": 1}"#,
    printcolumn = r#"{"name": "DRAIN", "type": "integer", "jsonPath": ".status.slurmDrain", "priority": 1}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
pub struct NodeSetSpec {
    /// Controller that the workers register with. Immutable.
    pub controller_ref: LocalObjectReference,

    /// Number of workers. `StatefulSet` mode only.
    #[serde(default = "defaults::one")]
    pub replicas: i32,

    /// How the number of workers is determined.
    #[serde(default)]
    pub scaling_mode: ScalingMode,

    /// Overrides of the slurmd container; fields of a core/v1 Container. `image` has no default: set it here or in
    /// `template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurmd: Option<RawObject>,

    /// SSH access to workers for users who have a job there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Ssh>,

    /// Overrides of the sidecar that prints slurmd's log; fields of a core/v1 Container. `image` has no default: use any image
    /// that has `sh`, `mkfifo` and `cat`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logfile: Option<RawObject>,

    /// Overrides of the worker pods. `spec.hostname` is a prefix: the prefix followed by the ordinal is the Slurm node name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,

    /// Node parameters for `slurmd --conf`: `Key=Value` pairs separated by spaces. A change replaces the workers like any other
    /// update. It also replaces their node records in Slurm, unless a pending job names the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// Slurm partition of this NodeSet's workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,

    /// Templates of the PersistentVolumeClaims of each worker. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub volume_claim_templates: Option<Vec<RawObject>>,

    /// How the operator replaces workers when the NodeSet changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,

    /// Number of old revisions to keep.
    #[serde(default)]
    pub revision_history_limit: i32,

    /// Whether to keep the workers' PersistentVolumeClaims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_retention_policy: Option<ClaimRetentionPolicy>,

    /// Minimum number of seconds that a worker must be ready before it counts as available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i32>,

    /// Number of digits of the ordinal in worker names, padded with zeros. `StatefulSet` mode only.
    #[serde(default)]
    pub ordinal_padding: i32,

    /// Whether each ordinal stays on the Kubernetes node where it first ran. `StatefulSet` mode only.
    #[serde(default)]
    pub pin_to_node: bool,

    /// Whether to protect workers with running jobs from eviction.
    #[serde(default = "defaults::yes")]
    pub workload_disruption_protection: bool,

    /// When to delete the Slurm node records of workers whose Kubernetes node no longer exists. `DaemonSet` mode only: in
    /// `StatefulSet` mode the operator always deletes the records of removed workers. The operator keeps a record while a
    /// pending job names the node, the node is in a reservation, or someone other than the operator drained it.
    #[serde(default)]
    pub prune_slurm_node_records: PruneSlurmNodeRecords,

    /// Whether multiple workers may run on one Kubernetes node. Not for production.
    #[serde(default)]
    pub oversubscribe_node: bool,

    /// How long to wait for running jobs before removing a worker, and what to do after that. By default, the operator waits
    /// indefinitely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainPolicy>,

    /// Whether to pause changes: while true, the operator does not create, drain, replace or remove workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,

    /// Maximum number of workers that start concurrently: created, but not yet registered with Slurm. Unlimited by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrent_startup: Option<i32>,

    /// What to do with running jobs when the NodeSet is deleted. Defaults to `Drain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<NodeSetDeletionPolicy>,
}

impl Default for NodeSetSpec {
    fn default() -> Self {
        Self {
            controller_ref: LocalObjectReference::default(),
            replicas: defaults::one(),
            scaling_mode: ScalingMode::default(),
            slurmd: None,
            ssh: None,
            logfile: None,
            template: None,
            extra_conf: None,
            partition: None,
            volume_claim_templates: None,
            update_strategy: None,
            revision_history_limit: 0,
            persistent_volume_claim_retention_policy: None,
            min_ready_seconds: None,
            ordinal_padding: 0,
            pin_to_node: false,
            workload_disruption_protection: defaults::yes(),
            prune_slurm_node_records: PruneSlurmNodeRecords::default(),
            oversubscribe_node: false,
            drain: None,
            paused: None,
            max_concurrent_startup: None,
            deletion_policy: None,
        }
    }
}

/// How the number of workers is determined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ScalingMode {
    /// One worker on each Kubernetes node that matches the pod template.
    DaemonSet,
    /// `replicas` workers with ordinals.
    #[default]
    StatefulSet,
}

impl ScalingMode {
    /// The value in the API and in the pods' label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DaemonSet => "DaemonSet",
            Self::StatefulSet => "StatefulSet",
        }
    }
}

/// When to delete the Slurm node records of workers whose Kubernetes node no longer exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PruneSlurmNodeRecords {
    /// Never: a machine that returns under the same name finds its record.
    #[default]
    Never,
    /// When the Kubernetes node no longer exists, or the name of its worker has changed.
    NodeNotFound,
}

/// SSH access to workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.sssdConfRef) || (has(self.sssd) && !self.sssd.enabled)",
     "message": "sssdConfRef must be set, or sssd.enabled must be false",
     "fieldPath": ".sssdConfRef", "reason": "FieldValueRequired"},
]))]
pub struct Ssh {
    /// Whether to run sshd in the workers.
    #[serde(default)]
    pub enabled: bool,
    /// Lines to add to `sshd_config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_sshd_config: Option<String>,
    /// Secret key that holds sssd.conf. Required unless `sssd.enabled` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sssd_conf_ref: Option<SecretKeySelector>,
    /// Whether to get users from SSSD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sssd: Option<Sssd>,
}

/// Whether to get users from SSSD. If disabled, the image must define the users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sssd {
    /// Whether to mount sssd.conf.
    #[serde(default = "defaults::yes")]
    pub enabled: bool,
}

impl Default for Sssd {
    fn default() -> Self {
        Self {
            enabled: defaults::yes(),
        }
    }
}

/// Slurm partition of a NodeSet's workers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.config) || (size(self.config) > 0 && !self.config.contains('\\n'))",
     "message": "config must be one line, such as State=UP Default=YES: write Key=Value pairs separated by spaces, or leave config out",
     "fieldPath": ".config"},
]))]
pub struct Partition {
    /// Whether to create the partition.
    #[serde(default)]
    pub enabled: bool,
    /// Options to add to its line in slurm.conf, such as `State=UP Default=YES`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// Whether to keep the workers' PersistentVolumeClaims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRetentionPolicy {
    /// Policy when the NodeSet is deleted.
    #[serde(default)]
    pub when_deleted: ClaimPolicy,
    /// Policy when the NodeSet is scaled down, for the removed workers.
    #[serde(default)]
    pub when_scaled: ClaimPolicy,
}

/// How long to wait for running jobs before removing a worker, and what to do after that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPolicy {
    /// How long to wait for running jobs, such as `2h`. By default, the operator waits indefinitely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
    /// What to do with jobs that still run after `timeout`. Defaults to `Wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<DrainTimeoutAction>,
}

/// What to do with jobs that still run after the drain timeout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DrainTimeoutAction {
    /// Keep waiting and report it in a condition.
    #[default]
    Wait,
    /// Requeue the jobs. The operator keeps waiting for jobs that cannot be requeued (`--no-requeue`, interactive jobs, or
    /// slurmrestd older than 26.05).
    Requeue,
    /// Cancel the jobs.
    Cancel,
}

/// What to do with running jobs when the NodeSet is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NodeSetDeletionPolicy {
    /// Drain the workers as configured in `drain`, and remove them when their jobs have ended.
    #[default]
    Drain,
    /// Remove the workers immediately; their jobs fail.
    Immediate,
}

/// Observed state of a NodeSet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetStatus {
    /// Number of worker pods, including terminating ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Number of workers of the latest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Number of ready workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Number of workers that have been ready for at least `minReadySeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Number of workers that are missing or not available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_replicas: Option<i32>,
    /// Desired number of workers: `replicas`, or the number of matching Kubernetes nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<i32>,
    /// Number of idle Slurm nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_idle: Option<i32>,
    /// Number of Slurm nodes that run jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_allocated: Option<i32>,
    /// Number of Slurm nodes that are down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_down: Option<i32>,
    /// Number of Slurm nodes that are draining or drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_drain: Option<i32>,
    /// Generation of the object that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Hash of the latest revision, which is the value of the workers' label `controller.kubernetes.io/hash`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_set_hash: String,
    /// Number of name collisions of revisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// Conditions: Ready, Progressing, Degraded, ReservationCreated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Kubernetes node of each ordinal, if `pinToNode` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub ordinal_to_node: Option<BTreeMap<String, String>>,
    /// Slurm nodes whose record was created by a worker with other resources or features than the latest revision, with that
    /// worker's revision. The operator replaces these records as soon as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub outdated_nodes: Option<BTreeMap<String, String>>,
    /// Label selector of the workers, for autoscalers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// Slurm node names of the workers, as a host list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostlist: Option<String>,
}
