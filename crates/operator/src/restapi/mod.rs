//! Reconciles RestApis: slurmrestd and its Service.
//!
//! observe (reads) → validate, build (pure) → apply (writes) → status (writes).

mod apply;
mod build;
mod observe;
mod status;
mod validate;

use std::sync::Arc;

use keelson_api::RestApi;
use keelson_runtime::{Key, Requeue, apply::Writer, run::chain};
use kube::ResourceExt;

use build::Children;
use observe::Observed;

use crate::{
    anchor,
    caches::{CONTROLLER, sibling},
    context::Context,
    error::Error,
    hold,
    orphaning::is_orphaned,
    pod_diagnosis, pod_template,
    problem::Problem,
    teardown::Teardown,
};

pub const MANAGER: &str = "slurm-operator/restapi";

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(restapi) = context.caches.restapis.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    let slurmrestd = context.caches.deployments.get(&observe::name(&restapi));
    let child = slurmrestd.as_ref().map(|slurmrestd| &slurmrestd.metadata);
    let orphaned = is_orphaned(&context, restapi.as_ref(), child);
    let teardown = Teardown::of(restapi.as_ref(), users(&context, &restapi), orphaned);
    let cache = &context.caches.restapis;
    let held = hold::hold_or_release(&context, &writer, cache, restapi.as_ref(), &teardown).await?;
    let Some(writer) = held else {
        return Ok(Requeue::OnChange);
    };
    let mut observed = observe::observe(&context, Arc::clone(&restapi)).await?;
    let built = decide(&observed);
    let applied = match &built {
        // The garbage collector is about to remove the owner references that an apply would add again.
        Ok(_) if anchor::is_foreground(restapi.as_ref()) => Ok(()),
        Ok(children) => apply::apply(&context, &writer, &restapi, children, &observed.live)
            .await
            .map_err(Error::Apply),
        Err(_) => Ok(()),
    };
    let problem = Problem::of(&built, &applied);
    observed.live.deployment = context.caches.deployments.get(&observe::name(&restapi));
    let now = context.clock.now();
    let status = status::compute(&observed, problem.as_ref(), &teardown, now);
    let before = restapi.status.clone().unwrap_or_default().conditions;
    if let Err(problem) = built {
        context.report_problem(restapi.as_ref(), problem, &before);
    }
    let trouble = pod_diagnosis::among(&observed.live.pods, now);
    context.report_pod_problem(restapi.as_ref(), trouble, &before, &status.conditions);
    context
        .write_status(&writer, cache, restapi.as_ref(), &status)
        .await?;
    let requeue_after = pod_diagnosis::requeue_after(&observed.live.pods, now);
    applied.map(|()| Requeue::OnChange.or_within(requeue_after))
}

/// Builds the children. Running pods keep the fingerprint of slurm.key that they have; if they are replaced anyway, it
/// is computed as for new pods.
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
