//! NodeSet: workers that never lose a job.
//!
//! observe (reads) → validate, build, plan (pure) → act (writes) → status (writes).

mod act;
mod build;
mod claims;
pub(crate) mod derive_facts;
mod error;
mod events;
mod facts;
mod findings;
mod observe;
mod partition;
mod placement;
mod plan;
mod reservation;
mod revision;
mod rollout;
mod status;
mod template;
mod validate;
mod waits;
mod window;
mod workers;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use keelson_api::{
    NodeSet,
    well_known::{event, finalizer, label},
};
use keelson_runtime::{Key, Requeue, apply::Writer, run::chain};
use kube::ResourceExt;
use serde_json::json;

pub use error::Error;

use crate::{
    anchor, apply_child::apply_child, children::metadata::shared_by, conditions, context::Context,
    pod_diagnosis, problem::Problem,
};

pub const MANAGER: &str = "slurm-operator/nodeset";
const RECHECK: Duration = Duration::from_secs(1);
/// What Slurm refused to delete is tried again.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(nodeset) = context.caches.nodesets.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    let deleting = nodeset.metadata.deletion_timestamp.is_some();
    let read = observe::read(&context, Arc::clone(&nodeset)).await?;
    let orphaning = derive_facts::is_orphaning(&nodeset, &read.revisions);
    let held = !orphaning && (!deleting || !read.pods.is_empty());
    if deleting && !held && !orphaning {
        prune_last_records(&context, &writer, &read).await;
        anchor::release(&context, &writer, nodeset.as_ref())
            .await
            .map_err(Error::Anchor)?;
    }
    let written = writer
        .finalizer(nodeset.as_ref(), finalizer::NODESET_DRAIN, held)
        .await
        .map_err(Error::Finalizer)?;
    if orphaning {
        // Only now: released revisions are how the next pass knows an orphaned NodeSet when the finalizer could not be removed.
        delete_revisions(&writer, &read).await?;
    }
    let reserved = |known: &String| known == finalizer::NODESET_RESERVATION;
    if !held && !nodeset.finalizers().iter().any(reserved) {
        return Ok(Requeue::OnChange);
    }
    if let Some(written) = written {
        context.caches.nodesets.upsert(written);
    }
    let anchor = anchor::hold(&context, &writer, nodeset.as_ref())
        .await
        .map_err(Error::Anchor)?;
    let template = template::template(&read);
    let shared = apply_shared(&context, &writer, &read).await;
    let problem = match (&template, &shared) {
        // What it was made from may go before it, and it needs no template to go.
        (Err(_), Ok(())) if deleting => None,
        (Err(problem), _) => Some(problem.clone()),
        (Ok(_), Err(error)) => Some(Problem::refused(chain(error))),
        (Ok(_), Ok(())) => None,
    };
    let history = match &template {
        Ok(template) => Some(record(&context, &writer, &read, template).await?),
        Err(_) => None,
    };
    // Without a template the workers of the last one stay as they are.
    let before = nodeset.status.clone().unwrap_or_default();
    let (revision, equal, same_node, collisions) = match history {
        Some(history) => (
            history.newest,
            history.equal,
            history.same_node,
            Some(history.collisions),
        ),
        None => (
            before.node_set_hash,
            BTreeSet::new(),
            BTreeSet::new(),
            before.collision_count,
        ),
    };
    let worker = derive_facts::Worker {
        revision: &revision,
        equal: &equal,
        same_node: &same_node,
        pod_spec: template.as_ref().ok().map(|template| &template.spec),
    };
    let controller_key = Key::new(&key.namespace, &nodeset.spec.controller_ref.name);
    let now = context.clock.now();
    let propagated = &context.settings.propagated_node_conditions;
    let slurm = context.mirrors.slurm(&controller_key);
    let mut observed = derive_facts::derive_facts(&read, &worker, slurm, propagated, now);
    observed.set.places_nodes = context.mirrors.places_nodes(&controller_key);
    if plan::needs_jobs(&observed) {
        observed.slurm = observed
            .slurm
            .with_jobs(context.mirrors.jobs(&controller_key).await);
    }
    let window = window::keep(&context, &writer, &read, &observed).await?;
    if !held {
        return window.failure.map_or(Ok(Requeue::After(RECHECK)), Err);
    }
    // A set on its way out needs no template to go.
    let plan = if template.is_ok() || deleting {
        plan::plan(&observed)
    } else {
        plan::hold(&observed)
    };
    let workers = workers::KubeWorkers {
        context: &context,
        writer: &writer,
        nodeset: &nodeset,
        template: template.as_ref().map_err(|problem| problem.message.clone()),
        revision: &revision,
        anchor: anchor.as_ref(),
        slurm: &observed.slurm,
    };
    let control = context.mirrors.control(&controller_key);
    let act = act::Act {
        workers: &workers,
        slurm: control.as_deref(),
    };
    let acted = act.run(&plan).await;
    let told = events::of_plan(&observed, &plan, &read.pods);
    for event in told.into_iter().chain(events::of_failures(&acted.failures)) {
        if event.warning {
            context.events.warning(nodeset.as_ref(), event.reason, event.note);
        } else {
            context.events.normal(nodeset.as_ref(), event.reason, event.note);
        }
    }
    if let Some(problem) = &problem {
        let reason = if read.controller.is_none() {
            event::CONTROLLER_REF_FAILED
        } else {
            problem.reason
        };
        let before = nodeset.status.clone().unwrap_or_default().conditions;
        if !conditions::already_reported(&before, problem.reason, &problem.message) {
            context
                .events
                .warning(nodeset.as_ref(), reason, problem.message.clone());
        }
    }
    let seen = status::Seen {
        observed: &observed,
        plan: &plan,
        problem: problem.as_ref(),
        collisions,
        reservation: window.finding,
        acted: &acted,
        partition: partition::held_back(&read),
    };
    write_status(&context, &writer, &nodeset, &seen).await?;
    shared.map_err(Error::Apply)?;
    let requeue_after = pod_diagnosis::requeue_after(&read.pods, now);
    next(&plan, acted, window.failure).map(|requeue| requeue.or_within(requeue_after))
}

