//! Which Slurm nodes take no new jobs, and which pods nobody may evict.

use std::{collections::BTreeSet, time::Duration};

use keelson_api::well_known::slurm::REASON_PREFIX;

use super::{Draft, Worker, remove::serves};
use crate::{
    nodeset::facts::{Cause, Phase, PodFacts, Step},
    slurm::facts::{NodeName, SlurmNode},
};

/// How often it is looked whether the last job on a drained node has ended.
pub(super) const JOBS_END: Duration = Duration::from_secs(10);

impl Draft<'_> {
    /// Drains what has a cause to be drained; undoes a drain of ours whose cause is over.
    pub(super) fn drains(&mut self) {
        // Two workers on a machine share a node: what one of them has to be drained for is not undone for the other.
        let wanted: BTreeSet<&NodeName> = self
            .workers
            .iter()
            .filter(|worker| self.drain_reason(worker).is_some())
            .map(|worker| &worker.facts.node)
            .collect();
        for worker in &self.workers {
            // What we changed since it was read is not judged again before it has been read.
            let Some(node) = self
                .slurm()
                .node(&worker.facts.node)
                .filter(|node| !node.outdated)
            else {
                continue;
            };
            let name = worker.facts.node.clone();
            match self.drain_reason(worker) {
                Some(reason) if !node.draining() => {
                    self.plan.steps.push(Step::Drain {
                        node: name,
                        reason: format!("{REASON_PREFIX}{reason}"),
                    });
                }
                None if wanted.contains(&name) => {}
                None if self.set.quiesced || !is_back(worker.facts, node) => {}
                None if node.draining() && node.reason_is_ours() => {
                    self.plan.steps.push(Step::Undrain { node: name });
                }
                // Without ReturnToService slurmctld leaves a node down whose slurmd was silent and is back.
                None if !node.draining() && node.down() && (node.reason_is_ours() || node.was_silent()) => {
                    self.plan.steps.push(Step::Resume { node: name });
                }
                Some(_) | None => {}
            }
        }
    }

    /// The same words for every worker with the same cause: Slurm takes one call for all of them.
    fn drain_reason(&self, worker: &Worker<'_>) -> Option<String> {
        let pod = worker.facts;
        if let Some(intent) = &worker.intent {
            let what = match intent.cause {
                Cause::ScaleIn => "for scale-in",
                Cause::ModeSwitch => "for a switch of the scaling mode",
                Cause::Deletion => "for deletion of its NodeSet",
                Cause::Rollout => "for an update",
                Cause::Unregistered => "to register again",
                Cause::Unplaced => "because its machine is gone or no longer fits",
                Cause::Renamed => "because its machine gives it another name",
                Cause::Duplicate => "because its machine has another worker",
            };
            return Some(format!("Pod is pending termination {what}"));
        }
        let machine = pod
            .machine
            .as_ref()
            .and_then(|name| self.observed.machines.get(name));
        match machine {
            Some(machine) if machine.cordoned => Some(match &machine.cordon_reason {
                Some(reason) => reason.clone(),
                None => "Kubernetes node was cordoned".to_owned(),
            }),
            _ => pod.cordoned.then(|| "Pod was cordoned".to_owned()),
        }
    }

    /// A worker is protected from its birth until Slurm says that it takes no jobs and has none.
    pub(super) fn protection(&mut self) {
        let undrained = |step: &Step| match step {
            Step::Undrain { node } => Some(node.clone()),
            _ => None,
        };
        let returning: BTreeSet<NodeName> = self.plan.steps.iter().filter_map(undrained).collect();
        for worker in &self.workers {
            let pod = worker.facts;
            // What goes back to work in this plan is protected before the first job can start on it.
            let returning = returning.contains(&pod.node);
            let node = self.slurm().node(&pod.node);
            let drained = node.is_some_and(SlurmNode::proven_drained);
            if pod.protected && node.is_some_and(|node| node.draining() && !node.outdated) && !drained {
                // A suspended job may end without a change of its node.
                self.plan.look_within(JOBS_END);
            }
            let wanted = self.set.protect && (returning || !drained);
            if wanted != pod.protected && pod.phase != Phase::Ended {
                self.plan.steps.push(Step::Protect {
                    pod: pod.id(),
                    protected: wanted,
                });
            }
        }
    }
}

/// Whether the node is served by this pod, so that a drain that made way for it has done its work.
fn is_back(pod: &PodFacts, node: &SlurmNode) -> bool {
    serves(pod, node) && pod.ready_since.is_some() && node.state.is_responding()
}
