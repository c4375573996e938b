//! The parts of a Slurm node that the operator reads.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::jobs::{JobList, Work};
use jiff::Timestamp;
use keelson_api::well_known::slurm::{QUIESCE_REASON, REASON_PREFIX};
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

/// slurmctld's own reasons for a node whose slurmd did not answer for long, or came back on a rebooted machine.
const GIVEN_UP: [&str; 2] = ["Not responding", "Node unexpectedly rebooted"];

/// One node as Slurm last reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmNode {
    pub state: NodeState,
    /// CPUs allocated to jobs.
    pub allocated: u32,
    pub reason: String,
    /// Address by which slurmctld reaches it.
    pub address: String,
    pub topology: String,
    /// The reservation that it is in now.
    pub reservation: String,
    /// Sorted, like the active ones.
    pub features: Vec<String>,
    pub active_features: Vec<String>,
    /// When the current slurmd started; `None` until one has registered with the running slurmctld.
    pub registered: Option<Timestamp>,
    /// When the request for this reading was sent.
    pub read_at: Timestamp,
    /// Whether we changed the node after that request was sent, so that this reading may be outdated.
    pub outdated: bool,
    /// What jobs do with it, if that was read after this reading of the node.
    pub work: Option<Work>,
    /// The `extra` text that its slurmd registered with; it says whose worker it is.
    pub extra: Arc<str>,
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
            extra: Arc::clone(&node.extra),
        }
    }

    /// Reports whether something runs there, is being cleaned up, or may be: missing information counts as yes.
    pub fn busy(&self) -> bool {
        // The list of jobs is read when a decision needs it, so it may be newer than the list of nodes.
        let held = self.work.as_ref().is_some_and(|work| !work.jobs.is_empty());
        self.state.is_busy() || self.allocated > 0 || held
    }

    /// Reports whether the node takes no new jobs.
    pub fn draining(&self) -> bool {
        // The Controller may undo its drain of the whole cluster at any time, so that does not count here.
        let passing = self.reason == QUIESCE_REASON;
        self.state.has(NodeFlag::Drain) && !self.state.has(NodeFlag::Undrain) && !passing
    }

    /// Reports whether the node takes no new jobs and has none, as far as the node itself says: a suspended job may
    /// hold it unseen.
    pub fn drained(&self) -> bool {
        self.draining() && !self.busy()
    }

    /// Reports whether the node takes no new jobs and has none, by the node and by a newer list of jobs.
    pub fn proven_drained(&self) -> bool {
        self.drained() && !self.outdated && self.work.is_some()
    }

    /// Reports whether it could run a job now.
    pub fn usable(&self) -> bool {
        self.state.is_available()
    }

    pub fn is_maintained_in(&self, reservation: &str) -> bool {
        self.state.has(NodeFlag::Maintenance) && self.reservation == reservation
    }

    /// Returns what keeps a node from running jobs besides a drain, in Slurm's terms. `None` before it registers.
    pub fn out_of_service(&self) -> Option<&'static str> {
        let flags = [
            (NodeFlag::InvalidReg, "INVALID_REG"),
            (NodeFlag::NotResponding, "NOT_RESPONDING"),
        ];
        let flag = flags.into_iter().find(|(flag, _)| self.state.has(*flag));
        let down = self.down().then_some("DOWN");
        let registered = self.registered.is_some();
        down.or(flag.map(|(_, word)| word)).filter(|_| registered)
    }

    pub fn down(&self) -> bool {
        self.state.base == NodeBase::Down
    }

    /// Returns when the last job on it ends, if that is known.
    pub fn busy_until(&self) -> Option<Timestamp> {
        self.work.as_ref().and_then(|work| work.until)
    }

    /// Reports whether slurmctld itself set the node down because its slurmd was silent, and no one changed the reason.
    pub fn was_silent(&self) -> bool {
        GIVEN_UP.contains(&self.reason.as_str())
    }

    /// Reports whether its slurmd is or was a worker of this NodeSet, or of an earlier one of the same name.
    pub fn is_of(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let part = |key: &str| self.extra.split(',').find_map(|part| part.strip_prefix(key));
        let Some((set, its_uid)) = part("nodeset=").and_then(|nodeset| nodeset.split_once('/')) else {
            return false;
        };
        let here = part("pod=")
            .and_then(|pod| pod.split_once('/'))
            .is_some_and(|(its_namespace, _)| its_namespace == namespace);
        !its_uid.is_empty() && (its_uid == uid || (here && set == name))
    }

    /// Reports whether the operator set the reason; it must not undo anyone else's.
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

/// State of one Slurm cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slurm {
    /// No connection, or no answer. Nothing that could end a job may be done.
    Unknown { why: String },
    Known {
        nodes: BTreeMap<NodeName, SlurmNode>,
        jobs: JobReading,
    },
}

/// State of the jobs of one Slurm cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobReading {
    /// Not read: no decision needed the jobs.
    NotAsked,
    /// Nothing that could end a job may be done.
    Failed {
        why: String,
    },
    Read(JobList),
}

impl Slurm {
    /// Adds what jobs do with the nodes. A list that is older than a node's reading proves nothing about that node.
    #[must_use]
    pub fn with_jobs(self, jobs: JobReading) -> Self {
        let Self::Known { mut nodes, .. } = self else {
            return self;
        };
        if let JobReading::Read(list) = &jobs {
            for (name, node) in nodes.iter_mut().filter(|(_, node)| list.read_at >= node.read_at) {
                node.work = Some(list.by_node.get(name).cloned().unwrap_or_default());
            }
        }
        Self::Known { nodes, jobs }
    }

    /// Reports whether the list of jobs was read after this instant and contains no job that holds the node.
    pub fn nobody_holds(&self, name: &NodeName, since: Timestamp) -> bool {
        match self {
            Self::Known {
                jobs: JobReading::Read(list),
                ..
            } => {
                let held = |work: &Work| !work.jobs.is_empty();
                list.read_at > since && !list.by_node.get(name).is_some_and(held)
            }
            Self::Known { .. } | Self::Unknown { .. } => false,
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
            extra: Arc::default(),
        };
        assert_eq!(node.drained(), drained);
        assert!(!SlurmNode { allocated: 1, ..node }.drained());
    }

    #[rstest]
    #[case("pod=ns/w-0,node=m,nodeset=w/uid-1", true)]
    #[case::of_one_that_was_deleted("pod=ns/w-0,node=m,nodeset=w/uid-0", true)]
    #[case::of_another("pod=ns/v-0,node=m,nodeset=v/uid-2", false)]
    #[case::of_another_namespace("pod=other/w-0,node=m,nodeset=w/uid-2", false)]
    #[case("nodeset=w/", false)]
    #[case("", false)]
    fn a_record_tells_whose_worker_made_it(#[case] extra: &str, #[case] ours: bool) {
        let list = slurm_rest::node::decode_nodes(br#"{ "nodes": [{ "name": "a", "state": ["IDLE"] }] }"#);
        let mut node = SlurmNode::from_rest(&list.unwrap().items[0], Timestamp::UNIX_EPOCH);
        node.extra = extra.into();
        assert_eq!(node.is_of("ns", "w", "uid-1"), ours);
    }
}