/// When to look again.
fn next(plan: &facts::Plan, acted: act::Acted, window: Option<Error>) -> Result<Requeue, Error> {
    let act::Acted { failures, refused } = acted;
    let failed = failures.len();
    if let Some(first) = failures.into_iter().next() {
        return Err(Error::Act {
            failed,
            all: plan.steps.len(),
            first: Box::new(first),
        });
    }
    if !plan.waits.is_empty() {
        // A newer reading may confirm what is known without a change that would trigger us. That look tries the window
        // again too, which is no reason to let leaving workers wait longer.
        let soon = plan.requeue_after.map_or(RECHECK, |look| look.min(RECHECK));
        return Ok(Requeue::After(soon));
    }
    if let Some(failure) = window {
        return Err(failure);
    }
    let again = (!refused.is_empty()).then_some(AFTER_REFUSAL);
    let look = plan.requeue_after.map_or(Requeue::OnChange, Requeue::After);
    Ok(look.or_within(again))
}

/// The garbage collector releases the children of an object by a patch, which the API server refuses for a revision whose data
/// it would write in another form (`<` becomes `\u003c`). The next NodeSet makes its own.
async fn delete_revisions(writer: &Writer, read: &observe::Read) -> Result<(), Error> {
    for revision in &read.revisions {
        writer.delete(revision.as_ref()).await.map_err(Error::Revision)?;
    }
    Ok(())
}

/// A NodeSet without workers that goes takes along what is left of it in Slurm, as far as Slurm answers now: nobody waits for it.
async fn prune_last_records(context: &Context, writer: &Writer, read: &observe::Read) {
    let nodeset = &read.nodeset;
    let controller_key = Key::new(
        nodeset.namespace().unwrap_or_default(),
        &nodeset.spec.controller_ref.name,
    );
    let Some(control) = context.mirrors.control(&controller_key) else {
        return;
    };
    let none = BTreeSet::new();
    let worker = derive_facts::Worker {
        revision: "",
        equal: &none,
        same_node: &none,
        pod_spec: None,
    };
    let slurm = context.mirrors.slurm(&controller_key);
    let mut observed = derive_facts::derive_facts(read, &worker, slurm, &[], context.clock.now());
    if plan::leftovers(&observed).next().is_none() {
        return;
    }
    observed.slurm = observed
        .slurm
        .with_jobs(context.mirrors.jobs(&controller_key).await);
    let workers = workers::KubeWorkers {
        context,
        writer,
        nodeset,
        template: Err("the NodeSet is deleted".to_owned()),
        revision: "",
        anchor: None,
        slurm: &observed.slurm,
    };
    let act = act::Act {
        workers: &workers,
        slurm: Some(control.as_ref()),
    };
    act.run(&plan::plan(&observed)).await;
}

