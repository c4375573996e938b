//! Controller: slurmctld, its configuration and its Services.
//!
//! observe (reads) → validate, build (pure) → apply (writes) → status (writes).

mod apply;
mod basis;
mod build;
mod delivery;
mod error;
mod observe;
mod publish;
mod published;
mod status;
mod validate;

use std::{sync::Arc, time::Duration};

use keelson_api::{status::Condition, well_known::condition};
use keelson_runtime::{Key, Requeue, apply::Writer, run::chain};
use serde_json::json;

use delivery::Delivery;
pub use error::Error;
use status::Outcome;

use crate::{conditions, context::Context, pod_trouble, problem::Problem, teardown::Teardown};

/// A new configuration is on its way to the pod.
const LOOK_WHILE_DELIVERED: Duration = Duration::from_secs(1);
/// Jobs hold up a change.
const LOOK_WHILE_IN_USE: Duration = Duration::from_secs(5);

pub const MANAGER: &str = "slurm-operator/controller";

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(controller) = context.caches.controllers.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    let teardown = Teardown::of(controller.as_ref(), apply::users(&context, &key));
    if teardown == Teardown::Done {
        apply::release(&context, &writer, &controller).await?;
        return Ok(Requeue::OnChange);
    }
    if teardown == Teardown::Not && apply::make_missing_keys(&context, &writer, &controller).await? {
        // The watch reports the new Secret and brings us back.
        return Ok(Requeue::OnChange);
    }
    let mut observed = observe::observe(&context, Arc::clone(&controller)).await?;
    if teardown == Teardown::Not {
        apply::hold(&context, &writer, &observed).await?;
    }
    let chosen = match validate::validate(&observed) {
        Ok(mut validated) => publish::choose(&context, &observed, &mut validated)
            .await
            .and_then(|chosen| {
                let children = build::build(&controller, &validated, &chosen, &observed.live)
                    .map_err(|error| Problem::invalid(chain(&error)))?;
                Ok((chosen, children))
            }),
        Err(problem) => Err(problem),
    };
    let applied = match &chosen {
        Ok((_, children)) => match apply::apply(&context, &writer, children, &observed.live).await {
            Ok(()) => apply::replace_stuck(&writer, &observed.live).await,
            Err(error) => Err(Error::Apply(error)),
        },
        Err(_) => Ok(()),
    };
    let outcome = match (&chosen, &applied) {
        (Err(problem), _) if teardown.excuses(problem) => Outcome::Leaving,
        (Err(problem), _) => Outcome::Blocked(problem.clone()),
        (Ok(_), Err(error)) => Outcome::Blocked(Problem::refused(chain(error))),
        (Ok((chosen, _)), Ok(())) => Outcome::Published {
            chosen,
            delivery: Delivery::of(&observed.live.answers, &chosen.expected),
        },
    };
    observed.live.stateful_set = context.caches.stateful_sets.get(&observe::workload(&controller));
    write_status(&context, &writer, &observed, &outcome, &teardown).await?;
    applied?;
    let Outcome::Published { chosen, delivery } = &outcome else {
        return Ok(Requeue::OnChange);
    };
    if controller.spec.external {
        return Ok(Requeue::OnChange);
    }
    let under_way = matches!(delivery, Delivery::Pending | Delivery::KeyPending);
    if under_way && delivery::image_is_ours(&observed.live.answers) == Some(true) {
        let hash = &chosen.expected.config;
        apply::poke(&writer, &observed.live.pods, hash, context.clock.now()).await;
        return Ok(Requeue::After(LOOK_WHILE_DELIVERED));
    }
    let waits = chosen.held.is_some() || !chosen.waiting.is_empty();
    let look_again = pod_trouble::look_again(&observed.live.pods, context.clock.now());
    Ok(Requeue::OnChange
        .or_within(waits.then_some(LOOK_WHILE_IN_USE))
        .or_within(look_again))
}

async fn write_status(
    context: &Context,
    writer: &Writer,
    observed: &observe::Observed,
    outcome: &Outcome<'_>,
    teardown: &Teardown,
) -> Result<(), Error> {
    let controller = &observed.controller;
    let now = context.clock.now();
    let status = status::compute(observed, outcome, teardown, now);
    let before = controller.status.clone().unwrap_or_default().conditions;
    let trouble = pod_trouble::among(&observed.live.pods, now);
    context.tell_trouble(controller.as_ref(), trouble, &before, &status.conditions);
    if let Some(Problem { reason, message }) = outcome.problem()
        && !conditions::say(&before, reason, &message)
    {
        // That a change waits is as it should be.
        if outcome.waits() {
            context.events.normal(controller.as_ref(), reason, message);
        } else {
            context.events.warning(controller.as_ref(), reason, message);
        }
    }
    let applied = |conditions: &[Condition], status: &str| {
        let is = |known: &Condition| known.type_ == condition::CONFIG_APPLIED && known.status == status;
        conditions.iter().any(is)
    };
    if applied(&before, "False") && applied(&status.conditions, "True") {
        let note = delivery::IN_USE.to_owned();
        context
            .events
            .normal(controller.as_ref(), condition::CONFIG_APPLIED, note);
    }
    let written = writer
        .apply_status(controller.as_ref(), &json!(controller.status), &json!(status))
        .await
        .map_err(Error::Status)?;
    if let Some(written) = written {
        context.caches.controllers.upsert(written);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
