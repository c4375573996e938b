//! What a person sees of a NodeSet. Pure.

use std::collections::BTreeMap;

use keelson_api::{
    NodeSet, NodeSetStatus,
    nodeset::ScalingMode,
    well_known::{app, condition, label, reason},
};
use kube::ResourceExt;
use slurm_rest::node::NodeBase;

use super::facts::{Fit, Observed, Phase, Plan, Wait, Why};
use crate::{
    conditions::{self, Finding},
    problem::Problem,
    slurm::facts::{Slurm, SlurmNode},
};

/// What a status is made from.
#[derive(Debug)]
pub struct Seen<'a> {
    pub observed: &'a Observed,
    pub plan: &'a Plan,
    pub problem: Option<&'a Problem>,
    pub collisions: Option<i32>,
    /// What there is to say of the window of a scheduled update.
    pub reservation: Option<Finding>,
}

pub fn compute(nodeset: &NodeSet, seen: &Seen<'_>) -> NodeSetStatus {
    let Seen {
        observed,
        plan,
        problem,
        collisions,
        reservation,
    } = seen;
    let (problem, collisions) = (*problem, *collisions);
    let before = nodeset.status.clone().unwrap_or_default();
    let pods = &observed.pods;
    let count = |n: usize| Some(i32::try_from(n).unwrap_or(i32::MAX));
    let min_ready =
        jiff::SignedDuration::try_from(observed.set.min_ready).unwrap_or(jiff::SignedDuration::MAX);
    let is_ready = |pod: &&super::facts::PodFacts| pod.phase == Phase::Running && pod.ready_since.is_some();
    let ready = pods.iter().filter(is_ready).count();
    let available = pods
        .iter()
        .filter(is_ready)
        .filter(|pod| {
            pod.ready_since
                .is_some_and(|since| observed.now.duration_since(since) >= min_ready)
        })
        .count();
    let desired = observed.desired();
    let updated = pods
        .iter()
        .filter(|pod| !pod.terminating && pod.revision == observed.set.revision)
        .count();
    // Without an answer nothing is claimed.
    let in_slurm = |of: fn(&SlurmNode) -> bool| -> Option<i32> {
        let Slurm::Known { nodes, .. } = &observed.slurm else {
            return None;
        };
        count(
            pods.iter()
                .filter_map(|pod| nodes.get(&pod.node))
                .filter(|node| of(node))
                .count(),
        )
    };
    NodeSetStatus {
        replicas: count(pods.len()),
        updated_replicas: count(updated),
        ready_replicas: count(ready),
        available_replicas: count(available),
        unavailable_replicas: count(desired.saturating_sub(available)),
        desired: count(desired),
        slurm_idle: in_slurm(|node| node.state.base == NodeBase::Idle),
        slurm_allocated: in_slurm(|node| matches!(node.state.base, NodeBase::Allocated | NodeBase::Mixed)),
        slurm_down: in_slurm(SlurmNode::down),
        slurm_drain: in_slurm(SlurmNode::draining),
        observed_generation: nodeset.metadata.generation,
        node_set_hash: observed.set.revision.clone(),
        collision_count: collisions.filter(|count| *count > 0),
        conditions: conditions::compute(
            &before.conditions,
            findings(observed, plan, problem, desired, available)
                .into_iter()
                .chain(reservation.clone())
                .collect(),
            nodeset.metadata.generation,
            observed.now,
        ),
        ordinal_to_node: ordinal_to_node(nodeset, observed),
        selector: format!(
            "{}={},{}={}",
            label::INSTANCE,
            nodeset.name_any(),
            label::APP,
            app::SLURMD
        ),
        hostlist: hostlist(observed),
    }
}

/// Where each ordinal runs or ran last. A machine that is gone or does not fit any more is forgotten.
fn ordinal_to_node(nodeset: &NodeSet, observed: &Observed) -> Option<BTreeMap<String, String>> {
    if !nodeset.spec.pin_to_node || observed.set.mode != ScalingMode::StatefulSet {
        return None;
    }
    let fits = |machine: &String| {
        let facts = observed.machines.get(machine);
        facts.is_some_and(|facts| facts.fit != Fit::No)
    };
    let running = observed
        .pods
        .iter()
        .filter(|pod| pod.phase == Phase::Running && !pod.terminating)
        .filter_map(|pod| Some((pod.ordinal?, pod.machine.clone()?)));
    let known = observed.set.pins.clone().into_iter();
    let map: BTreeMap<String, String> = known
        .filter(|(_, machine)| fits(machine))
        .chain(running)
        .map(|(ordinal, machine)| (ordinal.to_string(), machine))
        .collect();
    Some(map)
}

/// The workers as Slurm calls them.
fn hostlist(observed: &Observed) -> Option<String> {
    let names = observed.pods.iter().map(|pod| pod.node.0.as_str());
    let list = slurm_rest::Hostlist::from_names(names).ok()?;
    (!list.is_empty()).then(|| list.to_string())
}

