//! The input and output types of `plan`. Values only.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use keelson_api::nodeset::{ClaimRetentionPolicy, DrainTimeoutAction, ScalingMode};

use crate::{
    problem::Problem,
    slurm::facts::{NodeName, Slurm},
};

/// The time within which a worker must register with Slurm.
pub const REGISTRATION_GRACE: SignedDuration = SignedDuration::from_mins(5);

/// The input of `plan`.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    pub set: SetFacts,
    pub pods: Vec<PodFacts>,
    pub slurm: Slurm,
    /// Kubernetes nodes by name.
    pub kube_nodes: BTreeMap<String, KubeNodeFacts>,
    /// Node names used by workers of other NodeSets of the same cluster, with the pod.
    pub taken: BTreeMap<NodeName, String>,
    pub now: Timestamp,
}

impl Observed {
    pub fn desired(&self) -> usize {
        let Self {
            set,
            kube_nodes,
            pods,
            taken,
            ..
        } = self;
        desired(set.mode, set.replicas, kube_nodes, pods, taken)
    }
}

/// Returns the desired number of workers. A Kubernetes node that accepts no new worker, such as a control plane node,
/// counts only while it has one.
pub fn desired(
    mode: ScalingMode,
    replicas: u32,
    kube_nodes: &BTreeMap<String, KubeNodeFacts>,
    pods: &[PodFacts],
    taken: &BTreeMap<NodeName, String>,
) -> usize {
    match mode {
        ScalingMode::StatefulSet => usize::try_from(replicas).unwrap_or(usize::MAX),
        ScalingMode::DaemonSet => {
            let held: BTreeSet<&str> = pods.iter().filter_map(|pod| pod.target.as_deref()).collect();
            let fitting = kube_nodes.iter().filter(|(name, kube_node)| match kube_node.fit {
                Fit::Run => true,
                Fit::Stay => held.contains(name.as_str()),
                Fit::No => false,
            });
            // Kubernetes nodes that request the same host name share one worker. A name that only a worker of another
            // NodeSet uses does not count.
            let names: BTreeSet<&str> = fitting
                .map(|(_, kube_node)| kube_node.hostname.as_str())
                .collect();
            let own: BTreeSet<&str> = pods.iter().map(|pod| pod.node.0.as_str()).collect();
            let others = |name: &&str| taken.contains_key(&NodeName::from(*name)) && !own.contains(*name);
            names.into_iter().filter(|name| !others(name)).count()
        }
    }
}

/// The desired state of the NodeSet, and the parts of its status that decisions depend on.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub struct SetFacts {
    /// Namespace, name and UID identify the NodeSet in the Slurm records that its workers created.
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub replicas: u32,
    pub mode: ScalingMode,
    /// Hash of everything that affects a worker pod.
    pub revision: String,
    pub strategy: Strategy,
    pub drain_timeout: Option<Duration>,
    pub on_drain_timeout: DrainTimeoutAction,
    pub paused: Option<Paused>,
    pub leaving: Leaving,
    pub min_ready: Duration,
    /// The maximum number of workers that start at the same time.
    pub startup_limit: Option<u32>,
    /// Whether workers are protected from eviction.
    pub protect: bool,
    pub claim_retention: ClaimRetentionPolicy,
    /// The Kubernetes node on which each ordinal last ran and is created again; empty unless `pinToNode` is set.
    pub pins: BTreeMap<u32, String>,
    /// Nodes whose Slurm record does not match the latest workers, with the revision that created it.
    pub records: BTreeMap<NodeName, String>,
    /// DaemonSet mode: whether records are deleted when their Kubernetes node is gone.
    pub prune: bool,
    /// Whether Slurm's API can change a node's place in the topology.
    pub places_nodes: bool,
    /// A pending change to slurmctld would kill running jobs: until it is applied, no node may accept jobs.
    pub quiesced: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// A rollout makes at most `max_unavailable` workers unavailable; ordinals below `partition` keep their revision.
    Rolling { max_unavailable: u32, partition: u32 },
    /// The user deletes the pods.
    OnDelete,
    /// All workers at once, while their nodes are in this maintenance reservation.
    Scheduled { reservation: String },
}

