//! Which step comes next on the way to a change that running jobs would not survive. Pure.
//!
//! Nodes with the old slurm.key cannot talk to a slurmctld with the new one, and some parameters of slurm.conf end running
//! jobs. So slurmctld gets such a change only after every node was drained and a reading newer than the drains showed no
//! job on any of them. What was drained for this carries a reason of its own; only those nodes are brought back. Every step
//! can be repeated, so an operator that restarts between any two of them goes on from what it finds.

use std::collections::{BTreeMap, BTreeSet};

use keelson_api::well_known::slurm::{QUIESCE_OVER, QUIESCE_REASON, QUIESCE_SWITCHED};
use slurm_rest::node::{NodeBase, NodeFlag};

use crate::slurm::facts::{NodeName, SlurmNode};

/// What the next step depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The name of the change that slurmctld was not given yet.
    pub change: Option<String>,
    /// Whether slurmctld may still run with something else than it was given, or does not run.
    pub is_taking_in: bool,
    /// Whether no slurmctld is ready: none could have started a job unseen.
    pub is_down: bool,
    pub recorded: Option<Record>,
    /// Nodes of workers whose slurmd may be about to register for the first time: Slurm would give them a job at once.
    pub starting: BTreeSet<NodeName>,
    pub slurm: Reading,
}

/// How far a change is, as written down before each step that must not be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Nodes may have been drained for this change.
    Drained(String),
    /// slurmctld may have been given this change, with all nodes drained.
    Switched(String),
    /// slurmctld runs with the change; nodes are being brought back.
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

    /// The change that it is about, while that is not over.
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

/// What Slurm said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// Nothing, for this reason.
    Unknown(String),
    /// No drain of ours is known, so that only jobs were read: so many hold nodes.
    Jobs(usize),
    /// All nodes, and so many jobs that hold some of them. The jobs were read after the nodes: if a node was drained by
    /// then, no job has started on it since.
    Full {
        nodes: BTreeMap<NodeName, SlurmNode>,
        jobs: usize,
    },
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Slurm runs as it should, and no drain of ours is left.
    Nothing,
    /// Write down that nodes are going to be drained for the change.
    Record(String),
    /// Drain these.
    Drain(Vec<NodeName>),
    /// Write down that slurmctld gets the change, and give it.
    Switch(String),
    /// Write down that slurmctld has taken the change in.
    Open,
    /// Bring back what was drained for this.
    Restore {
        undrain: Vec<NodeName>,
        /// Those that have gone down meanwhile and are back.
        resume: Vec<NodeName>,
    },
    /// Remove what was written down.
    Forget,
    /// Look again later.
    Wait(Wait),
}

/// What holds it up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// Slurm does not answer.
    Silence(String),
    /// So many jobs run.
    Jobs(usize),
    /// These are starting and have not registered yet.
    Starting(Vec<NodeName>),
    /// slurmctld has not taken the change in yet.
    TakingIn,
    /// These have not registered with the restarted slurmctld.
    Registration(Vec<NodeName>),
}

/// Whether the node was drained for such a change. Slurm 24.11 keeps the reason after the drain is over.
pub fn is_ours(node: &SlurmNode) -> bool {
    node.reason == QUIESCE_REASON && is_drained_or_draining(node)
}

/// Whether such a node is to be brought back, now or soon. One that is down and has not registered may never come back.
pub fn is_due(node: &SlurmNode) -> bool {
    is_ours(node) && !(node.down() && node.registered.is_none())
}

pub fn plan(facts: &Facts) -> Step {
    match &facts.change {
        Some(change) => prepare(facts, change),
        None => finish(facts),
    }
}

