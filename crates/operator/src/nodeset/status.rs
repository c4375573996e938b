//! What a person sees of a NodeSet. Pure.

use std::collections::BTreeMap;

use keelson_api::{
    NodeSet, NodeSetStatus,
    nodeset::ScalingMode,
    well_known::{app, label},
};
use kube::ResourceExt;
use slurm_rest::node::NodeBase;

use super::{
    act::Acted,
    facts::{Fit, NextRecord, Observed, Phase, Plan, Step},
    findings::{self, findings},
    partition::with_partition,
    plan::records_of_the_gone,
};
use crate::{
    conditions::{self, Finding},
    problem::Problem,
    slurm::facts::{NodeName, Slurm, SlurmNode},
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
    /// What came of the plan.
    pub acted: &'a Acted,
    /// Why slurmctld does not have the partition as the spec says.
    pub partition: Option<Problem>,
}

pub fn compute(nodeset: &NodeSet, seen: &Seen<'_>) -> NodeSetStatus {
    let Seen {
        observed,
        plan,
        problem,
        collisions,
        reservation,
        acted,
        partition,
    } = seen;
    let (problem, collisions) = (*problem, *collisions);
    let before = nodeset.status.clone().unwrap_or_default();
    let pods = &observed.pods;
    let count = |n: usize| Some(i32::try_from(n).unwrap_or(i32::MAX));
    let is_ready = |pod: &&super::facts::PodFacts| pod.phase == Phase::Running && pod.ready_since.is_some();
    let ready = pods.iter().filter(is_ready).count();
    let available = findings::available(observed);
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
        let served = pods.iter().filter_map(|pod| nodes.get(&pod.node));
        let left = records_of_the_gone(observed).map(|(_, node)| node);
        count(served.chain(left).filter(|node| of(node)).count())
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
            with_partition(
                findings(observed, &before.conditions, plan, acted, problem),
                partition.as_ref(),
            )
            .into_iter()
            .chain(reservation.clone())
            .collect(),
            nodeset.metadata.generation,
            observed.now,
        ),
        ordinal_to_node: ordinal_to_node(nodeset, observed),
        outdated_nodes: Some(outdated_nodes(observed, plan, !acted.failures.is_empty()))
            .filter(|nodes| !nodes.is_empty())
            .map(|nodes| nodes.into_iter().map(|(node, by)| (node.0, by)).collect()),
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

/// Whose record in Slurm is of another kind than the newest workers, and by which revision. What was noted stays noted while
/// there is no worker: then nobody else knows.
pub fn outdated_nodes(observed: &Observed, plan: &Plan, failed: bool) -> BTreeMap<NodeName, String> {
    let records = &observed.set.records;
    let renewed = |node: &NodeName| {
        let renews = |step: &Step| matches!(step, Step::Replace { node: of, record: NextRecord::Renewed, .. } if of == node);
        !failed && plan.steps.iter().any(renews)
    };
    // The next record is of the worker that registers next.
    let gone = |node: &NodeName| observed.slurm.is_known() && observed.slurm.node(node).is_none();
    let of_its_kind = |node: &NodeName| {
        let mut pods = observed.pods.iter().filter(|pod| pod.node == *node).peekable();
        // Of an older worker it has to be known what made the record: its own revision does not say.
        pods.peek().is_some() && pods.all(|pod| !pod.reshaped && pod.revision == observed.set.revision)
    };
    let noted = records
        .iter()
        .filter(|(node, _)| !gone(node) && !of_its_kind(node))
        .map(|(node, by)| (node.clone(), by.clone()));
    // One that goes may have taken its record with it; what was written since it was read says nothing of that.
    let there = |node: &NodeName| observed.slurm.node(node).is_some_and(|node| !node.outdated);
    let found = observed
        .pods
        .iter()
        .filter(|pod| pod.reshaped && there(&pod.node))
        .map(|pod| (pod.node.clone(), pod.revision.clone()));
    found.chain(noted).filter(|(node, _)| !renewed(node)).collect()
}

/// The workers as Slurm calls them.
fn hostlist(observed: &Observed) -> Option<String> {
    let names = observed.pods.iter().map(|pod| pod.node.0.as_str());
    let list = slurm_rest::Hostlist::from_names(names).ok()?;
    (!list.is_empty()).then(|| list.to_string())
}
