//! Reconciles SlurmClusters: their children are objects of the six kinds, a database, and ConfigMaps with files.
//!
//! observe (reads) → build (pure, most of it in `keelson_api::slurmcluster::children`) → apply (writes) → status (writes).

mod apply;
mod build;
mod database;
mod files;
mod observe;
mod status;

use std::sync::Arc;

use keelson_api::{SlurmCluster, well_known::event};
use keelson_runtime::{Key, Requeue, apply::Writer};

use apply::Applied;
use build::Built;
use observe::{LiveDatabase, Observed};

use crate::{
    conditions, context::Context, error::Error, hold, orphaning::is_orphaned, pod_diagnosis,
    problem::Problem, teardown::Teardown,
};

pub const MANAGER: &str = "slurm-operator/slurmcluster";

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(cluster) = context.caches.slurm_clusters.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    let controller = context.caches.controllers.get(&key);
    let child = controller.as_ref().map(|controller| &controller.metadata);
    let orphaned = is_orphaned(&context, cluster.as_ref(), child);
    let teardown = Teardown::of(
        cluster.as_ref(),
        observe::children_left(&context, &cluster),
        orphaned,
    );
    let cache = &context.caches.slurm_clusters;
    let held = hold::hold_or_release(&context, &writer, cache, cluster.as_ref(), &teardown).await?;
    let Some(anchored) = held else {
        return Ok(Requeue::OnChange);
    };
    if matches!(teardown, Teardown::Waiting(_)) {
        apply::delete_all(&context, &writer, &cluster).await?;
    }
    if teardown == Teardown::Not && database::make_missing_passwords(&context, &writer, &cluster).await? {
        // The watch reports the new Secret and triggers another reconcile.
        return Ok(Requeue::OnChange);
    }
    let observed = observe::observe(&context, Arc::clone(&cluster)).await?;
    let built = build::build(&observed);
    let applied = match &built {
        Ok(built) if teardown == Teardown::Not => {
            let writers = apply::Writers {
                children: &writer,
                anchored: &anchored,
            };
            apply::apply(&context.caches, &writers, built, &observed).await
        }
        _ => Applied::default(),
    };
    report_edits(&context, &cluster, &applied);
    write_status(&context, &writer, &observed, built.as_ref(), &applied, &teardown).await?;
    let LiveDatabase { pods, dump_pods, .. } = &observed.live.database;
    let late = |pods| pod_diagnosis::requeue_after(pods, context.clock.now());
    let requeue = Requeue::OnChange.or_within(late(pods)).or_within(late(dump_pods));
    match applied.failures.into_iter().next() {
        Some(error) => Err(Error::Apply(error)),
        None => Ok(requeue),
    }
}

fn report_edits(context: &Context, cluster: &Arc<SlurmCluster>, applied: &Applied) {
    for note in &applied.reverted {
        context
            .events
            .warning(cluster.as_ref(), event::EDIT_REVERTED, note.clone());
    }
    for note in &applied.removed {
        context
            .events
            .normal(cluster.as_ref(), event::SUCCESSFUL_DELETE, note.clone());
    }
}

async fn write_status(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    built: Result<&Built, &Problem>,
    applied: &Applied,
    teardown: &Teardown,
) -> Result<(), Error> {
    let cluster = observed.cluster.as_ref();
    // Once more: the children that were just applied are in the caches.
    let live = observe::live(context, cluster);
    let status = status::compute(observed, &live, built, applied, teardown, context.clock.now());
    let before = cluster.status.clone().unwrap_or_default().conditions;
    let problem = match built {
        Err(problem) => Some(problem.clone()),
        Ok(_) => applied.problem(),
    };
    if let Some(problem) = problem
        && !conditions::already_reported(&before, problem.reason, &problem.message)
    {
        context.events.warning(cluster, problem.reason, problem.message);
    }
    context
        .write_status(writer, &context.caches.slurm_clusters, cluster, &status)
        .await
}

#[cfg(test)]
mod tests;