/// slurmctld was not given the change yet.
fn prepare(facts: &Facts, change: &str) -> Step {
    let is_recorded = facts.recorded.as_ref().and_then(Record::change) == Some(change);
    let is_switched = matches!(facts.recorded, Some(Record::Switched(_)));
    match &facts.slurm {
        // slurmctld did not survive what it was given. No job has started since the nodes were drained for that, so it may
        // be given something else.
        Reading::Unknown(_) if is_switched && facts.is_down => Step::Switch(change.to_owned()),
        Reading::Unknown(why) => Step::Wait(Wait::Silence(why.clone())),
        // Before anything is drained: one that does not come up would keep all nodes so.
        Reading::Jobs(0) if !facts.starting.is_empty() => {
            Step::Wait(Wait::Starting(facts.starting.iter().cloned().collect()))
        }
        Reading::Jobs(0) => Step::Record(change.to_owned()),
        Reading::Jobs(jobs) => Step::Wait(Wait::Jobs(*jobs)),
        // A slurmctld that is about to change must not start more jobs.
        Reading::Full { jobs, .. } if *jobs > 0 && facts.is_taking_in => Step::Wait(Wait::Jobs(*jobs)),
        // From now on nobody may believe that no job has started.
        Reading::Full { jobs, .. } if *jobs > 0 && is_switched => Step::Record(change.to_owned()),
        // A job started before the drain reached its node: give the nodes back until it has ended.
        Reading::Full { nodes, jobs } if *jobs > 0 => restore(nodes, |_| true).unwrap_or_else(|| {
            if facts.recorded.is_some() {
                Step::Forget
            } else {
                Step::Wait(Wait::Jobs(*jobs))
            }
        }),
        // What slurmctld may have been given stays on record until it has something else.
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

/// slurmctld was given the change, or somebody took the change back.
fn finish(facts: &Facts) -> Step {
    let nodes = match &facts.slurm {
        Reading::Jobs(_) => return Step::Nothing,
        Reading::Unknown(why) => return Step::Wait(Wait::Silence(why.clone())),
        Reading::Full { nodes, .. } => nodes,
    };
    let is_over = facts.recorded == Some(Record::Over);
    // What slurmctld takes in after that is another change, which costs no job.
    if facts.is_taking_in && !is_over {
        // Until then slurmctld would start jobs on nodes that register with it or come back.
        let more = facts.recorded.as_ref().and_then(|_| drain(nodes));
        return more.unwrap_or(Step::Wait(Wait::TakingIn));
    }
    if facts.recorded.is_some() && !is_over {
        return Step::Open;
    }
    // A slurmd with the old key cannot register; a job that is sent to it fails. Slurm powers no drained node up.
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

/// Whether a job could start there, now or when its slurmd answers again. The reason of a node that somebody else has taken
/// out of service stays as it is; if that node comes back, it is drained then.
pub fn takes_jobs(node: &SlurmNode) -> bool {
    let out = match node.state.base {
        // With ReturnToService it is back by itself as soon as its slurmd is.
        NodeBase::Down => !node.was_silent(),
        NodeBase::Future => true,
        _ => false,
    };
    !is_drained_or_draining(node)
        && !out
        && !node.state.has(NodeFlag::Fail)
        && !node.state.has(NodeFlag::InvalidReg)
}

/// Drains those that could start a job; nothing when there is none.
fn drain(nodes: &BTreeMap<NodeName, SlurmNode>) -> Option<Step> {
    let names: Vec<NodeName> = nodes
        .iter()
        .filter(|(_, node)| takes_jobs(node))
        .map(|(name, _)| name.clone())
        .collect();
    (!names.is_empty()).then_some(Step::Drain(names))
}

/// Brings back those of our drained nodes that may come back; nothing when there is none.
fn restore(nodes: &BTreeMap<NodeName, SlurmNode>, may: impl Fn(&SlurmNode) -> bool) -> Option<Step> {
    let names = |wanted: &dyn Fn(&SlurmNode) -> bool| -> Vec<NodeName> {
        nodes
            .iter()
            .filter(|(_, node)| is_ours(node) && may(node) && wanted(node))
            .map(|(name, _)| name.clone())
            .collect()
    };
    let undrain = names(&|node| !node.down());
    // One that is down and does not answer starts no job; it is resumed when it is back.
    let resume = names(&|node| node.down() && node.registered.is_some() && node.state.is_responding());
    (!undrain.is_empty() || !resume.is_empty()).then_some(Step::Restore { undrain, resume })
}

fn is_drained_or_draining(node: &SlurmNode) -> bool {
    node.state.has(NodeFlag::Drain) && !node.state.has(NodeFlag::Undrain)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
