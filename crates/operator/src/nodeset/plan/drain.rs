//! Decides which Slurm nodes are drained, and which pods are protected from eviction.

use std::{collections::HashSet, time::Duration};

use keelson_api::well_known::slurm::REASON_PREFIX;

use super::{Draft, Worker, remove::serves};
use crate::{
    nodeset::facts::{Cause, Phase, PodFacts, Step},
    slurm::facts::{NodeName, SlurmNode},
};

/// How often to check whether the last job on a drained node has ended.
pub(super) const JOBS_END: Duration = Duration::from_secs(10);

impl Draft<'_> {
    /// Drains nodes that have a reason to be drained, and undoes our drains whose reason no longer applies.
    pub(super) fn drains(&mut self) {
        // Two workers on one Kubernetes node share a Slurm node: a drain that one of them needs is not undone for the
        // other.
        let reasons: Vec<Option<String>> = self
            .workers
            .iter()
            .map(|worker| self.drain_reason(worker))
            .collect();
        let wanted: HashSet<&NodeName> = self
            .workers
            .iter()
            .zip(&reasons)
            .filter_map(|(worker, reason)| reason.as_ref().map(|_| &worker.facts.node))
            .collect();
        for (worker, reason) in self.workers.iter().zip(&reasons) {
            // A node that was changed since it was read is skipped until it has been read again.
            let Some(node) = worker.node.filter(|node| !node.outdated) else {
                continue;
            };
            let name = worker.facts.node.clone();
            match reason {
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
                // Without ReturnToService, slurmctld keeps a node down even when its slurmd responds again.
                None if !node.draining() && node.down() && (node.reason_is_ours() || node.was_silent()) => {
                    self.plan.steps.push(Step::Resume { node: name });
                }
                Some(_) | None => {}
            }
        }
    }

    /// Returns the reason to drain the worker, if there is one. The text is the same for all workers with the same
    /// cause, so they are drained in one call.
    fn drain_reason(&self, worker: &Worker<'_>) -> Option<String> {
        let pod = worker.facts;
        if let Some(intent) = &worker.intent {
            let what = match intent.cause {
                Cause::ScaleIn => "for scale-in",
                Cause::ModeSwitch => "for a switch of the scaling mode",
                Cause::Deletion => "for deletion of its NodeSet",
                Cause::Rollout => "for an update",
                Cause::Unregistered => "to register again",
                Cause::Unplaced => "because its Kubernetes node was deleted or no longer matches",
                Cause::Renamed => "because its Kubernetes node requests another host name",
                Cause::Duplicate => "because its Kubernetes node already has a worker",
            };
            return Some(format!("Pod is pending termination {what}"));
        }
        let kube_node = pod
            .kube_node
            .as_ref()
            .and_then(|name| self.observed.kube_nodes.get(name));
        match kube_node {
            Some(kube_node) if kube_node.cordoned => Some(match &kube_node.cordon_reason {
                Some(reason) => reason.clone(),
                None => "Kubernetes node was cordoned".to_owned(),
            }),
            _ => pod.cordoned.then(|| "Pod was cordoned".to_owned()),
        }
    }

    /// Protects each worker from eviction, from its creation until Slurm reports that it is drained and has no jobs.
    pub(super) fn protection(&mut self) {
        let undrained = |step: &Step| match step {
            Step::Undrain { node } => Some(node.clone()),
            _ => None,
        };
        let returning: HashSet<NodeName> = self.plan.steps.iter().filter_map(undrained).collect();
        for worker in &self.workers {
            let pod = worker.facts;
            // The worker of a node that this plan undrains is protected before a job can start on it.
            let returning = returning.contains(&pod.node);
            let node = worker.node;
            let drained = node.is_some_and(SlurmNode::proven_drained);
            if pod.protected && node.is_some_and(|node| node.draining() && !node.outdated) && !drained {
                // A suspended job may end without changing the state of its node.
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

/// Returns true if this pod is ready and serves the responding node, so the drain that was set to replace its
/// predecessor can be undone.
fn is_back(pod: &PodFacts, node: &SlurmNode) -> bool {
    serves(pod, node) && pod.ready_since.is_some() && node.state.is_responding()
}