/// Has the revision of what workers are made from now on record before the first of them is made.
async fn record(
    context: &Context,
    writer: &Writer,
    read: &observe::Read,
    template: &build::Template,
) -> Result<revision::History, Error> {
    let in_use = read
        .pods
        .iter()
        .filter_map(|pod| pod.labels().get(label::REVISION_HASH).cloned())
        .chain(derive_facts::records(&read.nodeset).into_values())
        .collect();
    let history = revision::settle(&read.nodeset, &template.inputs, &read.revisions, &in_use);
    let revisions = &context.caches.revisions;
    if read.nodeset.metadata.deletion_timestamp.is_some() {
        return Ok(history);
    }
    if let Some(revision::Write { instead_of, revision }) = &history.write {
        if let Some(old) = instead_of {
            writer.delete(old.as_ref()).await.map_err(Error::Revision)?;
        }
        let written = writer.create(revision).await.map_err(Error::Revision)?;
        revisions.upsert(written);
    }
    // Paused means hands off, as with workers.
    let expired = history
        .expired
        .iter()
        .filter(|_| derive_facts::paused(&read.nodeset).is_none());
    for expired in expired {
        writer.delete(expired.as_ref()).await.map_err(Error::Revision)?;
        revisions.remove(expired.as_ref());
    }
    Ok(history)
}

/// What all NodeSets of a cluster share, and sshd's configuration of this one.
async fn apply_shared(
    context: &Context,
    writer: &Writer,
    read: &observe::Read,
) -> Result<(), keelson_runtime::apply::Error> {
    let observe::Read {
        nodeset,
        siblings,
        live,
        ..
    } = read;
    let owners: Vec<_> = siblings
        .iter()
        .flat_map(|sibling| {
            // A reference to one that goes is taken away by the garbage collector.
            let stays = sibling.metadata.deletion_timestamp.is_none();
            let own = stays.then(|| shared_by(sibling.as_ref()));
            own.into_iter()
                .chain(anchor::reference(context, sibling.as_ref()))
        })
        .collect();
    if owners.is_empty() {
        return Ok(());
    }
    let service = build::build_workers_service(nodeset, owners.clone());
    apply_child(
        writer,
        Some(&context.caches.services),
        &service,
        live.workers_service.as_ref(),
    )
    .await?;
    let budget = build::build_workers_budget(nodeset, &owners);
    apply_child(
        writer,
        Some(&context.caches.disruption_budgets),
        &budget,
        live.workers_budget.as_ref(),
    )
    .await?;
    if let Ok(Some(config)) = build::build_ssh_config(nodeset)
        && !anchor::is_foreground(nodeset.as_ref())
    {
        let writer = writer.anchored(anchor::reference(context, nodeset.as_ref()));
        apply_child(&writer, None, &config, live.ssh_config.as_ref()).await?;
    }
    Ok(())
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
    let written = writer
        .apply_status(nodeset.as_ref(), &json!(nodeset.status), &json!(status))
        .await
        .map_err(Error::Status)?;
    if let Some(written) = written {
        context.caches.nodesets.upsert(written);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_slurm_did_not_keep_is_looked_at_again() {
        let failure = || Error::Reservation {
            name: "SlurmOperatorMaint-cpu".to_owned(),
            source: Box::new(slurm_rest::Error::NotFound {
                what: "node cpu-7".to_owned(),
            }),
        };
        let mut plan = facts::Plan::default();
        assert!(matches!(
            next(&plan, act::Acted::default(), None),
            Ok(Requeue::OnChange)
        ));
        assert!(matches!(
            next(&plan, act::Acted::default(), Some(failure())),
            Err(Error::Reservation { .. })
        ));
        plan.waits.push(facts::Wait {
            pod: "cpu-0".to_owned(),
            node: crate::slurm::facts::NodeName("cpu-0".to_owned()),
            why: facts::Why::Reading,
        });
        let next = next(&plan, act::Acted::default(), Some(failure()));
        assert!(matches!(next, Ok(Requeue::After(RECHECK))), "{next:?}");
    }
}
