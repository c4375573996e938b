//! What is changed in Slurm.

use std::collections::BTreeMap;

use keelson_api::well_known::event;

use super::{Act, StepError, listed};
use crate::{
    nodeset::facts::Step,
    slurm::{
        control::{Change, Control},
        facts::{NodeName, SlurmNode},
    },
};

impl Act<'_> {
    /// One call per distinct change, whatever the number of nodes.
    pub(super) async fn change_slurm(&self, steps: &[Step], held: &[NodeName]) -> Vec<Result<(), StepError>> {
        let Some(slurm) = &self.slurm else { return vec![] };
        let mut changes: BTreeMap<Change, Vec<NodeName>> = BTreeMap::new();
        for step in steps {
            let (node, change) = match step {
                Step::Drain { node, reason } => (
                    node,
                    Change::Drain {
                        reason: reason.clone(),
                    },
                ),
                Step::PlaceNode { node, topology } => (
                    node,
                    Change::Topology {
                        topology: topology.clone(),
                    },
                ),
                Step::SetFeatures {
                    node,
                    features,
                    active,
                } => (
                    node,
                    Change::Features {
                        features: features.clone(),
                        active: active.clone(),
                    },
                ),
                Step::Undrain { node } => (node, Change::Undrain),
                Step::Resume { node } => (node, Change::Resume),
                _ => continue,
            };
            if !held.contains(node) {
                changes.entry(change).or_default().push(node.clone());
            }
        }
        let mut results = Vec::new();
        for (change, nodes) in changes {
            results.push(self.change_nodes(slurm.as_ref(), &change, nodes).await);
        }
        for step in steps {
            if let Step::EndJobs { jobs, requeue } = step {
                let note = format!(
                    "the time for jobs on leaving workers is over, ending {}",
                    jobs.len()
                );
                self.context.events.warning(self.nodeset, "DrainTimeout", note);
                let ended = slurm.end_jobs(jobs, *requeue).await;
                results.push(ended.map_err(|source| StepError::Jobs {
                    jobs: jobs.len(),
                    source,
                }));
            }
        }
        results
    }

    async fn change_nodes(
        &self,
        slurm: &dyn Control,
        change: &Change,
        mut nodes: Vec<NodeName>,
    ) -> Result<(), StepError> {
        let count = nodes.len();
        let failed = |source| StepError::Slurm { nodes: count, source };
        // Somebody may have drained the node, or made our drain theirs, since it was read: their reason must stay.
        let still_due: Option<fn(&SlurmNode) -> bool> = match change {
            Change::Drain { .. } => Some(|node| !node.draining()),
            Change::Undrain | Change::Resume => Some(SlurmNode::reason_is_ours),
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
        slurm.change(&nodes, change).await.map_err(failed)?;
        let told = match change {
            Change::Drain { reason } => Some((
                event::DRAINING,
                format!("no new jobs for {}: {reason}", listed(&nodes)),
            )),
            Change::Undrain | Change::Resume => {
                Some((event::RESUMED, format!("{} may have jobs again", listed(&nodes))))
            }
            Change::Topology { .. } | Change::Features { .. } => None,
        };
        if let Some((reason, note)) = told {
            self.context.events.normal(self.nodeset, reason, note);
        }
        Ok(())
    }
}