/// How the NodeSet was paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paused {
    Spec,
    Annotation,
}

/// How the NodeSet is being deleted, if it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    No,
    /// Waits for jobs.
    Drain,
    /// Does not wait for jobs.
    Immediately,
    /// Its workers stay unchanged and can be adopted by a later NodeSet of the same name.
    Orphan,
}

/// One worker pod.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub struct PodFacts {
    pub name: String,
    pub uid: String,
    pub mode: ScalingMode,
    /// StatefulSet mode only.
    pub ordinal: Option<u32>,
    /// Name of its node in Slurm.
    pub node: NodeName,
    pub revision: String,
    /// Whether a worker of the latest revision registers with resources, features or a weight that differ from the
    /// Slurm record of this node.
    pub reshaped: bool,
    pub phase: Phase,
    pub start: Start,
    /// The kubelet has reported for a while that the pod has no sandbox.
    pub unsandboxed: bool,
    /// Whether slurmd may be running now. When its container exits, its jobs end too.
    pub running: bool,
    pub ready_since: Option<Timestamp>,
    pub created: Timestamp,
    pub terminating: bool,
    /// Kubernetes node that it runs on.
    pub kube_node: Option<String>,
    /// Kubernetes node that it runs on, or the only one that it may run on.
    pub target: Option<String>,
    /// The user requested a drain by annotation.
    pub cordoned: bool,
    /// The decision of an earlier reconcile, from the pod's annotations.
    pub intent: Option<Intent>,
    pub deletion_cost: i32,
    /// Topology that was copied from its Kubernetes node.
    pub topology: Option<String>,
    /// Conditions about its Slurm node: type to message and time.
    pub conditions: BTreeMap<String, (String, Option<Timestamp>)>,
    /// The recorded end time of its jobs.
    pub deadline: Option<Timestamp>,
    pub protected: bool,
    /// Its claims that exist.
    pub claims: Vec<ClaimFacts>,
    /// It has no controller, but is a worker of this NodeSet by its labels and its name.
    pub orphan: bool,
    /// It has a second owner that remains when the NodeSet is deleted, see `anchor`.
    pub anchored: bool,
    /// When the last slurmd of its Slurm node started, as recorded when this pod was created.
    pub registered_before: Option<Timestamp>,
    /// Why it is not ready, if Kubernetes reports it.
    pub trouble: Option<Problem>,
}

/// Whether slurmd ever ran in a pod; before that, it cannot have jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// It is not scheduled yet, or the kubelet reports why slurmd cannot start.
    Never,
    /// The kubelet has not reported it, and may be behind.
    Perhaps,
    Yes,
}

/// A claim of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimFacts {
    pub name: String,
    pub owner: ClaimOwner,
    /// It has a controller other than the NodeSet.
    pub foreign: bool,
}

/// The owner of a claim: Kubernetes deletes the claim together with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimOwner {
    Nobody,
    Set,
    Pod(PodId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Pending,
    Unknown,
    Running,
    /// Failed or succeeded: nothing runs in it.
    Ended,
}