fn findings(
    observed: &Observed,
    plan: &Plan,
    problem: Option<&Problem>,
    desired: usize,
    available: usize,
) -> Vec<Finding> {
    let workers = format!("{} of {desired} workers available", available.min(desired));
    let ready = match problem {
        Some(problem) => Finding::new(condition::READY, false, problem.reason, problem.message.clone()),
        None if available >= desired => Finding::new(condition::READY, true, reason::AS_SPECIFIED, workers),
        None => Finding::new(
            condition::READY,
            false,
            reason::STARTING,
            starting(observed, workers),
        ),
    };
    let old = observed
        .pods
        .iter()
        .filter(|pod| pod.revision != observed.set.revision)
        .count();
    let progressing = if observed.set.paused {
        Finding::new(
            condition::PROGRESSING,
            false,
            reason::PAUSED,
            "paused by a person: spec.paused=false goes on",
        )
    } else if !plan.waits.is_empty() {
        Finding::new(
            condition::PROGRESSING,
            true,
            reason::DRAINING,
            describe(&plan.waits),
        )
    } else if old > 0 {
        let message = format!("{old} workers are of an older revision");
        Finding::new(condition::PROGRESSING, true, reason::ROLLING_OUT, message)
    } else if observed.pods.len() != desired {
        let message = format!("{} workers exist, {desired} are wanted", observed.pods.len());
        Finding::new(condition::PROGRESSING, true, reason::SCALING, message)
    } else {
        Finding::new(condition::PROGRESSING, false, reason::AS_SPECIFIED, "")
    };
    let degraded = match (problem, &observed.slurm) {
        (Some(problem), _) => {
            Finding::new(condition::DEGRADED, true, problem.reason, problem.message.clone())
        }
        (None, Slurm::Unknown { why }) => {
            let message = format!("{why}; nothing that could end a job is done until Slurm answers");
            Finding::new(condition::DEGRADED, true, reason::SLURM_UNREACHABLE, message)
        }
        (None, Slurm::Known { .. }) => Finding::new(condition::DEGRADED, false, reason::AS_SPECIFIED, ""),
    };
    vec![ready, progressing, degraded]
}

/// One of the workers that do not come up, with the reason; the others have mostly the same.
fn starting(observed: &Observed, workers: String) -> String {
    let mut troubled = observed
        .pods
        .iter()
        .filter_map(|pod| Some((pod.name.as_str(), pod.trouble.as_deref()?)));
    let Some((pod, trouble)) = troubled.next() else {
        return workers;
    };
    let others = match troubled.count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    format!("{workers}; pod {pod}{others}: {trouble}")
}

/// What is waited for, with counts and the longest end.
fn describe(waits: &[Wait]) -> String {
    let count = |of: fn(&Why) -> bool| waits.iter().filter(|wait| of(&wait.why)).count();
    let busy = count(|why| matches!(why, Why::Jobs { .. }));
    let silent = count(|why| matches!(why, Why::SlurmUnknown));
    let reading = count(|why| matches!(why, Why::Reading));
    let suspect = count(|why| matches!(why, Why::SuspectLoss));
    let mut parts = Vec::new();
    if busy > 0 {
        let ends = waits.iter().filter_map(|wait| match wait.why {
            Why::Jobs { until } => Some(until),
            _ => None,
        });
        let ends: Option<Vec<_>> = ends.collect();
        let until = match ends.and_then(|ends| ends.into_iter().max()) {
            Some(latest) => format!("until {latest} at the latest"),
            None => "without a known end: spec.drain.timeout would set one".to_owned(),
        };
        let first = waits.iter().find(|wait| matches!(wait.why, Why::Jobs { .. }));
        let first = first.map_or("", |wait| wait.node.0.as_str());
        parts.push(format!(
            "jobs are running on {busy} leaving workers, such as {first}, {until}"
        ));
    }
    let wanted: Vec<u64> = waits
        .iter()
        .filter_map(|wait| match &wait.why {
            Why::Wanted { jobs } => Some(jobs.clone()),
            _ => None,
        })
        .flatten()
        .collect();
    if let Some(first) = wanted.first() {
        let node = waits.iter().find(|wait| matches!(wait.why, Why::Wanted { .. }));
        let node = node.map_or("", |wait| wait.node.0.as_str());
        parts.push(format!(
            "{} pending jobs, such as {first}, insist on leaving workers, such as {node}: cancel them, have them take any node \
             (`scontrol update job={first} reqnodelist=`), or keep the worker",
            wanted.len()
        ));
    }
    if silent > 0 {
        parts.push(format!("Slurm does not answer about {silent} leaving workers"));
    }
    if reading > 0 {
        parts.push(format!("{reading} workers are being drained"));
    }
    if suspect > 0 {
        let first = waits.iter().find(|wait| matches!(wait.why, Why::SuspectLoss));
        let first = first.map_or("", |wait| wait.pod.as_str());
        parts.push(format!(
            "Slurm does not know {suspect} leaving workers, such as {first}, nor most of the others: they never registered (the log of slurmd says why), or Slurm lost its state while jobs run on them; delete their pods by hand if no job does"
        ));
    }
    parts.join("; ")
}
