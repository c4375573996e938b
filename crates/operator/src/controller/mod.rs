//! Controller: slurmctld, its configuration and its Services.
//!
//! observe (reads) → validate, build (pure) → apply (writes) → status (writes).

mod apply;
mod build;
mod configuration;
mod error;
mod groups;
mod monitor;
mod observe;
mod registration;
mod rivals;
mod status;
mod validate;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use keelson_api::{
    status::Condition,
    well_known::{condition, reason},
};
use keelson_runtime::{Key, Requeue, apply::Writer, run::chain};
use serde_json::json;

use configuration::{
    baseline::Baseline,
    choose,
    delivery::{self, Delivery},
    file_origin, quiesce,
};
pub use error::Error;
use registration::Registration;
pub use rivals::contend;
use status::Outcome;

use crate::{anchor, conditions, context::Context, pod_diagnosis, problem::Problem, teardown::Teardown};

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
        anchor::release(&context, &writer, controller.as_ref())
            .await
            .map_err(Error::Anchor)?;
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
    let anchor = anchor::hold(&context, &writer, controller.as_ref())
        .await
        .map_err(Error::Anchor)?;
    let writer = writer.anchored(anchor);
    let chosen = match validate::validate(&observed) {
        Ok(mut validated) => choose::choose(&context, &writer, &observed, &mut validated)
            .await
            .and_then(|chosen| {
                let children = build::build(&controller, &validated, &chosen, &observed.live)
                    .map_err(|error| Problem::invalid(chain(&error)))?;
                Ok((chosen, children))
            }),
        Err(problem) => Err(problem),
    };
    let applied = match &chosen {
        // The garbage collector is about to take away the references that an apply would write again.
        Ok(_) if anchor::is_foreground(controller.as_ref()) => Ok(()),
        Ok((_, children)) => match apply::apply(&context, &writer, children, &observed.live).await {
            Ok(()) => apply::replace_stuck(&writer, &observed.live).await,
            Err(error) => Err(Error::Apply(error)),
        },
        Err(_) => Ok(()),
    };
    let monitored = match &chosen {
        Ok((_, children)) if applied.is_ok() && !anchor::is_foreground(controller.as_ref()) => {
            apply::apply_monitor(&context, &writer, &controller, children, &observed.live).await
        }
        _ => Ok(()),
    };
    let mut are_drained = false;
    let outcome = match (&chosen, &applied) {
        (Err(problem), _) => {
            let waiting = bring_back(&context, &writer, &observed, problem).await;
            are_drained = waiting.is_some();
            match waiting {
                None if teardown.excuses(problem) => Outcome::Leaving,
                waiting => Outcome::Blocked(problem.and(waiting)),
            }
        }
        // What was under way for a change goes on in the next pass: nobody knows how much of it was written.
        (Ok((chosen, _)), Err(error)) => {
            let waiting = chosen
                .held
                .iter()
                .map(|held| &held.message)
                .chain(&chosen.waiting);
            Outcome::Blocked(Problem::refused(chain(error)).and(waiting.cloned()))
        }
        (Ok((chosen, _)), Ok(())) => Outcome::Published {
            chosen,
            delivery: Delivery::of(&observed.live.answers, &chosen.expected)
                .explained(|words| file_origin::explained(words, chosen)),
            registration: registration::keep(&context, &observed, chosen).await,
            monitor: match &monitored {
                Ok(()) => monitor::missing_kind(&controller, observed.monitoring),
                Err(error) => Some(Problem::refused(chain(error))),
            },
        },
    };
    observed.live.stateful_set = context.caches.stateful_sets.get(&observe::workload(&controller));
    write_status(&context, &writer, &observed, &outcome, &teardown).await?;
    applied?;
    monitored.map_err(Error::Apply)?;
    let Outcome::Published {
        chosen,
        delivery,
        registration,
        ..
    } = &outcome
    else {
        let waits = are_drained || outcome.waits();
        return Ok(Requeue::OnChange.or_within(waits.then_some(LOOK_WHILE_IN_USE)));
    };
    if controller.spec.external {
        return Ok(Requeue::OnChange);
    }
    let held_for = chosen.held.as_ref().map(|held| held.reason);
    let withdrawn = held_for.is_some() && delivery::has_other_candidate(&observed.live.answers);
    let under_way = withdrawn || matches!(delivery, Delivery::Pending | Delivery::KeyPending);
    if under_way && delivery::image_is_ours(&observed.live.answers) == Some(true) {
        let hash = &chosen.expected.config;
        apply::poke(&writer, &observed.live.pods, hash, context.clock.now()).await;
        return Ok(Requeue::After(LOOK_WHILE_DELIVERED));
    }
    let waits = held_for.is_some_and(|reason| reason != reason::CONFIG_REFUSED) || !chosen.waiting.is_empty();
    let requeue_after = pod_diagnosis::requeue_after(&observed.live.pods, context.clock.now());
    Ok(Requeue::OnChange
        .or_within(waits.then_some(LOOK_WHILE_IN_USE))
        .or_within(registration.as_ref().map(Registration::requeue_after))
        .or_within(groups::requeue_after(&observed.live.answers))
        .or_within(requeue_after))
}

/// A problem that keeps the configuration from being made must not keep nodes drained for a change that was under way. Tells
/// what that waits for.
async fn bring_back(
    context: &Context,
    writer: &Writer,
    observed: &observe::Observed,
    problem: &Problem,
) -> Option<String> {
    let waits = [reason::CONFIG_PENDING, reason::KEY_PENDING].contains(&problem.reason);
    if waits || observed.controller.spec.external {
        return None;
    }
    let baseline = Baseline::of(&observed.live, &BTreeMap::new());
    quiesce::bring_back(context, writer, observed, baseline.as_ref()).await
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
    let trouble = pod_diagnosis::among(&observed.live.pods, now);
    context.report_pod_problem(controller.as_ref(), trouble, &before, &status.conditions);
    if let Some(Problem { reason, message }) = groups::unknown(&observed.live.answers)
        && !conditions::already_reported(&before, reason, &message)
    {
        context.events.warning(controller.as_ref(), reason, message);
    }
    if let Some(Problem { reason, message }) = outcome.problem()
        && !conditions::already_reported(&before, reason, &message)
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
