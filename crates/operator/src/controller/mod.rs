//! Reconciles Controllers: slurmctld, its configuration and its Services.
//!
//! observe (reads) → validate, build (pure) → apply (writes) → status (writes).

mod apply;
mod build;
mod configuration;
mod groups;
mod monitor;
mod observe;
mod registration;
mod requeue;
mod rivals;
mod status;
mod validate;

use std::{collections::BTreeMap, sync::Arc};

use keelson_api::{
    Controller,
    status::Condition,
    well_known::{condition, reason},
};
use keelson_runtime::{Key, Requeue, apply::Writer, run::chain};

use build::Children;
use configuration::{
    baseline::Baseline,
    choose::Chosen,
    delivery::{self, Delivery},
    file_origin, quiesce,
};
use observe::{Live, Observed};
pub use rivals::contend;
use status::Outcome;

use crate::{
    anchor, conditions, context::Context, error::Error, orphaning::is_orphaned, pod_diagnosis,
    problem::Problem, teardown::Teardown,
};

pub const MANAGER: &str = "slurm-operator/controller";

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(controller) = context.caches.controllers.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    let slurmctld = context.caches.stateful_sets.get(&observe::workload(&controller));
    let child = slurmctld.as_ref().map(|slurmctld| &slurmctld.metadata);
    let orphaned = is_orphaned(&context, controller.as_ref(), child);
    let teardown = Teardown::of(controller.as_ref(), apply::users(&context, &key), orphaned);
    if teardown.lets_go() {
        return release(&context, &writer, &controller, &teardown).await;
    }
    if teardown == Teardown::Not && apply::make_missing_keys(&context, &writer, &controller).await? {
        // The watch reports the new Secret and triggers another reconcile.
        return Ok(Requeue::OnChange);
    }
    let mut observed = observe::observe(&context, Arc::clone(&controller)).await?;
    let writer = hold(&context, writer, &observed, &teardown).await?;
    let prepared = prepare(&context, &writer, &observed).await;
    let done = match &prepared {
        Ok((chosen, children)) => publish(&context, &writer, &observed, chosen, children).await,
        Err(problem) => stay(&context, &writer, &observed, &teardown, problem).await,
    };
    observed.live.stateful_set = context.caches.stateful_sets.get(&observe::workload(&controller));
    write_status(&context, &writer, &observed, &done.outcome, &teardown).await?;
    if let Some(failure) = done.failure {
        return Err(failure);
    }
    let now = context.clock.now();
    if let Some(configuration) = requeue::under_way(&observed, &done.outcome) {
        apply::poke(&writer, &observed.live.pods, configuration, now).await;
    }
    Ok(requeue::after(&observed, &done.outcome, done.are_drained, now))
}

/// Lets a Controller go that nothing needs any more.
async fn release(
    context: &Context,
    writer: &Writer,
    controller: &Controller,
    teardown: &Teardown,
) -> Result<Requeue, Error> {
    // Children that stay keep the anchor.
    if *teardown == Teardown::Done {
        anchor::release(context, writer, controller)
            .await
            .map_err(Error::Anchor)?;
    }
    apply::release(context, writer, controller).await?;
    Ok(Requeue::OnChange)
}

/// Adds what keeps the Controller, its keys and its children while they are needed.
async fn hold(
    context: &Context,
    writer: Writer,
    observed: &Observed,
    teardown: &Teardown,
) -> Result<Writer, Error> {
    if *teardown == Teardown::Not {
        apply::hold(context, &writer, observed).await?;
    }
    let anchor = anchor::hold(context, &writer, observed.controller.as_ref())
        .await
        .map_err(Error::Anchor)?;
    Ok(writer.anchored(anchor))
}

/// Validates the input, chooses the configuration and builds the children.
async fn prepare(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
) -> Result<(Chosen, Children), Problem> {
    let validated = validate::validate(observed)?;
    let chosen = configuration::prepare(context, writer, observed, &validated).await?;
    let children = build::build(&observed.controller, &validated, &chosen, &observed.live)
        .map_err(|error| Problem::invalid(chain(&error)))?;
    Ok((chosen, children))
}

/// What a reconcile did.
struct Done<'a> {
    outcome: Outcome<'a>,
    /// Whether nodes are still drained although nothing could be built.
    are_drained: bool,
    /// To be retried after the status is written.
    failure: Option<Error>,
}

/// Applies the children and queries what became of them.
async fn publish<'a>(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    chosen: &'a Chosen,
    children: &Children,
) -> Done<'a> {
    let controller = &observed.controller;
    // The garbage collector is about to remove the owner references that an apply would add again.
    let applies = !anchor::is_foreground(controller.as_ref());
    if applies && let Err(error) = apply_all(context, writer, children, &observed.live).await {
        // A change that was under way continues in the next reconcile: it is unknown how much of it was written.
        let held = chosen.held.iter().map(|held| &held.message);
        let waiting = held.chain(&chosen.waiting).cloned();
        return Done {
            outcome: Outcome::Blocked(Problem::refused(chain(&error)).and(waiting)),
            are_drained: false,
            failure: Some(error),
        };
    }
    let monitored = if applies {
        apply::apply_monitor(context, writer, controller, children, &observed.live).await
    } else {
        Ok(())
    };
    Done {
        outcome: Outcome::Published {
            chosen,
            delivery: Delivery::of(&observed.live.answers, &chosen.expected)
                .explained(|words| file_origin::explained(words, chosen)),
            registration: registration::keep(context, observed, chosen).await,
            monitor: match &monitored {
                Ok(()) => monitor::missing_kind(controller, observed.monitoring),
                Err(error) => Some(Problem::refused(chain(error))),
            },
        },
        are_drained: false,
        failure: monitored.err().map(Error::Apply),
    }
}

async fn apply_all(
    context: &Context,
    writer: &Writer,
    children: &Children,
    live: &Live,
) -> Result<(), Error> {
    apply::apply(context, writer, children, live)
        .await
        .map_err(Error::Apply)?;
    apply::replace_stuck(writer, live).await
}

/// Leaves what runs as it is because of this problem.
async fn stay(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    teardown: &Teardown,
    problem: &Problem,
) -> Done<'static> {
    let waiting = bring_back(context, writer, observed, problem).await;
    Done {
        are_drained: waiting.is_some(),
        outcome: match waiting {
            None if teardown.excuses(problem) => Outcome::Leaving,
            waiting => Outcome::Blocked(problem.and(waiting)),
        },
        failure: None,
    }
}

/// Resumes nodes drained for a change: they must not stay drained because of a problem with the configuration. Returns
/// what is still to be done.
async fn bring_back(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
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
    observed: &Observed,
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
        // It is normal that a change waits.
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
    context
        .write_status(writer, &context.caches.controllers, controller.as_ref(), &status)
        .await
}

#[cfg(test)]
mod tests;
