//! Delivers a configuration to slurmctld: chooses it, decides whether slurmctld may have it now, and tracks the result.
//!
//! `user_files` checks the user's files; `candidate` renders the wanted configuration; `baseline` is what slurmctld has
//! now; `change` decides what a step from there costs, `gres` for gres.conf; `choose` combines these; `quiesce` empties the cluster where
//! running jobs would not survive the step. `delivery` tracks the chosen configuration, `status_port` queries the pods;
//! `refusal` and `file_origin` explain slurmctld's errors.

pub mod baseline;
pub mod candidate;
pub mod change;
pub mod choose;
pub mod delivery;
pub mod file_origin;
pub mod gres;
pub mod quiesce;
mod refusal;
pub mod status_port;
pub mod user_files;

use keelson_api::well_known::annotation;
use keelson_runtime::{Key, apply::Writer, run::chain};
use serde_json::json;

use self::{
    candidate::Candidate,
    choose::{Chosen, choose, plain},
    refusal::Refusal,
};
use super::{
    build,
    observe::{Observed, observe_usage},
    validate::Validated,
};
use crate::{context::Context, problem::Problem};

/// Chooses what to publish. Where running jobs would not survive a change, this takes the next step towards a cluster
/// without jobs first.
pub async fn prepare(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    validated: &Validated,
) -> Result<Chosen, Problem> {
    let Validated::Internal(internal) = validated else {
        return Ok(plain(build::render(validated).map_err(invalid)?));
    };
    let candidate = Candidate::of(observed, internal)?;
    let usage = if candidate.needs_usage() {
        let key = Key::of(observed.controller.as_ref());
        observe_usage(context, &key, candidate.needs_gres()).await
    } else {
        None
    };
    let mut choice = choose(observed, internal, candidate, usage.as_ref())?;
    if let Some(refusal) = choice.refusal.take()
        && record(context, writer, observed, &refusal).await
    {
        choice.refuse(refusal.problem);
    }
    // A change that cannot be applied must not drain nodes first.
    let trial = plain(choice.rendered.clone());
    build::build(&observed.controller, validated, &trial, &observed.live).map_err(invalid)?;
    // The last query of Slurm, so that its result is still true when it is acted on.
    let changes = choice.changes(&observed.controller);
    let outcome = quiesce::advance(context, writer, observed, choice.baseline(), &changes).await;
    choice.settle(observed, internal, outcome)
}

fn invalid(error: impl std::error::Error + 'static) -> Problem {
    Problem::invalid(chain(&error))
}

/// Records a refusal on the Controller, unless that was done before; returns whether it is recorded. Otherwise the next
/// reconcile finds the same; until then the refused configuration stays published, and all nodes stay drained.
async fn record(context: &Context, writer: &Writer, observed: &Observed, refusal: &Refusal) -> bool {
    let Some(note) = &refusal.note else {
        return true;
    };
    let patch = json!({ "metadata": { "annotations": { annotation::REFUSED_CHANGE: note } } });
    match writer.merge(observed.controller.as_ref(), patch).await {
        Ok(written) => {
            context.caches.controllers.upsert(written);
            true
        }
        Err(error) => {
            tracing::warn!(error = chain(&error), "failed to record a refused configuration");
            false
        }
    }
}
