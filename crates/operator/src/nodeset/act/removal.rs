//! Removes pods and node records. Slurm is queried again before each removal: the plan's data may be a second old.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, stream};
use keelson_api::well_known::event;
use tokio::time::Instant;

use super::{AT_ONCE, Act, Acted, SHOWN, StepError, batches::Removal};
use crate::{
    nodeset::{
        facts::{NextRecord, Phase, PodFacts, PodId},
        plan::serves,
    },
    slurm::{
        control::{Control, Error},
        facts::{NodeName, SlurmNode},
    },
    wording::listed,
};

/// The outcome of one removal: done, or refused with Slurm's message.
type Outcome = Result<Option<(NodeName, String)>, StepError>;

fn ask(node: &NodeName) -> impl FnOnce(Error) -> StepError + use<> {
    let node = node.clone();
    |source| StepError::Ask { node, source }
}

/// How long after the deletion of its record a pod is deleted without asking Slurm again. slurmd registers again when it
/// restarts, and `init` makes it do so after 20 s.
const UNTIL_REGISTRATION: Duration = Duration::from_secs(3);
/// The deletion of the pod is given up this long after that of its record, before `init` makes slurmd register: the API
/// server drops a call that its client has given up, instead of deleting a worker that may have a job by then. Only a
/// slurmd that restarts by itself in the meantime could register earlier.
const LATEST: Duration = Duration::from_secs(15);

fn is_unreachable(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Err(StepError::Ask {
            source: Error::Unreachable(_),
            ..
        })
    )
}

/// Reports whether a node without a worker is out of service: it may be back since the plan was made.
fn is_dead(node: &SlurmNode) -> bool {
    let gone = node.down() || !node.state.is_responding() || (node.draining() && node.reason_is_ours());
    gone && !node.busy()
}

impl Acted {
    fn removed(&mut self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            match outcome {
                Ok(refused) => self.refused.extend(refused),
                Err(error) => self.failures.push(error),
            }
        }
    }
}

