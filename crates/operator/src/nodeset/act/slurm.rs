//! Changes nodes and jobs in Slurm.

use std::collections::BTreeMap;

use keelson_api::well_known::event;

use super::{Act, SHOWN, StepError};
use crate::{
    slurm::{
        control::{Change, Control, Error},
        facts::{NodeName, SlurmNode},
    },
    wording::listed,
};

impl Act<'_> {
    pub(super) async fn change_nodes(
        &self,
        slurm: &dyn Control,
        changes: BTreeMap<Change, Vec<NodeName>>,
        held: &[NodeName],
    ) -> Vec<Result<(), StepError>> {
        let mut results = Vec::new();
        for (change, mut nodes) in changes {
            nodes.retain(|node| !held.contains(node));
            results.push(self.change(slurm, &change, nodes).await);
        }
        results
    }

    async fn change(
        &self,
        slurm: &dyn Control,
        change: &Change,
        mut nodes: Vec<NodeName>,
    ) -> Result<(), StepError> {
        if nodes.is_empty() {
            return Ok(());
        }
        let count = nodes.len();
        let failed = |source| StepError::Slurm { nodes: count, source };
        // Since the last read, a user may have drained the node or replaced the reason of our drain: that reason must
        // be kept.
        let still_due: Option<fn(&SlurmNode) -> bool> = match change {
            Change::Drain { .. } => Some(|node| !node.draining()),
            Change::Undrain => Some(SlurmNode::reason_is_ours),
            Change::Resume => Some(|node| node.down() && (node.reason_is_ours() || node.was_silent())),
            Change::Topology { .. } | Change::Features { .. } => None,
        };
        if let Some(still_due) = still_due {
            let now = slurm.nodes(&nodes).await.map_err(failed)?;
            nodes.retain(|name| now.get(name).is_some_and(still_due));
        }
        if nodes.is_empty() {
            return Ok(());
        }
        tracing::info!(?change, nodes = nodes.len(), first = ?nodes.first(), "updating Slurm nodes");
        match (slurm.change(&nodes, change).await, change) {
            (Ok(()), _) => {}
            // An old slurmrestd cannot change the topology. New workers set it when they register.
            (Err(Error::Unsupported(why)), Change::Topology { .. }) => {
                let note = format!(
                    "cannot change the topology of {}: {why}; upgrade slurmrestd, or replace the workers",
                    listed(&nodes, SHOWN)
                );
                self.workers.warn(event::TOPOLOGY_NOT_CHANGED, note);
            }
            (Err(source), _) => return Err(failed(source)),
        }
        let told = match change {
            Change::Drain { reason } => Some((
                event::DRAINING,
                format!("draining {}: {reason}", listed(&nodes, SHOWN)),
            )),
            Change::Undrain | Change::Resume => {
                Some((event::RESUMED, format!("resumed {}", listed(&nodes, SHOWN))))
            }
            Change::Topology { .. } | Change::Features { .. } => None,
        };
        if let Some((reason, note)) = told {
            self.workers.note(reason, note);
        }
        Ok(())
    }

    /// Requeues and cancels jobs on draining workers after `drain.timeout`.
    pub(super) async fn end_jobs(
        &self,
        slurm: &dyn Control,
        requeues: &[String],
        cancels: &[String],
    ) -> Vec<Result<(), StepError>> {
        let mut results = Vec::new();
        if !requeues.is_empty() {
            let note = format!(
                "drain.timeout expired, requeuing jobs {}",
                listed(requeues, SHOWN)
            );
            self.workers.warn(event::DRAIN_TIMEOUT, note);
            let answer = slurm.requeue(requeues).await;
            results.push(answer.map_err(|source| StepError::Jobs {
                verb: "requeue",
                jobs: requeues.len(),
                source,
            }));
        }
        if !cancels.is_empty() {
            let note = format!(
                "drain.timeout expired, cancelling jobs {}",
                listed(cancels, SHOWN)
            );
            self.workers.warn(event::DRAIN_TIMEOUT, note);
            let answer = slurm.cancel(cancels).await;
            results.push(answer.map_err(|source| StepError::Jobs {
                verb: "cancel",
                jobs: cancels.len(),
                source,
            }));
        }
        results
    }
}
