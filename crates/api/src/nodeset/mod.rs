//! NodeSet: a group of alike workers.

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

/// A group of alike workers: pods that run slurmd and register with one Controller.
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
    doc = "A group of alike workers: pods that run slurmd and register with one Controller.",
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
    /// Controller that the workers register with. Cannot be changed.
    pub controller_ref: LocalObjectReference,

    /// How many workers, in `StatefulSet` mode.
    #[serde(default = "defaults::one")]
    pub replicas: i32,

    /// What decides how many workers there are.
    #[serde(default)]
    pub scaling_mode: ScalingMode,

    /// Changes to the slurmd container; fields of a core/v1 Container. Its `image` must be written, here or in
    /// `template`: there is no default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurmd: Option<RawObject>,

    /// SSH into workers for users who have a job there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Ssh>,

    /// Changes to the sidecar that prints slurmd's log; fields of a core/v1 Container. Its `image` must be written, too: any
    /// with `sh`, `mkfifo` and `cat` will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logfile: Option<RawObject>,

    /// Changes to the worker pods. `spec.hostname` is a prefix: the ordinal is put behind it, and that is the Slurm node
    /// name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,

    /// Node parameters for `slurmd --conf`: `Key=Value` pairs with spaces between them. A change replaces the workers as
    /// any update does, and their nodes' records in Slurm with them, unless a pending job names the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// Slurm partition made of this NodeSet's workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,

    /// PersistentVolumeClaims made for each worker. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub volume_claim_templates: Option<Vec<RawObject>>,

    /// How workers are replaced when the NodeSet changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,

    /// How many old revisions are kept.
    #[serde(default)]
    pub revision_history_limit: i32,

    /// What happens to the workers' PersistentVolumeClaims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_retention_policy: Option<ClaimRetentionPolicy>,

    /// Seconds that a worker must be ready before it counts as available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i32>,

    /// Digits of the ordinal in worker names, filled up with zeros. `StatefulSet` mode only.
    #[serde(default)]
    pub ordinal_padding: i32,

    /// Whether each ordinal stays on the Kubernetes node it first ran on. `StatefulSet` mode only.
    #[serde(default)]
    pub pin_to_node: bool,

    /// Whether workers with running jobs are protected from eviction.
    #[serde(default = "defaults::yes")]
    pub workload_disruption_protection: bool,

    /// When Slurm's records of workers are deleted whose Kubernetes node is gone. `DaemonSet` mode only: in `StatefulSet`
    /// mode the records of workers that are gone for good are always deleted. A record stays as long as a pending job names
    /// the node, somebody else drained it, or a reservation holds it.
    #[serde(default)]
    pub prune_slurm_node_records: PruneSlurmNodeRecords,

    /// Whether several workers may share a Kubernetes node. Not for production.
    #[serde(default)]
    pub oversubscribe_node: bool,

    /// How long a worker that has to go may wait for its jobs, and what happens then. Without it, jobs are always
    /// waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainPolicy>,

    /// Whether changes wait: no worker is created, drained, replaced or removed until this is false again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,

    /// How many workers may be starting at once: created, but not yet registered with Slurm. No limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrent_startup: Option<i32>,

    /// What happens to running jobs when the NodeSet is deleted. `Drain` when absent.
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

/// What decides how many workers there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ScalingMode {
    /// One worker on each Kubernetes node that matches the pod template.
    DaemonSet,
    /// As many as `replicas` says, with ordinals.
    #[default]
    StatefulSet,
}

impl ScalingMode {
    /// The word in the API and on the pods' label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DaemonSet => "DaemonSet",
            Self::StatefulSet => "StatefulSet",
        }
    }
}

/// When Slurm's records of workers are deleted whose Kubernetes node is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PruneSlurmNodeRecords {
    /// Never: a machine that comes back under its name finds its record.
    #[default]
    Never,
    /// When the Kubernetes node is gone, or gives its worker another name.
    NodeNotFound,
}

/// SSH into workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.sssdConfRef) || (has(self.sssd) && !self.sssd.enabled)",
     "message": "sssdConfRef must be set, or sssd.enabled must be false",
     "fieldPath": ".sssdConfRef", "reason": "FieldValueRequired"},
]))]
pub struct Ssh {
    /// Whether sshd runs in the workers.
    #[serde(default)]
    pub enabled: bool,
    /// Lines added to `sshd_config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_sshd_config: Option<String>,
    /// Secret key that holds sssd.conf. Required unless `sssd.enabled` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sssd_conf_ref: Option<SecretKeySelector>,
    /// Whether users come from SSSD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sssd: Option<Sssd>,
}

/// Whether users come from SSSD. Without it, the image itself has to know them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sssd {
    /// Whether sssd.conf is mounted.
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

/// Slurm partition made of a NodeSet's workers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.config) || (size(self.config) > 0 && !self.config.contains('\\n'))",
     "message": "config must be one line, such as State=UP Default=YES: write Key=Value pairs with blanks between them, or leave config out",
     "fieldPath": ".config"},
]))]
pub struct Partition {
    /// Whether the partition exists.
    #[serde(default)]
    pub enabled: bool,
    /// Options added to its line in slurm.conf, such as `State=UP Default=YES`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// What happens to the workers' PersistentVolumeClaims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRetentionPolicy {
    /// When the NodeSet is deleted.
    #[serde(default)]
    pub when_deleted: ClaimPolicy,
    /// When the NodeSet is scaled down, for the workers that go.
    #[serde(default)]
    pub when_scaled: ClaimPolicy,
}

/// How long a worker that has to go may wait for its jobs, and what happens then.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPolicy {
    /// How long jobs are waited for, such as `2h`. For ever when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
    /// What happens to jobs that still run after `timeout`. `Wait` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<DrainTimeoutAction>,
}

/// What happens to jobs that still run after the drain timeout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DrainTimeoutAction {
    /// They are waited for; a condition says so.
    #[default]
    Wait,
    /// They are requeued. Jobs that Slurm cannot start again (`--no-requeue`, interactive ones, a slurmrestd before 26.05)
    /// are waited for.
    Requeue,
    /// They are cancelled.
    Cancel,
}

/// What happens to running jobs when the NodeSet is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NodeSetDeletionPolicy {
    /// Workers are drained as `drain` says and removed when their jobs have ended.
    #[default]
    Drain,
    /// Workers are removed at once and their jobs fail.
    Immediate,
}

/// What was last seen of a NodeSet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetStatus {
    /// Worker pods, those that are going included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Workers of the newest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Workers that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Workers that have been ready for `minReadySeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Workers that are missing or not available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_replicas: Option<i32>,
    /// Workers that should run: `replicas`, or the number of matching Kubernetes nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<i32>,
    /// Slurm nodes that are idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_idle: Option<i32>,
    /// Slurm nodes that run jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_allocated: Option<i32>,
    /// Slurm nodes that are down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_down: Option<i32>,
    /// Slurm nodes that are draining or drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_drain: Option<i32>,
    /// Generation that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Hash of the newest revision, the value of the workers' label `controller.kubernetes.io/hash`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_set_hash: String,
    /// How often a revision's name was already taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// Ready, Progressing, Degraded, ReservationCreated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Kubernetes node of each ordinal, with `pinToNode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub ordinal_to_node: Option<BTreeMap<String, String>>,
    /// Slurm nodes whose record another kind of worker made than the newest, with that worker's revision. They are renewed
    /// when nothing stands against it.
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
