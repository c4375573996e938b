//! What is changed in Slurm.

use std::collections::BTreeMap;

use keelson_api::well_known::event;

use super::{Act, StepError, listed};
use crate::slurm::{
    control::{Change, Control, Error},
    facts::{NodeName, SlurmNode},
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
        // Somebody may have drained the node, or made our drain theirs, since it was read: their reason must stay.
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
        tracing::info!(?change, nodes = nodes.len(), first = ?nodes.first(), "changing Slurm nodes");
        match (slurm.change(&nodes, change).await, change) {
            (Ok(()), _) => {}
            // An old slurmrestd knows no topology. Workers that register anew tell theirs themselves.
            (Err(Error::Unsupported(why)), Change::Topology { .. }) => {
                let note = format!(
                    "the topology of {} stays as it was when they registered: {why}; use a newer slurmrestd, or replace the \
                     workers",
                    listed(&nodes)
                );
                self.workers.warn(event::TOPOLOGY_NOT_CHANGED, note);
            }
            (Err(source), _) => return Err(failed(source)),
        }
        let told = match change {
            Change::Drain { reason } => Some((
                event::DRAINING,
                format!("no new jobs for {}: {reason}", listed(&nodes)),
            )),
            Change::Undrain | Change::Resume => Some((event::RESUMED, format!("resumed {}", listed(&nodes)))),
            Change::Topology { .. } | Change::Features { .. } => None,
        };
        if let Some((reason, note)) = told {
            self.workers.note(reason, note);
        }
        Ok(())
    }

    /// The user's time for jobs on leaving workers is over.
    pub(super) async fn end_jobs(
        &self,
        slurm: &dyn Control,
        requeues: &[String],
        cancels: &[String],
    ) -> Vec<Result<(), StepError>> {
        let mut results = Vec::new();
        if !requeues.is_empty() {
            let note = format!("drain.timeout is over, requeuing jobs {}", listed(requeues));
            self.workers.warn(event::DRAIN_TIMEOUT, note);
            let answer = slurm.requeue(requeues).await;
            results.push(answer.map_err(|source| StepError::Jobs {
                verb: "requeue",
                jobs: requeues.len(),
                source,
            }));
        }
        if !cancels.is_empty() {
            let note = format!("drain.timeout is over, cancelling jobs {}", listed(cancels));
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
