//! What `plan` decides on, and what it can decide. Values only.

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

/// How long a worker may take to register with Slurm.
pub const REGISTRATION_GRACE: SignedDuration = SignedDuration::from_mins(5);

/// Everything that `plan` looks at.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    pub set: SetFacts,
    pub pods: Vec<PodFacts>,
    pub slurm: Slurm,
    /// Kubernetes nodes by name.
    pub machines: BTreeMap<String, KubeNodeFacts>,
    /// Names of nodes that workers of other NodeSets of the same cluster have, with the pod.
    pub taken: BTreeMap<NodeName, String>,
    pub now: Timestamp,
}

impl Observed {
    /// How many workers there ought to be.
    pub fn desired(&self) -> usize {
        let Self {
            set,
            machines,
            pods,
            taken,
            ..
        } = self;
        desired(set.mode, set.replicas, machines, pods, taken)
    }
}

/// How many workers there ought to be. A machine that takes no new worker, such as one of the control plane, counts only
/// while one is there.
pub fn desired(
    mode: ScalingMode,
    replicas: u32,
    machines: &BTreeMap<String, KubeNodeFacts>,
    pods: &[PodFacts],
    taken: &BTreeMap<NodeName, String>,
) -> usize {
    match mode {
        ScalingMode::StatefulSet => usize::try_from(replicas).unwrap_or(usize::MAX),
        ScalingMode::DaemonSet => {
            let held: BTreeSet<&str> = pods.iter().filter_map(|pod| pod.target.as_deref()).collect();
            let fitting = machines.iter().filter(|(name, machine)| match machine.fit {
                Fit::Run => true,
                Fit::Stay => held.contains(name.as_str()),
                Fit::No => false,
            });
            // Machines that give their workers one name have one worker between them, and so has one that several NodeSets
            // claim.
            let names: BTreeSet<&str> = fitting.map(|(_, machine)| machine.hostname.as_str()).collect();
            let own: BTreeSet<&str> = pods.iter().map(|pod| pod.node.0.as_str()).collect();
            let others = |name: &&str| taken.contains_key(&NodeName::from(*name)) && !own.contains(*name);
            names.into_iter().filter(|name| !others(name)).count()
        }
    }
}

/// What the user asks for.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub struct SetFacts {
    /// By these three Slurm's records tell whose worker made them.
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub replicas: u32,
    pub mode: ScalingMode,
    /// Hash of everything that shapes a worker pod.
    pub revision: String,
    pub strategy: Strategy,
    pub drain_timeout: Option<Duration>,
    pub on_drain_timeout: DrainTimeoutAction,
    pub paused: Option<Paused>,
    pub leaving: Leaving,
    pub min_ready: Duration,
    /// How many workers may be starting at the same time.
    pub startup_limit: Option<u32>,
    /// Whether workers are protected from eviction.
    pub protect: bool,
    pub claim_retention: ClaimRetentionPolicy,
    /// The machine that each ordinal ran on last and goes back to; none unless the user wants that.
    pub pins: BTreeMap<u32, String>,
    /// Nodes whose record in Slurm another kind of worker made than the newest, with that worker's revision.
    pub records: BTreeMap<NodeName, String>,
    /// DaemonSet mode: whether records go when their machine is gone.
    pub prune: bool,
    /// Whether Slurm's API can change a node's place in the topology.
    pub places_nodes: bool,
    /// slurmctld is about to get a change that no running job survives: no node may take jobs meanwhile.
    pub quiesced: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// At most so many workers are out of service because of us; ordinals below `partition` keep their revision.
    Rolling { max_unavailable: u32, partition: u32 },
    /// A person deletes the pods.
    OnDelete,
    /// All together, while their nodes are in this maintenance reservation.
    Scheduled { reservation: String },
}

/// How a person stopped all changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paused {
    Spec,
    Annotation,
}

