//! Deletes Slurm records of workers that were removed for good, because each record counts towards `MaxNodeCount`.

use std::collections::HashSet;

use keelson_api::nodeset::ScalingMode;

use super::Draft;
use crate::{
    nodeset::facts::{Fit, KeptRecord, Leaving, Observed, SetFacts, Step},
    slurm::facts::{NodeName, Slurm, SlurmNode},
};

/// Returns the records that workers of this NodeSet created, that have no pod and that no future worker is expected to
/// use.
pub fn of(observed: &Observed) -> impl Iterator<Item = (&NodeName, &SlurmNode)> {
    let Observed {
        set,
        pods,
        kube_nodes,
        ..
    } = observed;
    let stays = set.leaving == Leaving::No;
    let nodes = match &observed.slurm {
        Slurm::Unknown { .. } => None,
        // A worker that is yet to be created may reuse any name.
        Slurm::Known { .. }
            if stays && set.mode == ScalingMode::StatefulSet && pods.len() < observed.desired() =>
        {
            None
        }
        Slurm::Known { nodes, .. } => Some(nodes),
    };
    let mut in_use: HashSet<&str> = pods.iter().map(|pod| pod.node.0.as_str()).collect();
    if stays && set.mode == ScalingMode::DaemonSet {
        let fitting = kube_nodes.values().filter(|kube_node| kube_node.fit != Fit::No);
        in_use.extend(fitting.map(|kube_node| kube_node.hostname.as_str()));
    }
    let nodes = nodes.into_iter().flatten();
    nodes.filter(move |(name, node)| {
        !in_use.contains(name.0.as_str()) && node.is_of(&set.namespace, &set.name, &set.uid)
    })
}

/// Returns the leftover records that should be deleted.
pub fn due(observed: &Observed) -> impl Iterator<Item = (&NodeName, &SlurmNode)> {
    of(observed).filter(|_| are_pruned(&observed.set))
}

impl Draft<'_> {
    pub(super) fn leftovers(&mut self) {
        for (name, node) in due(self.observed).filter(|(_, node)| !node.outdated) {
            match stands_against(node) {
                None => self.plan.steps.push(Step::Prune { node: name.clone() }),
                Some(why) => {
                    self.plan.look_within(super::drain::JOBS_END);
                    self.plan.kept.push(KeptRecord {
                        node: name.clone(),
                        why,
                    });
                }
            }
        }
    }
}

/// Returns true if leftover records are deleted. In DaemonSet mode the user decides whether records are deleted with
/// their Kubernetes node, which may come back.
fn are_pruned(set: &SetFacts) -> bool {
    set.mode == ScalingMode::StatefulSet || set.prune || set.leaving != Leaving::No
}

/// Returns why the record of a removed worker has to be kept, if it has to.
fn stands_against(node: &SlurmNode) -> Option<String> {
    let serves = node.state.is_responding() && !node.down();
    let Some(work) = &node.work else {
        return Some("the job list has not been read yet".to_owned());
    };
    if node.busy() {
        return Some("it still has jobs".to_owned());
    }
    if node.draining() && !node.reason_is_ours() {
        return Some(format!("it was drained by someone else ({})", node.reason));
    }
    if serves && !node.draining() {
        return Some("its slurmd is still responding".to_owned());
    }
    if !node.reservation.is_empty() {
        return Some(format!("it is in reservation {}", node.reservation));
    }
    match work.wanted_by.as_slice() {
        [] => None,
        [first, ..] => Some(format!(
            "pending job {first} requests it: cancel the job, or clear its node list (`scontrol update job={first} reqnodelist=`)"
        )),
    }
}
