//! The NodeSet controller: creates, drains, updates and removes workers without killing their jobs.
//!
//! One reconcile: `observe` reads; `validate`, `build` and `plan` compute and are pure; `act` and then `status` write.

mod act;
mod build;
mod claims;
mod derive_facts;
mod events;
mod facts;
mod findings;
mod history;
mod lifecycle;
mod nodeset_facts;
mod observe;
mod partition;
mod placement;
mod plan;
pub(crate) mod pod_facts;
mod requeue;
mod reservation;
mod revision;
mod rollout;
mod shared;
mod status;
mod template;
mod validate;
mod waits;
mod window;
mod workers;

use std::sync::Arc;

use keelson_api::{NodeSet, well_known::event};
use keelson_runtime::{
    Key, Requeue,
    apply::{self, Writer},
    run::chain,
};
use kube::ResourceExt;

use history::Revisions;
use lifecycle::Hold;

use crate::{anchor, conditions, context::Context, error::Error, pod_diagnosis, problem::Problem};

pub(crate) use act::StepError;

pub const MANAGER: &str = "slurm-operator/nodeset";

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(nodeset) = context.caches.nodesets.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    let read = observe::read(&context, nodeset).await?;
    let hold = lifecycle::hold_or_release(&context, &writer, &read).await?;
    if hold == Hold::Nothing {
        return Ok(Requeue::OnChange);
    }
    let anchor = anchor::hold(&context, &writer, read.nodeset.as_ref())
        .await
        .map_err(Error::Anchor)?;
    let template = template::template(&read);
    let shared = shared::apply_shared(&context, &writer, &read).await;
    let revisions = history::keep_history(&context, &writer, &read, template.as_ref()).await?;
    let observed = observe_slurm(&context, &read, &revisions, template.as_ref().ok()).await;
    let window = window::keep(&context, &writer, &read, &observed).await?;
    if hold == Hold::Reservation {
        return requeue::for_the_window(window.failure);
    }
    let deleting = read.nodeset.metadata.deletion_timestamp.is_some();
    // Deleting a NodeSet does not require a template.
    let plan = if template.is_ok() || deleting {
        plan::plan(&observed)
    } else {
        plan::hold(&observed)
    };
    let workers = workers::KubeWorkers {
        context: &context,
        writer: &writer,
        nodeset: &read.nodeset,
        template: template.as_ref().map_err(|problem| problem.message.clone()),
        revision: &revisions.newest,
        anchor: anchor.as_ref(),
        slurm: &observed.slurm,
    };
    let control = context.mirrors.control(&controller_key(&read.nodeset));
    let act = act::Act {
        workers: &workers,
        slurm: control.as_deref(),
    };
    let acted = act.run(&plan).await;
    context.mirrors.wait_for(
        &controller_key(&read.nodeset),
        &key,
        plan::awaited(&observed, &plan),
    );
    let problem = problem(deleting, template.as_ref().err(), shared.as_ref().err());
    let seen = status::Seen {
        observed: &observed,
        plan: &plan,
        problem: problem.as_ref(),
        collisions: revisions.collisions,
        reservation: window.finding,
        acted: &acted,
        partition: partition::held_back(&read),
    };
    send_events(&context, &read, &seen);
    write_status(&context, &writer, &read.nodeset, &seen).await?;
    shared.map_err(Error::Apply)?;
    let diagnosis = pod_diagnosis::requeue_after(&read.pods, observed.now);
    let rest = context.mirrors.jobs_rest(&controller_key(&read.nodeset));
    requeue::after(&plan, acted, window.failure, rest).map(|requeue| requeue.or_within(diagnosis))
}

fn controller_key(nodeset: &NodeSet) -> Key {
    Key::new(
        nodeset.namespace().unwrap_or_default(),
        &nodeset.spec.controller_ref.name,
    )
}

/// Derives the facts that `plan` decides on. Lists the jobs only if a decision depends on them.
async fn observe_slurm(
    context: &Context,
    read: &observe::Read,
    revisions: &Revisions,
    template: Option<&build::Template>,
) -> facts::Observed {
    let controller = controller_key(&read.nodeset);
    let worker = derive_facts::Worker {
        revision: &revisions.newest,
        equal: &revisions.equal,
        same_node: &revisions.same_node,
        pod_spec: template.map(|template| &template.spec),
    };
    let propagated = &context.settings.propagated_node_conditions;
    let slurm = context.mirrors.slurm(&controller);
    let mut observed = derive_facts::derive_facts(read, &worker, slurm, propagated, context.clock.now());
    observed.set.places_nodes = context.mirrors.places_nodes(&controller);
    if plan::needs_jobs(&observed) {
        observed.slurm = observed.slurm.with_jobs(context.mirrors.jobs(&controller).await);
    }
    observed
}

/// Returns why workers cannot be created. A NodeSet that is being deleted may outlive the objects it refers to, so it
/// needs no template.
fn problem(deleting: bool, template: Option<&Problem>, shared: Option<&apply::Error>) -> Option<Problem> {
    match (template, shared) {
        (Some(_), None) if deleting => None,
        (Some(problem), _) => Some(problem.clone()),
        (None, Some(error)) => Some(Problem::refused(chain(error))),
        (None, None) => None,
    }
}

fn send_events(context: &Context, read: &observe::Read, seen: &status::Seen<'_>) {
    let nodeset = read.nodeset.as_ref();
    let of_plan = events::of_plan(seen.observed, seen.plan, &read.pods);
    for event in of_plan
        .into_iter()
        .chain(events::of_failures(&seen.acted.failures))
    {
        if event.warning {
            context.events.warning(nodeset, event.reason, event.note);
        } else {
            context.events.normal(nodeset, event.reason, event.note);
        }
    }
    let before = nodeset.status.clone().unwrap_or_default().conditions;
    if let Some(problem) = seen.problem
        && !conditions::already_reported(&before, problem.reason, &problem.message)
    {
        let reason = if read.controller.is_none() {
            event::CONTROLLER_REF_FAILED
        } else {
            problem.reason
        };
        context.events.warning(nodeset, reason, problem.message.clone());
    }
}

async fn write_status(
    context: &Context,
    writer: &Writer,
    nodeset: &Arc<NodeSet>,
    seen: &status::Seen<'_>,
) -> Result<(), Error> {
    let status = status::compute(nodeset, seen);
    let before = nodeset.status.clone().unwrap_or_default().conditions;
    let troubled = findings::troubled(seen.observed);
    context.report_pod_problem(nodeset.as_ref(), troubled, &before, &status.conditions);
    context
        .write_status(writer, &context.caches.nodesets, nodeset.as_ref(), &status)
        .await
}
