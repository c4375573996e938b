//! Reconciles Accountings: a slurmdbd in front of its database, or the address of an external one.
//!
//! observe (reads) → validate, build (pure) → apply (writes) → status (writes).

mod apply;
mod build;
pub(crate) mod daemon;
mod observe;
mod status;
mod validate;

use std::{slice, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use keelson_runtime::{Key, Requeue, apply::Writer, run::chain};
use kube::ResourceExt;

use build::Children;
use daemon::Daemon;
use observe::Observed;
use status::Outcome;
use validate::Validated;

use crate::{
    anchor,
    caches::{REFERENCE, reference_value},
    context::Context,
    error::Error,
    hold,
    orphaning::is_orphaned,
    pod_diagnosis, pod_template,
    problem::Problem,
    teardown::Teardown,
};

pub const MANAGER: &str = "slurm-operator/accounting";

/// A starting slurmdbd retries its database every five seconds, which only its log shows.
const LOOK_WHILE_IT_STARTS: Duration = Duration::from_secs(2);
/// A slurmdbd that lost its database stays ready in Kubernetes; only its log shows the loss.
const LOOK_WHILE_IT_RUNS: Duration = Duration::from_secs(30);

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(accounting) = context.caches.accountings.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    let workload = Key::new(&key.namespace, accounting.accounting_name());
    let slurmdbd = context.caches.stateful_sets.get(&workload);
    let child = slurmdbd.as_ref().map(|slurmdbd| &slurmdbd.metadata);
    let orphaned = is_orphaned(&context, accounting.as_ref(), child);
    let teardown = Teardown::of(accounting.as_ref(), users(&context, &key), orphaned);
    let cache = &context.caches.accountings;
    let held = hold::hold_or_release(&context, &writer, cache, accounting.as_ref(), &teardown).await?;
    let Some(writer) = held else {
        return Ok(Requeue::OnChange);
    };
    let observed = observe::observe(&context, Arc::clone(&accounting)).await?;
    let built = decide(&observed);
    let applied = match &built {
        // The garbage collector is about to remove the owner references that an apply would add again.
        Ok(_) if anchor::is_foreground(accounting.as_ref()) => Ok(()),
        Ok(Some(children)) => apply::apply(&context, &writer, children, &observed.live)
            .await
            .map_err(Error::Apply),
        Ok(None) => apply::remove(&writer, &accounting, &observed.live).await,
        Err(_) => Ok(()),
    };
    let problem = Problem::of(&built, &applied);
    let outcome = Outcome::of(&built, problem.as_ref(), &teardown);
    let now = context.clock.now();
    if let Some(problem) = status::problem(&observed, &outcome, now) {
        let before = accounting.status.clone().unwrap_or_default().conditions;
        context.report_problem(accounting.as_ref(), problem, &before);
    }
    let status = status::compute(&observed, &outcome, &teardown, now);
    context
        .write_status(&writer, cache, accounting.as_ref(), &status)
        .await?;
    applied.map(|()| requeue(observed.live.pod.as_ref(), now))
}

/// A running slurmctld keeps writing job records.
fn users(context: &Context, accounting: &Key) -> Vec<String> {
    let id = reference_value("Accounting", &accounting.namespace, &accounting.name);
    let controllers = context.caches.controllers.find(REFERENCE, &id);
    controllers
        .iter()
        .map(|controller| format!("Controller {}", controller.name_any()))
        .collect()
}

fn requeue(pod: Option<&Arc<Pod>>, now: Timestamp) -> Requeue {
    match daemon::of_pod(pod, now) {
        Daemon::Busy => Requeue::After(LOOK_WHILE_IT_STARTS),
        Daemon::Ready => Requeue::After(LOOK_WHILE_IT_RUNS),
        Daemon::Starting | Daemon::Troubled(_) => {
            let diagnosis = pod.and_then(|pod| pod_diagnosis::requeue_after(slice::from_ref(pod), now));
            Requeue::OnChange.or_within(diagnosis)
        }
    }
}

/// Builds the children; `None` if slurmdbd is external. A running pod keeps the fingerprints of Secrets that it has; if
/// it is replaced anyway, they are computed as for a new pod.
fn decide(observed: &Observed) -> Result<Option<Children>, Problem> {
    let children = build_children(observed)?;
    let live = observed.live.stateful_set.as_deref();
    if children
        .as_ref()
        .is_some_and(|children| pod_template::changes(&children.stateful_set, live))
    {
        let mut observed = observed.clone();
        observed.live.stateful_set = None;
        return build_children(&observed);
    }
    Ok(children)
}

fn build_children(observed: &Observed) -> Result<Option<Children>, Problem> {
    match validate::validate(observed)? {
        Validated::External => Ok(None),
        Validated::Internal(internal) => build::build(&observed.accounting, &internal)
            .map(Some)
            .map_err(|error| Problem::invalid(chain(&error))),
    }
}

#[cfg(test)]
mod tests;
