//! Computes the status of a NodeSet. Pure.

use std::collections::{BTreeMap, BTreeSet};

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
    slurm::facts::{NodeName, SlurmNode},
};

/// The input of a status.
#[derive(Debug)]
pub struct Seen<'a> {
    pub observed: &'a Observed,
    pub plan: &'a Plan,
    pub problem: Option<&'a Problem>,
    pub collisions: Option<i32>,
    /// The condition of the maintenance window of a scheduled update.
    pub reservation: Option<Finding>,
    /// The outcome of the plan.
    pub acted: &'a Acted,
    /// Why slurmctld does not have the partition as specified.
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
    let served = pods.iter().filter_map(|pod| observed.slurm.node(&pod.node));
    let left = records_of_the_gone(observed).map(|(_, node)| node);
    let nodes: Vec<&SlurmNode> = served.chain(left).collect();
    // Unknown while Slurm does not answer.
    let in_slurm = |of: fn(&SlurmNode) -> bool| -> Option<i32> {
        let known = observed.slurm.is_known();
        count(nodes.iter().filter(|node| of(node)).count()).filter(|_| known)
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

/// Returns the Kubernetes node on which each ordinal runs or last ran, except nodes that are gone or no longer
/// eligible.
fn ordinal_to_node(nodeset: &NodeSet, observed: &Observed) -> Option<BTreeMap<String, String>> {
    if !nodeset.spec.pin_to_node || observed.set.mode != ScalingMode::StatefulSet {
        return None;
    }
    let fits = |kube_node: &String| {
        let facts = observed.kube_nodes.get(kube_node);
        facts.is_some_and(|facts| facts.fit != Fit::No)
    };
    let running = observed
        .pods
        .iter()
        .filter(|pod| pod.phase == Phase::Running && !pod.terminating)
        .filter_map(|pod| Some((pod.ordinal?, pod.kube_node.clone()?)));
    let known = observed.set.pins.clone().into_iter();
    let map: BTreeMap<String, String> = known
        .filter(|(_, kube_node)| fits(kube_node))
        .chain(running)
        .map(|(ordinal, kube_node)| (ordinal.to_string(), kube_node))
        .collect();
    Some(map)
}

/// Returns the nodes whose Slurm record does not match the latest workers, with the revision that created the record.
/// An entry is kept while the node has no worker, because nothing else records it.
pub fn outdated_nodes(observed: &Observed, plan: &Plan, failed: bool) -> BTreeMap<NodeName, String> {
    let records = &observed.set.records;
    let renewed: BTreeSet<&NodeName> = plan
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Replace {
                node,
                record: NextRecord::Renewed,
                ..
            } if !failed => Some(node),
            _ => None,
        })
        .collect();
    // Without a record, the next worker to register creates a new one.
    let gone = |node: &NodeName| observed.slurm.is_known() && observed.slurm.node(node).is_none();
    // Whether all workers of a node are of the latest kind. The revision of an older worker may not be the one that
    // created the record, so the entry is kept.
    let mut latest: BTreeMap<&NodeName, bool> = BTreeMap::new();
    for pod in &observed.pods {
        let is_latest = !pod.reshaped && pod.revision == observed.set.revision;
        *latest.entry(&pod.node).or_insert(true) &= is_latest;
    }
    let of_its_kind = |node: &NodeName| latest.get(node).copied().unwrap_or(false);
    let noted = records
        .iter()
        .filter(|(node, _)| !gone(node) && !of_its_kind(node))
        .map(|(node, by)| (node.clone(), by.clone()));
    // The record of a removed worker may be deleted already, and an outdated read does not show that.
    let there = |node: &NodeName| observed.slurm.node(node).is_some_and(|node| !node.outdated);
    let found = observed
        .pods
        .iter()
        .filter(|pod| pod.reshaped && there(&pod.node))
        .map(|pod| (pod.node.clone(), pod.revision.clone()));
    found
        .chain(noted)
        .filter(|(node, _)| !renewed.contains(node))
        .collect()
}

/// Returns the Slurm names of the workers as a hostlist.
fn hostlist(observed: &Observed) -> Option<String> {
    let names = observed.pods.iter().map(|pod| pod.node.0.as_str());
    let list = slurm_rest::Hostlist::from_names(names).ok()?;
    (!list.is_empty()).then(|| list.to_string())
}