/// Why a worker is to be removed or replaced, and since when. Written to the pod before the first call to Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    pub cause: Cause,
    pub since: Timestamp,
}

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident = $word:literal),+ $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Cause { $($(#[$doc])* $name),+ }

        impl Cause {
            /// Returns the value of the annotation.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word),+ }
            }

            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

causes! {
    /// There are more workers than desired.
    ScaleIn = "scale-in",
    /// It was created in the other scaling mode.
    ModeSwitch = "mode-switch",
    /// The NodeSet is being deleted.
    Deletion = "deletion",
    /// Its revision is not the latest.
    Rollout = "rollout",
    /// It is ready but not registered with Slurm.
    Unregistered = "unregistered",
    /// DaemonSet mode: its Kubernetes node is gone or no longer eligible.
    Unplaced = "unplaced",
    /// DaemonSet mode: its Kubernetes node requests another host name.
    Renamed = "renamed",
    /// DaemonSet mode: its Kubernetes node has another worker.
    Duplicate = "duplicate",
}

impl Cause {
    /// Returns true if the name is free once the worker is removed, so its Slurm record is deleted too. A duplicate
    /// shares its name with the worker that stays.
    pub fn frees_name(self) -> bool {
        self.for_good() && self != Self::Duplicate
    }

    /// Returns true if the worker is removed for good: a replacement, if any, is placed or named differently.
    pub fn for_good(self) -> bool {
        match self {
            Self::ScaleIn
            | Self::ModeSwitch
            | Self::Deletion
            | Self::Unplaced
            | Self::Renamed
            | Self::Duplicate => true,
            Self::Rollout | Self::Unregistered => false,
        }
    }
}

/// One Kubernetes node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeNodeFacts {
    pub cordoned: bool,
    /// The drain reason while it is cordoned, from an annotation or a node condition.
    pub cordon_reason: Option<String>,
    /// Slurm topology of a worker on it, from an annotation.
    pub topology: Option<String>,
    /// Slurm features of a worker on it, from an annotation; sorted, with our prefix.
    pub features: Vec<String>,
    /// Whether it is eligible for a worker (DaemonSet mode).
    pub fit: Fit,
    /// Host name of a worker on it (DaemonSet mode).
    pub hostname: String,
}

/// The eligibility of a Kubernetes node for a worker, by selectors, affinity and taints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fit {
    /// It should run a worker.
    #[default]
    Run,
    /// It gets no new worker, but keeps an existing one.
    Stay,
    No,
}

/// One step of a plan. Each is harmless if the state has changed since the plan was made: `act` checks UIDs and
/// resource versions, and respects Slurm's refusals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Create {
        ordinal: u32,
        /// The Kubernetes node that it is pinned to.
        kube_node: Option<String>,
    },
    /// DaemonSet mode.
    CreateOn {
        kube_node: String,
        hostname: String,
    },
    /// Write the intent to the pod.
    Intend {
        pod: PodId,
        intent: Intent,
    },
    /// Adopt a pod without a controller, and add the anchor so that it is not deleted together with the NodeSet.
    Adopt {
        pod: PodId,
    },
    /// Set the owner of a claim of this pod.
    OwnClaim {
        pod: PodId,
        claim: String,
        owner: ClaimOwner,
    },
    /// Remove the intent from the pod.
    Forget {
        pod: PodId,
    },
    Protect {
        pod: PodId,
        protected: bool,
    },
    Drain {
        node: NodeName,
        reason: String,
    },
    /// `drain.timeout` has expired, and its action is to requeue the jobs.
    RequeueJobs {
        addresses: Vec<String>,
    },
    /// `drain.timeout` has expired, and its action is to cancel the jobs.
    CancelJobs {
        addresses: Vec<String>,
    },
    /// Record on the pod when the jobs on its node end, for users.
    Deadline {
        pod: PodId,
        at: Option<Timestamp>,
    },
    Undrain {
        node: NodeName,
    },
    /// Copy the topology of the Kubernetes node to the pod, or remove it.
    Topology {
        pod: PodId,
        topology: Option<String>,
    },
    /// Set the topology of the Slurm node.
    PlaceNode {
        node: NodeName,
        topology: String,
    },
    /// Set the features of the Slurm node.
    SetFeatures {
        node: NodeName,
        features: Vec<String>,
        active: Vec<String>,
    },
    /// Show the state of the Slurm node on the pod.
    Conditions {
        pod: PodId,
        set: BTreeMap<String, String>,
        drop: Vec<String>,
    },
    /// Resume a node that went down when its previous pod ended.
    Resume {
        node: NodeName,
    },
    /// Delete a pod that cannot have jobs: it ended or never started.
    Discard {
        pod: PodId,
    },
    /// Delete a pod regardless of its jobs: the user requested not to wait.
    Force {
        pod: PodId,
    },
    /// Delete the pod of a drained node whose name stays in use, by its replacement or by pending jobs that request it.
    Replace {
        pod: PodId,
        node: NodeName,
        record: NextRecord,
    },
    /// Delete the node's record and, unless Slurm refuses, the pod.
    Retire {
        pod: PodId,
        node: NodeName,
    },
    /// Delete the record of a worker that was removed for good.
    Prune {
        node: NodeName,
    },
}

