//! Carries out a plan and makes no decisions. If the state has changed since the plan was made, a step fails or does
//! nothing; it never does harm. Kubernetes and Slurm are behind traits, so the tests run this code against their model.

mod batches;
mod removal;
mod slurm;
mod workers;

use std::collections::BTreeMap;

use futures::{StreamExt, stream};

use self::batches::{Batches, Claim, Shown};
pub use self::workers::{Mark, PodPatch, Spot, StepError, Workers};
use super::facts::{ClaimOwner, Plan, PodId};
use crate::{
    slurm::{control::Control, facts::NodeName},
    wording::listed,
};

/// The maximum number of concurrent calls to the API server.
pub const AT_ONCE: usize = 32;

/// The number of names that an event lists.
pub const SHOWN: usize = 5;

/// The outcome of a plan.
#[derive(Debug, Default)]
pub struct Acted {
    pub failures: Vec<StepError>,
    /// Records that Slurm refused to delete, with its message.
    pub refused: Vec<(NodeName, String)>,
}

impl Acted {
    fn take(&mut self, results: impl IntoIterator<Item = Result<(), StepError>>) {
        self.failures.extend(results.into_iter().filter_map(Result::err));
    }
}

/// Carries out plans.
#[derive(Clone, Copy)]
pub struct Act<'a> {
    pub workers: &'a dyn Workers,
    /// Absent while there is no connection to Slurm.
    pub slurm: Option<&'a dyn Control>,
}

impl std::fmt::Debug for Act<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Act").finish_non_exhaustive()
    }
}

impl Act<'_> {
    /// Carries out a plan. Writes pod metadata first, because it must be recorded before Slurm is called; then changes
    /// Slurm, then pods.
    pub async fn run(&self, plan: &Plan) -> Acted {
        let Batches {
            patches,
            claims,
            changes,
            requeues,
            cancels,
            shown,
            removals,
            prunes,
            spots,
        } = Batches::of(&plan.steps);
        let mut acted = Acted::default();
        let held = self.patch(patches, &mut acted).await;
        let kept = self.own_claims(claims, &mut acted).await;
        if let Some(slurm) = self.slurm {
            acted.take(self.change_nodes(slurm, changes, &held).await);
            acted.take(self.end_jobs(slurm, &requeues, &cancels).await);
        }
        acted.take(self.show(shown).await);
        self.remove(removals, &kept, &mut acted).await;
        self.prune(prunes, &mut acted).await;
        acted.take(self.create(spots).await);
        // Calls finish in any order, but messages must not change from one reconcile to the next.
        acted.failures.sort_by_cached_key(ToString::to_string);
        acted.refused.sort();
        acted
    }

    /// Sends one patch per pod. Returns the Slurm nodes that must not be changed because their intent could not be
    /// written.
    async fn patch(&self, patches: BTreeMap<PodId, PodPatch>, acted: &mut Acted) -> Vec<NodeName> {
        let results: Vec<(PodId, Result<bool, StepError>)> = stream::iter(patches)
            .map(|(id, patch)| async move {
                let result = self.workers.patch(&id, &patch).await;
                (id, result)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut held = Vec::new();
        for (id, result) in results {
            if !matches!(result, Ok(true)) {
                held.extend(self.workers.look(&id).map(|pod| pod.node));
            }
            acted.take([result.map(drop)]);
        }
        held
    }

    /// Sets the owners of claims. Returns the pods to keep, because their claims would be left behind against the
    /// retention policy.
    async fn own_claims(&self, claims: Vec<Claim>, acted: &mut Acted) -> Vec<PodId> {
        let mut kept = Vec::new();
        for Claim { pod, name, owner } in claims {
            let result = self.workers.own_claim(&pod, &name, &owner).await;
            if result.is_err() && owner == ClaimOwner::Pod(pod.clone()) {
                kept.push(pod);
            }
            acted.take([result]);
        }
        kept
    }

    async fn show(&self, shown: Vec<Shown>) -> Vec<Result<(), StepError>> {
        stream::iter(shown)
            .map(|Shown { pod, set, drop }| async move { self.workers.show(&pod, &set, &drop).await })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await
    }

    async fn create(&self, spots: Vec<Spot>) -> Vec<Result<(), StepError>> {
        let results: Vec<Result<Option<String>, StepError>> = stream::iter(spots)
            .map(|spot| async move { self.workers.create(&spot).await })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut created: Vec<&String> = results.iter().flatten().flatten().collect();
        created.sort();
        if !created.is_empty() {
            let note = format!("created pods {}", listed(&created, SHOWN));
            self.workers
                .note(keelson_api::well_known::event::SUCCESSFUL_CREATE, note);
        }
        results.into_iter().map(|result| result.map(drop)).collect()
    }
}
