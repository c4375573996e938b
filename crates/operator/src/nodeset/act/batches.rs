//! Groups steps by the order in which they are carried out. The match is exhaustive, so a new step must be assigned a
//! place.

use std::collections::BTreeMap;

use super::{Mark, PodPatch, Spot};
use crate::{
    nodeset::facts::{ClaimOwner, NextRecord, PodId, Step},
    slurm::{control::Change, facts::NodeName},
};

#[derive(Debug, Default)]
pub struct Batches {
    /// Written to pods before any call to Slurm.
    pub patches: BTreeMap<PodId, PodPatch>,
    pub claims: Vec<Claim>,
    /// One call per distinct change, regardless of the number of nodes.
    pub changes: BTreeMap<Change, Vec<NodeName>>,
    pub requeues: Vec<String>,
    pub cancels: Vec<String>,
    pub shown: Vec<Shown>,
    pub removals: Vec<Removal>,
    pub prunes: Vec<NodeName>,
    pub spots: Vec<Spot>,
}

#[derive(Debug)]
pub struct Claim {
    pub pod: PodId,
    pub name: String,
    pub owner: ClaimOwner,
}

/// Pod conditions that show the state of the Slurm node.
#[derive(Debug)]
pub struct Shown {
    pub pod: PodId,
    pub set: BTreeMap<String, String>,
    pub drop: Vec<String>,
}

#[derive(Debug)]
pub enum Removal {
    Discard {
        pod: PodId,
    },
    Force {
        pod: PodId,
    },
    Replace {
        pod: PodId,
        node: NodeName,
        record: NextRecord,
    },
    Retire {
        pod: PodId,
        node: NodeName,
    },
}

impl Removal {
    pub fn pod(&self) -> &PodId {
        match self {
            Self::Discard { pod }
            | Self::Force { pod }
            | Self::Replace { pod, .. }
            | Self::Retire { pod, .. } => pod,
        }
    }
}

impl Batches {
    pub fn of(steps: &[Step]) -> Self {
        let mut all = Self::default();
        for step in steps {
            all.add(step.clone());
        }
        all
    }

    fn patch(&mut self, pod: PodId) -> &mut PodPatch {
        self.patches.entry(pod).or_default()
    }

    fn change(&mut self, node: NodeName, change: Change) {
        self.changes.entry(change).or_default().push(node);
    }

    fn add(&mut self, step: Step) {
        match step {
            Step::Intend { pod, intent } => self.patch(pod).intent = Mark::Set(intent),
            Step::Forget { pod } => self.patch(pod).intent = Mark::Cleared,
            Step::Adopt { pod } => self.patch(pod).adopt = true,
            Step::Protect { pod, protected } => self.patch(pod).protected = Some(protected),
            Step::Deadline { pod, at } => self.patch(pod).deadline = at.into(),
            Step::Topology { pod, topology } => self.patch(pod).topology = topology.into(),
            Step::OwnClaim { pod, claim, owner } => self.claims.push(Claim {
                pod,
                name: claim,
                owner,
            }),
            Step::Drain { node, reason } => self.change(node, Change::Drain { reason }),
            Step::Undrain { node } => self.change(node, Change::Undrain),
            Step::Resume { node } => self.change(node, Change::Resume),
            Step::PlaceNode { node, topology } => self.change(node, Change::Topology { topology }),
            Step::SetFeatures {
                node,
                features,
                active,
            } => self.change(node, Change::Features { features, active }),
            Step::RequeueJobs { addresses } => self.requeues.extend(addresses),
            Step::CancelJobs { addresses } => self.cancels.extend(addresses),
            Step::Conditions { pod, set, drop } => self.shown.push(Shown { pod, set, drop }),
            Step::Discard { pod } => self.removals.push(Removal::Discard { pod }),
            Step::Force { pod } => self.removals.push(Removal::Force { pod }),
            Step::Replace { pod, node, record } => self.removals.push(Removal::Replace { pod, node, record }),
            Step::Retire { pod, node } => self.removals.push(Removal::Retire { pod, node }),
            Step::Prune { node } => self.prunes.push(node),
            Step::Create { ordinal, kube_node } => self.spots.push(Spot::Ordinal { ordinal, kube_node }),
            Step::CreateOn { kube_node, hostname } => self.spots.push(Spot::KubeNode { kube_node, hostname }),
        }
    }
}
