//! Records in Slurm of workers that are gone for good. Each counts towards `MaxNodeCount`.

use keelson_api::nodeset::ScalingMode;

use super::Draft;
use crate::{
    nodeset::facts::{Fit, KeptRecord, Leaving, Observed, SetFacts, Step},
    slurm::facts::{NodeName, Slurm, SlurmNode},
};

/// Records that workers of this NodeSet made and that neither a pod nor a machine stands for any more.
pub fn of(observed: &Observed) -> impl Iterator<Item = (&NodeName, &SlurmNode)> {
    let nodes = match &observed.slurm {
        Slurm::Unknown { .. } => None,
        Slurm::Known { nodes, .. } => Some(nodes),
    };
    let nodes = nodes.into_iter().flatten();
    let set = &observed.set;
    nodes.filter(|(name, node)| node.is_of(&set.namespace, &set.name, &set.uid) && !is_in_use(observed, name))
}

fn is_in_use(observed: &Observed, name: &NodeName) -> bool {
    if observed.pods.iter().any(|pod| pod.node == *name) {
        return true;
    }
    if observed.set.leaving != Leaving::No {
        return false;
    }
    match observed.set.mode {
        // A worker that is still to be made may take over the name.
        ScalingMode::StatefulSet => observed.pods.len() < observed.desired(),
        ScalingMode::DaemonSet => observed
            .machines
            .values()
            .any(|machine| machine.hostname == name.0 && machine.fit != Fit::No),
    }
}

/// Those of them that are to go.
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

/// In DaemonSet mode the user says what becomes of the record when its machine goes: it may come back.
fn are_pruned(set: &SetFacts) -> bool {
    set.mode == ScalingMode::StatefulSet || set.prune || set.leaving != Leaving::No
}

/// Why the record of a worker that is gone has to stay.
fn stands_against(node: &SlurmNode) -> Option<String> {
    let serves = node.state.is_responding() && !node.down();
    let Some(work) = &node.work else {
        return Some("the list of jobs has not been read".to_owned());
    };
    if node.busy() {
        return Some("jobs hold it".to_owned());
    }
    if node.draining() && !node.reason_is_ours() {
        return Some(format!("somebody drained it ({})", node.reason));
    }
    if serves && !node.draining() {
        return Some("its slurmd still answers".to_owned());
    }
    if !node.reservation.is_empty() {
        return Some(format!("it is in reservation {}", node.reservation));
    }
    match work.wanted_by.as_slice() {
        [] => None,
        [first, ..] => Some(format!(
            "pending job {first} names it: cancel the job, or have it take any node (`scontrol update job={first} reqnodelist=`)"
        )),
    }
}
