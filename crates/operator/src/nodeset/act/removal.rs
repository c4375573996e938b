//! Pods and records that go. Slurm is asked once more before each: the plan's reading may be a second old.

use futures::{StreamExt, stream};
use keelson_api::well_known::event;

use super::{AT_ONCE, Act, Acted, StepError, batches::Removal};
use crate::{
    nodeset::{
        facts::{NextRecord, Phase, PodFacts, PodId},
        plan::serves,
    },
    slurm::{
        control::{Control, Error},
        facts::{NodeName, SlurmNode},
    },
};

/// What came of one removal: done, or Slurm's words against it.
type Outcome = Result<Option<(NodeName, String)>, StepError>;

fn ask(node: &NodeName) -> impl FnOnce(Error) -> StepError + use<> {
    let node = node.clone();
    |source| StepError::Ask { node, source }
}

impl Act<'_> {
    pub(super) async fn remove(&self, removals: Vec<Removal>, kept: &[PodId], acted: &mut Acted) {
        let removals = removals
            .into_iter()
            .filter(|removal| !kept.contains(removal.pod()));
        let outcomes: Vec<Outcome> = stream::iter(removals)
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
        for outcome in outcomes {
            match outcome {
                Ok(refused) => acted.refused.extend(refused),
                Err(error) => acted.failures.push(error),
            }
        }
    }

    /// It may have started since the plan was made; if it starts after this look, the deletion is refused, as it is for
    /// the pod as it was looked at. The kubelet may be behind: Slurm is asked whether it has heard of the worker.
    async fn discard(&self, id: &PodId) -> Outcome {
        let Some(pod) = self.workers.look(id).filter(PodFacts::is_empty) else {
            return Ok(None);
        };
        if let (Some(slurm), Some(_)) = (
            self.slurm,
            pod.machine.as_ref().filter(|_| pod.phase != Phase::Ended),
        ) {
            // Without an answer the kubelet's word counts: it names what keeps slurmd from starting.
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
            tracing::info!(%node, pod = pod.name, "no longer drained, or by somebody else; keeping the pod");
            // What is noted of its record must not be taken back.
            return if renews {
                Err(StepError::NotRenewed { node: node.clone() })
            } else {
                Ok(None)
            };
        }
        // Where the record has to stay nothing runs there all the same, and the update goes on.
        let kept_for = match record {
            NextRecord::Renewed if self.is_there(pod) && now.is_some() => match slurm.delete(node).await {
                Err(Error::Refused(why)) => Some(why),
                other => {
                    other.map_err(ask(node))?;
                    None
                }
            },
            NextRecord::Kept { why } => Some(format!("{why}; they are renewed when that is over")),
            NextRecord::Renewed | NextRecord::Stays => None,
        };
        if let Some(why) = kept_for {
            let text = format!(
                "node {node} keeps the resources and features that Slurm knows: {why}; to have them renewed at once, drain it and \
                 run `scontrol delete nodename={node}`, and it registers again by itself"
            );
            self.workers.warn(event::NODE_NOT_RENEWED, text);
        }
        self.delete(pod).await
    }

    /// Slurm is the referee: a node on which a job runs cannot be deleted. The record of a pod that is gone already may be
    /// its successor's by now.
    async fn retire(&self, pod: &PodId, node: &NodeName) -> Outcome {
        if !self.is_there(pod) {
            return Ok(None);
        }
        let Some(slurm) = self.slurm else { return Ok(None) };
        match slurm.delete(node).await {
            Ok(()) => self.delete(pod).await,
            Err(Error::Refused(why)) => Ok(Some((node.clone(), why))),
            Err(source) => Err(ask(node)(source)),
        }
    }

    /// Records that no worker serves. Slurm refuses while a job is there.
    pub(super) async fn prune(&self, nodes: Vec<NodeName>, acted: &mut Acted) {
        let Some(slurm) = self.slurm else { return };
        for node in nodes {
            match self.prune_one(slurm, &node).await {
                Ok(refused) => acted.refused.extend(refused),
                Err(error) => acted.failures.push(error),
            }
        }
    }

    async fn prune_one(&self, slurm: &dyn Control, node: &NodeName) -> Outcome {
        let now = slurm.node(node).await.map_err(ask(node))?;
        // Somebody may have brought it back to life.
        let is_dead = |now: &SlurmNode| {
            !now.busy()
                && (now.down() || !now.state.is_responding() || (now.draining() && now.reason_is_ours()))
        };
        if !now.as_ref().is_some_and(is_dead) {
            return Ok(None);
        }
        match slurm.delete(node).await {
            Ok(()) => {
                let text = format!("deleted the record of node {node}: its worker is gone");
                self.workers.note(event::DEFUNCT_SLURM_NODE_PRUNED, text);
                Ok(None)
            }
            Err(Error::Refused(why)) => Ok(Some((node.clone(), why))),
            Err(source) => Err(ask(node)(source)),
        }
    }

    fn is_there(&self, pod: &PodId) -> bool {
        self.workers.look(pod).is_some_and(|pod| !pod.terminating)
    }

    async fn delete(&self, pod: &PodId) -> Outcome {
        if self.workers.delete(pod).await? {
            self.workers
                .note(event::SUCCESSFUL_DELETE, format!("deleted pod {}", pod.name));
        }
        Ok(None)
    }
}
