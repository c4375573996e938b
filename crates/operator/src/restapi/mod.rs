//! RestApi: slurmrestd and its Service.
//!
//! observe (reads) → validate, build (pure) → apply (writes) → status (writes).

mod apply;
mod build;
mod error;
mod observe;
mod status;
mod validate;

use std::sync::Arc;

use keelson_api::{RestApi, well_known::finalizer};
use keelson_runtime::{Key, Requeue, apply::Writer, run::chain};
use kube::ResourceExt;
use serde_json::json;

use build::Children;
pub use error::Error;
use observe::Observed;

use crate::{
    anchor,
    caches::{CONTROLLER, sibling},
    context::Context,
    pod_diagnosis, pod_template,
    problem::Problem,
    teardown::Teardown,
};

pub const MANAGER: &str = "slurm-operator/restapi";

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(restapi) = context.caches.restapis.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    let teardown = Teardown::of(restapi.as_ref(), users(&context, &restapi));
    let held = teardown != Teardown::Done;
    if !held {
        anchor::release(&context, &writer, restapi.as_ref())
            .await
            .map_err(Error::Anchor)?;
    }
    let written = writer
        .finalizer(restapi.as_ref(), finalizer::IN_USE, held)
        .await
        .map_err(Error::Finalizer)?;
    if !held {
        return Ok(Requeue::OnChange);
    }
    if let Some(written) = written {
        context.caches.restapis.upsert(written);
    }
    let anchor = anchor::hold(&context, &writer, restapi.as_ref())
        .await
        .map_err(Error::Anchor)?;
    let writer = writer.anchored(anchor);
    let mut observed = observe::observe(&context, Arc::clone(&restapi)).await?;
    let built = decide(&observed);
    let applied = match &built {
        // The garbage collector is about to take away the references that an apply would write again.
        Ok(_) if anchor::is_foreground(restapi.as_ref()) => Ok(()),
        Ok(children) => apply::apply(&context, &writer, children, &observed.live)
            .await
            .map_err(Error::Apply),
        Err(_) => Ok(()),
    };
    let problem = match (&built, &applied) {
        (Err(problem), _) => Some(problem.clone()),
        (Ok(_), Err(error)) => Some(Problem::refused(chain(error))),
        (Ok(_), Ok(())) => None,
    };
    observed.live.deployment = context.caches.deployments.get(&observe::name(&restapi));
    let now = context.clock.now();
    let status = status::compute(&observed, problem.as_ref(), &teardown, now);
    let before = restapi.status.clone().unwrap_or_default().conditions;
    if let Err(problem) = &built {
        context.report_problem(restapi.as_ref(), problem.clone(), &before);
    }
    let trouble = pod_diagnosis::among(&observed.live.pods, now);
    context.report_pod_problem(restapi.as_ref(), trouble, &before, &status.conditions);
    let written = writer
        .apply_status(restapi.as_ref(), &json!(restapi.status), &json!(status))
        .await
        .map_err(Error::Status)?;
    if let Some(written) = written {
        context.caches.restapis.upsert(written);
    }
    let requeue_after = pod_diagnosis::requeue_after(&observed.live.pods, now);
    applied.map(|()| Requeue::OnChange.or_within(requeue_after))
}

/// The children. Pods that run keep the name of slurm.key that they have; where they are replaced anyway, it is made as for new
/// ones.
fn decide(observed: &Observed) -> Result<Children, Problem> {
    let build = |observed: &Observed| {
        let validated = validate::validate(observed)?;
        build::build(&observed.restapi, &validated).map_err(|error| Problem::invalid(chain(&error)))
    };
    let children = build(observed)?;
    if pod_template::changes(&children.deployment, observed.live.deployment.as_deref()) {
        let mut observed = observed.clone();
        observed.live.deployment = None;
        return build(&observed);
    }
    Ok(children)
}

/// Workers can be drained only as long as slurmrestd answers.
fn users(context: &Context, restapi: &RestApi) -> Vec<String> {
    let controller = sibling(restapi, &restapi.spec.controller_ref.name);
    let nodesets = context.caches.nodesets.find(CONTROLLER, &controller);
    nodesets
        .iter()
        .map(|nodeset| format!("NodeSet {}", nodeset.name_any()))
        .collect()
}

#[cfg(test)]
mod tests;
