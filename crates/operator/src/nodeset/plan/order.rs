//! The order in which workers are removed: those that cost least first. Pure.

use std::cmp::Reverse;

use jiff::Timestamp;

use crate::{
    nodeset::facts::{Phase, PodFacts},
    slurm::facts::SlurmNode,
};

/// Smaller ranks are removed first. The order of the criteria is Slinky's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank<'a> {
    assigned: bool,
    phase: Phase,
    ready: bool,
    cost: i32,
    /// Idle before busy; busy ones by the end of their jobs, unknown ends last.
    work: Work,
    not_cordoned: bool,
    ordinal: Reverse<Option<u32>>,
    ready_since: Reverse<Option<Timestamp>>,
    created: Reverse<Timestamp>,
    name: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Idle,
    Until(Timestamp),
    Unlimited,
}

pub fn rank<'a>(pod: &'a PodFacts, node: Option<&SlurmNode>) -> Rank<'a> {
    let work = match node {
        Some(node) if node.busy() => node.busy_until().map_or(Work::Unlimited, Work::Until),
        // It was not registered when Slurm was last read, but may have a job by now.
        None if pod.ready_since.is_some() => Work::Unlimited,
        Some(_) | None => Work::Idle,
    };
    Rank {
        assigned: pod.kube_node.is_some(),
        phase: pod.phase,
        ready: pod.ready_since.is_some(),
        cost: pod.deletion_cost,
        work,
        not_cordoned: !pod.cordoned && pod.intent.is_none(),
        ordinal: Reverse(pod.ordinal),
        ready_since: Reverse(pod.ready_since),
        created: Reverse(pod.created),
        name: &pod.name,
    }
}
