//! Accounting: slurmdbd in front of its database, or the address of one that runs elsewhere.
//!
//! observe (reads) → validate, build (pure) → apply (writes) → status (writes).

mod apply;
mod build;
pub(crate) mod daemon;
mod error;
mod observe;
mod status;
mod validate;

use std::{slice, sync::Arc, time::Duration};

use keelson_api::well_known::finalizer;
use keelson_runtime::{Key, Requeue, apply::Writer, run::chain};
use kube::ResourceExt;
use serde_json::json;

use build::Children;
use daemon::Daemon;
pub use error::Error;
use observe::Observed;
use status::Outcome;
use validate::Validated;

use crate::{
    anchor,
    caches::{REFERENCE, reference_value},
    context::Context,
    pod_diagnosis, pod_template,
    problem::Problem,
    teardown::Teardown,
};

pub const MANAGER: &str = "slurm-operator/accounting";

/// A slurmdbd that starts tries its database every five seconds; nobody reports what it says meanwhile.
const LOOK_WHILE_IT_STARTS: Duration = Duration::from_secs(2);
/// A slurmdbd that lost its database stays ready for Kubernetes; only its log tells.
const LOOK_WHILE_IT_RUNS: Duration = Duration::from_secs(30);

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(accounting) = context.caches.accountings.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    // Job records are written as long as a slurmctld runs.
    let controllers = context.caches.controllers.find(
        REFERENCE,
        &reference_value("Accounting", &key.namespace, &key.name),
    );
    let users = controllers
        .iter()
        .map(|controller| format!("Controller {}", controller.name_any()));
    let teardown = Teardown::of(accounting.as_ref(), users);
    let held = teardown != Teardown::Done;
    if !held {
        anchor::release(&context, &writer, accounting.as_ref())
            .await
            .map_err(Error::Anchor)?;
    }
    let written = writer
        .finalizer(accounting.as_ref(), finalizer::IN_USE, held)
        .await
        .map_err(Error::Finalizer)?;
    if !held {
        return Ok(Requeue::OnChange);
    }
    if let Some(written) = written {
        context.caches.accountings.upsert(written);
    }
    let anchor = anchor::hold(&context, &writer, accounting.as_ref())
        .await
        .map_err(Error::Anchor)?;
    let writer = writer.anchored(anchor);
    let observed = observe::observe(&context, Arc::clone(&accounting)).await?;
    let built = decide(&observed);
    let applied = match &built {
        // The garbage collector is about to take away the references that an apply would write again.
        Ok(_) if anchor::is_foreground(accounting.as_ref()) => Ok(()),
        Ok(Some(children)) => apply::apply(&context, &writer, children, &observed.live)
            .await
            .map_err(Error::Apply),
        Ok(None) => apply::remove(&writer, &accounting, &observed.live).await,
        Err(_) => Ok(()),
    };
    let refused = applied.as_ref().err().map(|error| Problem::refused(chain(error)));
    let outcome = match (&built, &refused) {
        (Err(problem), None) if teardown.excuses(problem) => Outcome::Applied(&[]),
        (_, Some(problem)) | (Err(problem), None) => Outcome::Blocked(problem),
        (Ok(None), None) => Outcome::External,
        (Ok(Some(children)), None) => Outcome::Applied(&children.findings),
    };
    let now = context.clock.now();
    if let Some(problem) = status::problem(&observed, &outcome, now) {
        let before = accounting.status.clone().unwrap_or_default().conditions;
        context.report_problem(accounting.as_ref(), problem, &before);
    }
    let status = status::compute(&observed, &outcome, &teardown, now);
    let written = writer
        .apply_status(accounting.as_ref(), &json!(accounting.status), &json!(status))
        .await
        .map_err(Error::Status)?;
    if let Some(written) = written {
        context.caches.accountings.upsert(written);
    }
    let pod = observed.live.pod.as_ref();
    let requeue_after = pod.and_then(|pod| pod_diagnosis::requeue_after(slice::from_ref(pod), now));
    applied.map(|()| match daemon::of_pod(pod, now) {
        Daemon::Busy => Requeue::After(LOOK_WHILE_IT_STARTS),
        Daemon::Ready => Requeue::After(LOOK_WHILE_IT_RUNS),
        Daemon::Starting | Daemon::Troubled(_) => Requeue::OnChange.or_within(requeue_after),
    })
}

/// The children, none if slurmdbd runs elsewhere. A pod that runs keeps the names of Secrets' contents that it has; where it is
/// replaced anyway, the names are made as for a new one.
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