/// Whether the NodeSet itself is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    No,
    /// Jobs end first.
    Drain,
    /// The user asked not to wait for jobs.
    Immediately,
    /// Its workers stay as they are, for a NodeSet of the same name that comes later.
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
    /// Whether a worker of the newest revision registers as another kind of node than the one that the record in Slurm was
    /// made of: with other resources, features, weight.
    pub reshaped: bool,
    pub phase: Phase,
    pub start: Start,
    /// The kubelet has said for long that it has no sandbox to run anything in.
    pub unsandboxed: bool,
    /// Whether slurmd may be running in it now. With its container everything ends that ran in it, jobs too.
    pub running: bool,
    pub ready_since: Option<Timestamp>,
    pub created: Timestamp,
    pub terminating: bool,
    /// Kubernetes node that it runs on.
    pub machine: Option<String>,
    /// Kubernetes node that it runs on or is bound to run on.
    pub target: Option<String>,
    /// A person asked for a drain by annotation.
    pub cordoned: bool,
    /// What we decided earlier, from the pod's annotations.
    pub intent: Option<Intent>,
    pub deletion_cost: i32,
    /// Topology that was copied to it from its machine.
    pub topology: Option<String>,
    /// Conditions about its Slurm node: type to message and time.
    pub conditions: BTreeMap<String, (String, Option<Timestamp>)>,
    /// What we wrote of when its jobs end.
    pub deadline: Option<Timestamp>,
    pub protected: bool,
    /// Its claims that exist.
    pub claims: Vec<ClaimFacts>,
    /// Nobody is in charge of it, but it is one of ours by its labels and its name.
    pub orphan: bool,
    /// It has a second owner that no deletion of the NodeSet takes away, see `anchor`.
    pub anchored: bool,
    /// When the slurmd started that served its node before this pod was made.
    pub registered_before: Option<Timestamp>,
    /// What keeps it from being ready, where Kubernetes says.
    pub trouble: Option<Problem>,
}

/// Whether slurmd ever ran in a pod; before that no job can be on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// It has no machine yet, or the kubelet names what keeps slurmd from starting.
    Never,
    /// The kubelet has not told, and may be behind.
    Perhaps,
    Yes,
}

/// A claim of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimFacts {
    pub name: String,
    pub owner: ClaimOwner,
    /// Somebody else is in charge of it.
    pub foreign: bool,
}

/// With whom Kubernetes deletes a claim.
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
    /// Failed or succeeded: nothing runs in it any more.
    Ended,
}

/// Why a worker is to go, and since when. Written on the pod before the first call to Slurm.
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
            /// As it stands in the annotation.
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
    /// There are more workers than asked for.
    ScaleIn = "scale-in",
    /// It was made under the other scaling mode.
    ModeSwitch = "mode-switch",
    /// The NodeSet is deleted.
    Deletion = "deletion",
    /// Its revision is not the newest.
    Rollout = "rollout",
    /// It is ready but Slurm does not know it.
    Unregistered = "unregistered",
    /// DaemonSet mode: its machine is gone or does not fit any more.
    Unplaced = "unplaced",
    /// DaemonSet mode: its machine gives it another name now.
    Renamed = "renamed",
    /// DaemonSet mode: another worker is on its machine.
    Duplicate = "duplicate",
}

impl Cause {
    /// Whether the name is free once the worker is gone, so that its record in Slurm goes too. The name of a duplicate is
    /// that of the worker which stays.
    pub fn frees_name(self) -> bool {
        self.for_good() && self != Self::Duplicate
    }

    /// Whether the worker is not made anew.
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
    /// Drain reason that a person or a node condition gives while it is cordoned.
    pub cordon_reason: Option<String>,
    /// Slurm topology of a worker on it, by annotation.
    pub topology: Option<String>,
    /// Slurm features of a worker on it, by annotation; sorted, with our prefix.
    pub features: Vec<String>,
    /// Whether it is one for a worker (DaemonSet mode).
    pub fit: Fit,
    /// Name of a worker on it (DaemonSet mode).
    pub hostname: String,
}

/// Whether a machine is one for a worker, by selectors, affinity and taints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fit {
    /// A worker belongs there.
    #[default]
    Run,
    /// No new one starts there, but one that is there stays.
    Stay,
    No,
}

