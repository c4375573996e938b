//! Decides the next step towards a change that running jobs would not survive. Pure.
//!
//! Nodes with the old slurm.key cannot talk to a slurmctld with the new one, and changes of some slurm.conf parameters
//! kill running jobs. So slurmctld gets such a change only after every node was drained and a reading newer than the
//! drains showed no job on any of them. Nodes drained for this have a reason of their own; only those are resumed.
//! Every step can be repeated, so a restarted operator continues from what it finds.

use std::collections::{BTreeMap, BTreeSet};

use keelson_api::well_known::slurm::{QUIESCE_OVER, QUIESCE_REASON, QUIESCE_SWITCHED};
use slurm_rest::node::{NodeBase, NodeFlag};

use crate::slurm::facts::{NodeName, SlurmNode};

/// Input of the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Name of the change that slurmctld has not been given yet.
    pub change: Option<String>,
    /// Whether slurmctld may still run with something else than it was given, or does not run.
    pub is_taking_in: bool,
    /// Whether no slurmctld is ready, so that none could have started a job unseen.
    pub is_down: bool,
    pub recorded: Option<Record>,
    /// Nodes of workers whose slurmd may be about to register for the first time; Slurm would give them a job at once.
    pub starting: BTreeSet<NodeName>,
    pub slurm: Reading,
}

/// Progress of a change, recorded before each step that must not be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Nodes may have been drained for this change.
    Drained(String),
    /// slurmctld may have been given this change, with all nodes drained.
    Switched(String),
    /// slurmctld runs with the change; nodes are being resumed.
    Over,
}

impl Record {
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix(QUIESCE_SWITCHED) {
            Some(change) => Self::Switched(change.to_owned()),
            None if text == QUIESCE_OVER => Self::Over,
            None => Self::Drained(text.to_owned()),
        }
    }

    /// Returns the change in progress, if any.
    pub fn change(&self) -> Option<&str> {
        match self {
            Self::Drained(change) | Self::Switched(change) => Some(change),
            Self::Over => None,
        }
    }
}

impl std::fmt::Display for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Drained(change) => f.write_str(change),
            Self::Switched(change) => write!(f, "{QUIESCE_SWITCHED}{change}"),
            Self::Over => f.write_str(QUIESCE_OVER),
        }
    }
}

/// What was read from Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// Nothing could be read, for this reason.
    Unknown(String),
    /// Number of jobs that hold nodes. Nodes were not read because none of our drains is known.
    Jobs(usize),
    /// All nodes, and the number of jobs that hold some of them. The jobs were read after the nodes, so no job has
    /// started since on a node that was drained then.
    Full {
        nodes: BTreeMap<NodeName, SlurmNode>,
        jobs: usize,
    },
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Slurm runs as it should, and none of our drains is left.
    Nothing,
    /// Record that nodes are about to be drained for the change.
    Record(String),
    /// Drain these nodes.
    Drain(Vec<NodeName>),
    /// Record that slurmctld gets the change, and give it the change.
    Switch(String),
    /// Record that slurmctld has applied the change.
    Open,
    /// Resume the nodes that were drained for this.
    Restore {
        undrain: Vec<NodeName>,
        /// Nodes that went down in the meantime and are back.
        resume: Vec<NodeName>,
    },
    /// Remove the record.
    Forget,
    /// Check again later.
    Wait(Wait),
}

/// What blocks the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// Slurm does not answer.
    Silence(String),
    /// This many jobs run.
    Jobs(usize),
    /// These nodes are starting and have not registered yet.
    Starting(Vec<NodeName>),
    /// slurmctld has not applied the change yet.
    TakingIn,
    /// These nodes have not registered with the restarted slurmctld yet.
    Registration(Vec<NodeName>),
}

/// Reports whether the node was drained for such a change. Slurm 24.11 keeps the reason after the drain is over.
pub fn is_ours(node: &SlurmNode) -> bool {
    node.reason == QUIESCE_REASON && is_drained_or_draining(node)
}

/// Reports whether such a node is to be resumed, now or soon. A node that is down and unregistered may never come back.
pub fn is_due(node: &SlurmNode) -> bool {
    is_ours(node) && !(node.down() && node.registered.is_none())
}

pub fn plan(facts: &Facts) -> Step {
    match &facts.change {
        Some(change) => prepare(facts, change),
        None => finish(facts),
    }
}