impl Act<'_> {
    pub(super) async fn remove(&self, removals: Vec<Removal>, kept: &[PodId], acted: &mut Acted) {
        let kept: BTreeSet<&PodId> = kept.iter().collect();
        let mut leavers = Vec::new();
        let mut others = Vec::new();
        for removal in removals {
            match removal {
                removal if kept.contains(removal.pod()) => {}
                Removal::Retire { pod, node } => leavers.push((pod, node)),
                removal => others.push(removal),
            }
        }
        let outcomes: Vec<Outcome> = stream::iter(others)
            .map(|removal| async move {
                match removal {
                    Removal::Discard { pod } => self.discard(&pod).await,
                    Removal::Force { pod } => self.delete(&pod).await,
                    Removal::Replace { pod, node, record } => self.replace(&pod, &node, &record).await,
                    Removal::Retire { pod, node } => self.retire(&pod, &node).await,
                }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        // Each call that Slurm does not answer takes half a minute.
        let mut silent = outcomes.iter().any(is_unreachable);
        acted.removed(outcomes);
        for batch in leavers.chunks(AT_ONCE) {
            if silent {
                return;
            }
            let outcomes = self.retire_all(batch).await;
            silent = outcomes.iter().any(is_unreachable);
            acted.removed(outcomes);
        }
    }

    /// Deletes several records in one call. Returns false if Slurm refused, which says nothing about any of them.
    async fn delete_records(slurm: &dyn Control, nodes: &[NodeName]) -> Result<bool, StepError> {
        let [first, _, ..] = nodes else { return Ok(false) };
        match slurm.delete(nodes).await {
            Ok(()) => Ok(true),
            Err(Error::Refused(_)) => Ok(false),
            Err(source) => Err(ask(first)(source)),
        }
    }

    /// Deletes the records of several workers in one call, then the pods. If Slurm refuses one, each is deleted by itself,
    /// which shows which one has jobs.
    async fn retire_all(&self, leavers: &[(PodId, NodeName)]) -> Vec<Outcome> {
        // If the pod is already gone, the record may belong to its successor.
        let leavers = leavers.iter().filter(|(pod, _)| self.is_there(pod));
        let leavers: Vec<(PodId, NodeName)> = leavers.cloned().collect();
        let nodes: Vec<NodeName> = leavers.iter().map(|(_, node)| node.clone()).collect();
        let Some(slurm) = self.slurm else { return vec![] };
        let begun = Instant::now();
        let deleted = match Self::delete_records(slurm, &nodes).await {
            Ok(deleted) => deleted,
            Err(error) => return vec![Err(error)],
        };
        stream::iter(leavers)
            .map(|(pod, node)| async move {
                // Later, slurmd may have registered again and have a job.
                if deleted && begun.elapsed() < UNTIL_REGISTRATION {
                    self.delete_since(&pod, begun).await
                } else {
                    self.retire(&pod, &node).await
                }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await
    }

    /// Deletes the pod after checking again that it has not started. If it starts after this check, the deletion fails
    /// on its resource version. The kubelet may be behind, so Slurm is asked whether the worker has registered.
    async fn discard(&self, id: &PodId) -> Outcome {
        let Some(pod) = self.workers.look(id).filter(PodFacts::is_empty) else {
            return Ok(None);
        };
        if let (Some(slurm), Some(_)) = (
            self.slurm,
            pod.kube_node.as_ref().filter(|_| pod.phase != Phase::Ended),
        ) {
            // If Slurm does not answer, the kubelet decides: it reports why slurmd cannot start.
            let known = slurm.node(&pod.node).await.ok().flatten();
            if known.is_some_and(|node| serves(&pod, &node)) {
                return Ok(None);
            }
        }
        self.delete(id).await
    }

    async fn replace(&self, pod: &PodId, node: &NodeName, record: &NextRecord) -> Outcome {
        let Some(slurm) = self.slurm else { return Ok(None) };
        let now = slurm.node(node).await.map_err(ask(node))?;
        let renews = *record == NextRecord::Renewed;
        let as_planned = |now: &SlurmNode| now.drained() && (now.reason_is_ours() || !renews);
        if now.as_ref().is_some_and(|now| !as_planned(now)) {
            tracing::info!(%node, pod = pod.name, "node is no longer drained, or was drained by someone else; keeping the pod");
            // The note about its record in the status must be kept.
            return if renews {
                Err(StepError::NotRenewed { node: node.clone() })
            } else {
                Ok(None)
            };
        }
        // Nothing runs on the node even if its record has to be kept, so the update continues.
        let kept_for = match record {
            NextRecord::Renewed if self.is_there(pod) && now.is_some() => {
                match slurm.delete(std::slice::from_ref(node)).await {
                    Err(Error::Refused(why)) => Some(why),
                    other => {
                        other.map_err(ask(node))?;
                        None
                    }
                }
            }
            NextRecord::Kept { why } => Some(format!("{why}; they will be updated after that")),
            NextRecord::Renewed | NextRecord::Stays => None,
        };
        if let Some(why) = kept_for {
            let text = format!(
                "node {node} keeps its old resources and features in Slurm: {why}; to update them now, drain it and run \
                 `scontrol delete nodename={node}`; it then registers again"
            );
            self.workers.warn(event::NODE_NOT_RENEWED, text);
        }
        self.delete(pod).await
    }

    /// Deletes the node's record, then the pod. Slurm refuses to delete a node with running jobs. If the pod is already
    /// gone, the record may belong to its successor.
    async fn retire(&self, pod: &PodId, node: &NodeName) -> Outcome {
        if !self.is_there(pod) {
            return Ok(None);
        }
        let Some(slurm) = self.slurm else { return Ok(None) };
        let begun = Instant::now();
        match slurm.delete(std::slice::from_ref(node)).await {
            Ok(()) => self.delete_since(pod, begun).await,
            Err(Error::Refused(why)) => Ok(Some((node.clone(), why))),
            Err(source) => Err(ask(node)(source)),
        }
    }

    /// Deletes records without a worker. Slurm refuses while jobs run on the node.
    pub(super) async fn prune(&self, nodes: Vec<NodeName>, acted: &mut Acted) {
        let Some(slurm) = self.slurm else { return };
        for batch in nodes.chunks(AT_ONCE) {
            let outcomes = self.prune_all(slurm, batch).await;
            let silent = outcomes.iter().any(is_unreachable);
            acted.removed(outcomes);
            if silent {
                return;
            }
        }
    }

    /// Deletes several records in one call. If Slurm refuses one, each is deleted by itself.
    async fn prune_all(&self, slurm: &dyn Control, nodes: &[NodeName]) -> Vec<Outcome> {
        let Some(first) = nodes.first() else { return vec![] };
        let now = match slurm.nodes(nodes).await {
            Ok(now) => now,
            Err(source) => return vec![Err(ask(first)(source))],
        };
        let dead: Vec<NodeName> = now
            .into_iter()
            .filter_map(|(name, node)| is_dead(&node).then_some(name))
            .collect();
        match Self::delete_records(slurm, &dead).await {
            Ok(true) => {
                self.tell_of_pruned(&dead);
                vec![]
            }
            Ok(false) => {
                stream::iter(dead)
                    .map(|node| async move { self.prune_one(slurm, &node).await })
                    .buffer_unordered(AT_ONCE)
                    .collect()
                    .await
            }
            Err(error) => vec![Err(error)],
        }
    }

    async fn prune_one(&self, slurm: &dyn Control, node: &NodeName) -> Outcome {
        let one = std::slice::from_ref(node);
        match slurm.delete(one).await {
            Ok(()) => {
                self.tell_of_pruned(one);
                Ok(None)
            }
            Err(Error::Refused(why)) => Ok(Some((node.clone(), why))),
            Err(source) => Err(ask(node)(source)),
        }
    }

    fn tell_of_pruned(&self, nodes: &[NodeName]) {
        let text = match nodes {
            [node] => format!("deleted the Slurm record of node {node}: its worker no longer exists"),
            nodes => format!(
                "deleted the Slurm records of nodes {}: their workers no longer exist",
                listed(nodes, SHOWN)
            ),
        };
        self.workers.note(event::DEFUNCT_SLURM_NODE_PRUNED, text);
    }

    fn is_there(&self, pod: &PodId) -> bool {
        self.workers.look(pod).is_some_and(|pod| !pod.terminating)
    }

    /// Deletes a pod whose record was deleted at this time or later. If that was long ago, the next reconcile finds out
    /// whether slurmd has registered again.
    async fn delete_since(&self, pod: &PodId, begun: Instant) -> Outcome {
        match LATEST.checked_sub(begun.elapsed()) {
            Some(left) => self.delete_within(pod, left).await,
            None => Ok(None),
        }
    }

    async fn delete(&self, pod: &PodId) -> Outcome {
        self.delete_within(pod, Duration::MAX).await
    }

    async fn delete_within(&self, pod: &PodId, limit: Duration) -> Outcome {
        if self.workers.delete(pod, limit).await? {
            self.workers
                .note(event::SUCCESSFUL_DELETE, format!("deleted pod {}", pod.name));
        }
        Ok(None)
    }
}