/// One thing to do. Each is harmless when the world has moved on since it was decided: the doing side checks uids,
/// resource versions and Slurm's own refusals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Create {
        ordinal: u32,
        /// The machine that it is pinned to.
        machine: Option<String>,
    },
    /// DaemonSet mode.
    CreateOn {
        machine: String,
        hostname: String,
    },
    /// Write the intent on the pod.
    Intend {
        pod: PodId,
        intent: Intent,
    },
    /// Take charge of a pod that nobody is in charge of, and see to it that no deletion of the NodeSet takes it away.
    Adopt {
        pod: PodId,
    },
    /// Say with whom a claim of this pod is deleted.
    OwnClaim {
        pod: PodId,
        claim: String,
        owner: ClaimOwner,
    },
    /// Take the intent back.
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
    /// The user's time for the jobs on leaving workers is over, and the user wrote that they start again elsewhere.
    RequeueJobs {
        addresses: Vec<String>,
    },
    /// The user's time for the jobs on leaving workers is over, and the user wrote that they are ended.
    CancelJobs {
        addresses: Vec<String>,
    },
    /// When the jobs on the pod's node end, for people.
    Deadline {
        pod: PodId,
        at: Option<Timestamp>,
    },
    Undrain {
        node: NodeName,
    },
    /// Copy the machine's topology to the pod, or take it away.
    Topology {
        pod: PodId,
        topology: Option<String>,
    },
    /// Give the Slurm node its place in the topology.
    PlaceNode {
        node: NodeName,
        topology: String,
    },
    /// Give the Slurm node these features.
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
    /// Bring a node back that went down when its former pod ended.
    Resume {
        node: NodeName,
    },
    /// Delete a pod in which no job can be: it ended or never started.
    Discard {
        pod: PodId,
    },
    /// Delete a pod whatever runs in it: the user asked not to wait.
    Force {
        pod: PodId,
    },
    /// Delete the pod of a drained node whose name stays in use: by the pod that follows, or by jobs that insist on it.
    Replace {
        pod: PodId,
        node: NodeName,
        record: NextRecord,
    },
    /// Delete the node's record and, if Slurm agrees, the pod.
    Retire {
        pod: PodId,
        node: NodeName,
    },
    /// Delete the record of a worker of ours that is gone for good.
    Prune {
        node: NodeName,
    },
}

/// What becomes of a node's record in Slurm while its pod is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextRecord {
    /// It is the next pod's.
    Stays,
    /// It goes, because the next pod registers as another kind of node, and Slurm takes in what a node tells of itself
    /// only when it makes the record.
    Renewed,
    /// It would have to go as well, but something stands against it.
    Kept { why: String },
}

/// A pod at one moment of its life.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodId {
    pub name: String,
    pub uid: String,
}

impl Plan {
    /// Has everything looked at again after this time at the latest.
    pub fn look_within(&mut self, time: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(time, |known| known.min(time)));
    }
}

impl PodFacts {
    /// Whether it is up to date itself, and Slurm knows it by what another kind of worker told of the node.
    pub fn is_misknown(&self, set: &SetFacts) -> bool {
        self.reshaped && self.revision == set.revision
    }

    /// Whether its slurmd may be about to register for the first time.
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

    /// Whether its slurmd may register for the first time some day. One that has ended before does so only when it is
    /// started again, which shows.
    pub fn may_register_later(&self) -> bool {
        let has_ended = self.start == Start::Yes && !self.running;
        self.phase != Phase::Ended && !self.terminating && !has_ended && self.conditions.is_empty()
    }

    /// Whether no job can be in it: it ended, or slurmd never ran.
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

/// What is to be done now, and what is waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub waits: Vec<Wait>,
    /// Records of workers that are gone, and why they stay.
    pub kept: Vec<KeptRecord>,
    /// When to look again although nothing changes.
    pub requeue_after: Option<Duration>,
}

/// A record in Slurm that no worker serves and that is not deleted yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRecord {
    pub node: NodeName,
    pub why: String,
}

/// Something that only time, Slurm or a person can bring about.
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
    /// Jobs are running on it, the last of them until then, where known.
    Jobs { until: Option<Timestamp> },
    /// The list of jobs cannot be read, and without it nothing proves that none is there.
    JobsUnread { why: String },
    /// Their time is over, but Slurm cannot start these again, so they are waited for.
    CannotRequeue { jobs: Vec<String>, why: String },
    /// Pending jobs insist on this very node; they would fail if it went.
    Wanted { jobs: Vec<u64> },
    /// Slurm does not delete nodes of a reservation.
    Reserved { reservation: String },
    /// The drain was asked for, and no newer reading is there yet.
    Reading,
    /// Slurm does not know the node, but too much else is missing to believe it.
    SuspectLoss,
    /// Its slurmd may be about to register; Slurm would give it a job at once.
    Starting,
}