/// Decides before slurmctld was given the change.
fn prepare(facts: &Facts, change: &str) -> Step {
    let is_recorded = facts.recorded.as_ref().and_then(Record::change) == Some(change);
    let is_switched = matches!(facts.recorded, Some(Record::Switched(_)));
    match &facts.slurm {
        // slurmctld did not survive what it was given. No job has started since the nodes were drained for that, so it
        // may be given something else.
        Reading::Unknown(_) if is_switched && facts.is_down => Step::Switch(change.to_owned()),
        Reading::Unknown(why) => Step::Wait(Wait::Silence(why.clone())),
        // Before anything is drained: a worker that does not come up would keep all nodes drained.
        Reading::Jobs(0) if !facts.starting.is_empty() => {
            Step::Wait(Wait::Starting(facts.starting.iter().cloned().collect()))
        }
        Reading::Jobs(0) => Step::Record(change.to_owned()),
        Reading::Jobs(jobs) => Step::Wait(Wait::Jobs(*jobs)),
        // A slurmctld that is about to change must not start more jobs.
        Reading::Full { jobs, .. } if *jobs > 0 && facts.is_taking_in => Step::Wait(Wait::Jobs(*jobs)),
        // From now on it must not be assumed that no job has started.
        Reading::Full { jobs, .. } if *jobs > 0 && is_switched => Step::Record(change.to_owned()),
        // A job started before the drain reached its node: resume the nodes until it has ended.
        Reading::Full { nodes, jobs } if *jobs > 0 => restore(nodes, |_| true).unwrap_or_else(|| {
            if facts.recorded.is_some() {
                Step::Forget
            } else {
                Step::Wait(Wait::Jobs(*jobs))
            }
        }),
        // What slurmctld may have been given stays on record until it is given something else.
        Reading::Full { .. } if !is_recorded && !is_switched => Step::Record(change.to_owned()),
        Reading::Full { nodes, .. } => drain(nodes).unwrap_or_else(|| {
            let has_registered =
                |name: &NodeName| nodes.get(name).is_some_and(|node| node.registered.is_some());
            let starting: Vec<NodeName> = facts
                .starting
                .iter()
                .filter(|name| !has_registered(name))
                .cloned()
                .collect();
            if starting.is_empty() {
                Step::Switch(change.to_owned())
            } else {
                Step::Wait(Wait::Starting(starting))
            }
        }),
    }
}

/// Decides after slurmctld was given the change, or after the change was withdrawn.
fn finish(facts: &Facts) -> Step {
    let nodes = match &facts.slurm {
        Reading::Jobs(_) => return Step::Nothing,
        Reading::Unknown(why) => return Step::Wait(Wait::Silence(why.clone())),
        Reading::Full { nodes, .. } => nodes,
    };
    let is_over = facts.recorded == Some(Record::Over);
    // What slurmctld applies after that is another change, which kills no job.
    if facts.is_taking_in && !is_over {
        // Until then slurmctld would start jobs on nodes that register with it or come back.
        let more = facts.recorded.as_ref().and_then(|_| drain(nodes));
        return more.unwrap_or(Step::Wait(Wait::TakingIn));
    }
    if facts.recorded.is_some() && !is_over {
        return Step::Open;
    }
    // A slurmd with the old key cannot register, and jobs sent to it fail. Slurm does not power up drained nodes.
    let may_serve = |node: &SlurmNode| node.registered.is_some() || node.state.has(NodeFlag::PoweredDown);
    if let Some(step) = restore(nodes, may_serve) {
        return step;
    }
    let left: Vec<NodeName> = nodes
        .iter()
        .filter(|(_, node)| is_due(node))
        .map(|(name, _)| name.clone())
        .collect();
    if !left.is_empty() {
        return Step::Wait(Wait::Registration(left));
    }
    if facts.recorded.is_some() {
        Step::Forget
    } else {
        Step::Nothing
    }
}

/// Reports whether a job could start on the node, now or when its slurmd answers again. A node that someone else has
/// taken out of service keeps its reason; if it comes back, it is drained then.
pub fn takes_jobs(node: &SlurmNode) -> bool {
    let out = match node.state.base {
        // With ReturnToService it comes back by itself as soon as its slurmd does.
        NodeBase::Down => !node.was_silent(),
        NodeBase::Future => true,
        _ => false,
    };
    !is_drained_or_draining(node)
        && !out
        && !node.state.has(NodeFlag::Fail)
        && !node.state.has(NodeFlag::InvalidReg)
}

/// Drains the nodes that could start a job; `None` if there are none.
fn drain(nodes: &BTreeMap<NodeName, SlurmNode>) -> Option<Step> {
    let names: Vec<NodeName> = nodes
        .iter()
        .filter(|(_, node)| takes_jobs(node))
        .map(|(name, _)| name.clone())
        .collect();
    (!names.is_empty()).then_some(Step::Drain(names))
}

/// Resumes those of our drained nodes that may come back; `None` if there are none.
fn restore(nodes: &BTreeMap<NodeName, SlurmNode>, may: impl Fn(&SlurmNode) -> bool) -> Option<Step> {
    let names = |wanted: &dyn Fn(&SlurmNode) -> bool| -> Vec<NodeName> {
        nodes
            .iter()
            .filter(|(_, node)| is_ours(node) && may(node) && wanted(node))
            .map(|(name, _)| name.clone())
            .collect()
    };
    let undrain = names(&|node| !node.down());
    // A node that is down and does not answer starts no job; it is resumed when it is back.
    let resume = names(&|node| node.down() && node.registered.is_some() && node.state.is_responding());
    (!undrain.is_empty() || !resume.is_empty()).then_some(Step::Restore { undrain, resume })
}

fn is_drained_or_draining(node: &SlurmNode) -> bool {
    node.state.has(NodeFlag::Drain) && !node.state.has(NodeFlag::Undrain)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