/// What happens to the Slurm record of a node when its pod is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextRecord {
    /// The next pod uses it.
    Stays,
    /// It is deleted, because the next pod registers with another configuration, and Slurm reads that only when it
    /// creates the record.
    Renewed,
    /// It should be deleted, but cannot be.
    Kept { why: String },
}

/// The identity of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodId {
    pub name: String,
    pub uid: String,
}

impl Plan {
    /// Requests a reconcile no later than `time` from now.
    pub fn look_within(&mut self, time: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(time, |known| known.min(time)));
    }
}

impl PodFacts {
    /// Returns true if the pod is up to date but its Slurm record describes a previous worker.
    pub fn is_misknown(&self, set: &SetFacts) -> bool {
        self.reshaped && self.revision == set.revision
    }

    /// Returns true if its slurmd may be about to register for the first time.
    pub fn may_register(&self, now: Timestamp) -> bool {
        let may_run = self.running || self.start == Start::Perhaps;
        may_run
            && self.start != Start::Never
            && self.phase != Phase::Ended
            && !self.terminating
            && !self.unsandboxed
            && self.conditions.is_empty()
            && now.duration_since(self.created) < REGISTRATION_GRACE
    }

    /// Returns true if its slurmd may register for the first time later. A slurmd that has exited registers only after
    /// a restart, which is visible.
    pub fn may_register_later(&self) -> bool {
        let has_ended = self.start == Start::Yes && !self.running;
        self.phase != Phase::Ended && !self.terminating && !has_ended && self.conditions.is_empty()
    }

    /// Returns true if it cannot have jobs: it ended, or slurmd never ran.
    pub fn is_empty(&self) -> bool {
        self.phase == Phase::Ended || self.start == Start::Never
    }

    pub fn id(&self) -> PodId {
        PodId {
            name: self.name.clone(),
            uid: self.uid.clone(),
        }
    }
}

/// The steps to take now, and the reasons for waiting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub waits: Vec<Wait>,
    /// Records of removed workers, and why they are kept.
    pub kept: Vec<KeptRecord>,
    /// When to reconcile again even if nothing changes.
    pub requeue_after: Option<Duration>,
}

/// A Slurm record without a worker that cannot be deleted yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRecord {
    pub node: NodeName,
    pub why: String,
}

/// A worker that cannot be removed yet, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    pub pod: String,
    pub node: NodeName,
    pub why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Slurm does not answer.
    SlurmUnknown,
    /// It has running jobs; `until` is when the last one ends, if known.
    Jobs { until: Option<Timestamp> },
    /// The job list cannot be read, so the absence of jobs is not proven.
    JobsUnread { why: String },
    /// `drain.timeout` has expired, but Slurm cannot requeue these jobs.
    CannotRequeue { jobs: Vec<String>, why: String },
    /// Pending jobs request this node; they would fail if its record were deleted.
    Wanted { jobs: Vec<u64> },
    /// Slurm does not delete nodes that are in a reservation.
    Reserved { reservation: String },
    /// The drain was requested, and Slurm has not been read since.
    Reading,
    /// Slurm does not know the node, but too many others are missing too: slurmctld may have lost its state.
    SuspectLoss,
    /// Its slurmd may be about to register, and Slurm could schedule a job on it immediately.
    Starting,
}
