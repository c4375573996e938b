//! What is kept of a Slurm node: the few facts that somebody reads.

use std::{collections::BTreeMap, fmt};

use super::jobs::{Work, WorkByNode};
use jiff::Timestamp;
use keelson_api::well_known::slurm::REASON_PREFIX;
use slurm_rest::Words;
use slurm_rest::node::{Node, NodeBase, NodeFlag, NodeState};

/// A node's name in Slurm.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(pub String);

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for NodeName {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

/// One node as Slurm last told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmNode {
    pub state: NodeState,
    /// CPUs that jobs hold.
    pub allocated: u32,
    pub reason: String,
    /// Address by which slurmctld reaches it.
    pub address: String,
    pub topology: String,
    /// The reservation that holds it now.
    pub reservation: String,
    /// Sorted, as are those in force.
    pub features: Vec<String>,
    pub active_features: Vec<String>,
    /// When the slurmd that serves it started; nothing while none has registered with the slurmctld that runs now.
    pub registered: Option<Timestamp>,
    /// When the request was sent whose answer this is.
    pub read_at: Timestamp,
    /// We changed the node after that request was sent: what it says may be over.
    pub outdated: bool,
    /// What jobs do with it, where that was read.
    pub work: Option<Work>,
}

impl SlurmNode {
    pub fn from_rest(node: &Node, read_at: Timestamp) -> Self {
        Self {
            state: node.state.clone(),
            allocated: node.alloc_cpus,
            reason: node.reason.to_string(),
            address: node.address.to_string(),
            topology: node.topology.to_string(),
            reservation: node.reservation.to_string(),
            features: sorted(&node.features),
            active_features: sorted(&node.active_features),
            registered: node.slurmd_start_time,
            read_at,
            outdated: false,
            work: None,
        }
    }

    /// Something runs there, is being cleaned up, or may be: what Slurm does not say counts as yes.
    pub fn busy(&self) -> bool {
        // The list of jobs is asked for when a decision needs it, so it may know more than the older list of nodes.
        let held = self.work.as_ref().is_some_and(|work| !work.jobs.is_empty());
        self.state.is_busy() || self.allocated > 0 || held
    }

    /// Takes no new jobs.
    pub fn draining(&self) -> bool {
        self.state.has(NodeFlag::Drain) && !self.state.has(NodeFlag::Undrain)
    }

    /// Takes no new jobs and has none.
    pub fn drained(&self) -> bool {
        self.draining() && !self.busy()
    }

    /// Could run a job now.
    pub fn usable(&self) -> bool {
        self.state.is_available()
    }

    /// Whether it is in this maintenance window now.
    pub fn is_maintained_in(&self, reservation: &str) -> bool {
        self.state.has(NodeFlag::Maintenance) && self.reservation == reservation
    }

    pub fn down(&self) -> bool {
        self.state.base == NodeBase::Down
    }

    /// When the last job on it ends, where that is known.
    pub fn busy_until(&self) -> Option<Timestamp> {
        self.work.as_ref().and_then(|work| work.until)
    }

    /// Whether the operator set the reason: only then may it be undone.
    pub fn reason_is_ours(&self) -> bool {
        self.reason.starts_with(REASON_PREFIX)
    }
}

fn sorted(words: &Words) -> Vec<String> {
    let mut sorted: Vec<String> = words
        .iter()
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect();
    sorted.sort();
    sorted.dedup();
    sorted
}

/// What is known of one Slurm cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slurm {
    /// Nobody to ask, or no answer. Nothing that could end a job may be done.
    Unknown {
        why: String,
    },
    Known {
        nodes: BTreeMap<NodeName, SlurmNode>,
    },
}

impl Slurm {
    /// Adds what jobs do with the nodes.
    #[must_use]
    pub fn with_work(self, work: &WorkByNode) -> Self {
        match self {
            Self::Unknown { why } => Self::Unknown { why },
            Self::Known { mut nodes } => {
                for (name, node) in &mut nodes {
                    node.work = Some(work.get(name).cloned().unwrap_or_default());
                }
                Self::Known { nodes }
            }
        }
    }

    pub fn node(&self, name: &NodeName) -> Option<&SlurmNode> {
        match self {
            Self::Unknown { .. } => None,
            Self::Known { nodes, .. } => nodes.get(name),
        }
    }

    pub fn is_known(&self) -> bool {
        matches!(self, Self::Known { .. })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(&["IDLE"], false)]
    #[case(&["IDLE", "DRAIN"], true)]
    #[case(&["DOWN", "DRAIN"], true)]
    #[case(&["MIXED", "DRAIN"], false)]
    #[case(&["ALLOCATED", "DRAIN"], false)]
    #[case(&["IDLE", "DRAIN", "COMPLETING"], false)]
    #[case(&["IDLE", "DRAIN", "UNDRAIN"], false)]
    #[case(&["UNKNOWN", "DRAIN"], false)]
    #[case(&["DRAIN"], false)]
    #[case(&["IDLE", "DRAIN", "SOME_NEW_FLAG"], true)]
    fn drained_means_that_nothing_runs_and_nothing_will(#[case] words: &[&str], #[case] drained: bool) {
        let node = SlurmNode {
            state: NodeState::read(words.iter().copied()),
            allocated: 0,
            reason: String::new(),
            address: String::new(),
            topology: String::new(),
            reservation: String::new(),
            features: vec![],
            active_features: vec![],
            registered: None,
            read_at: Timestamp::UNIX_EPOCH,
            outdated: false,
            work: None,
        };
        assert_eq!(node.drained(), drained);
        assert!(!SlurmNode { allocated: 1, ..node }.drained());
    }
}
