//! Reconciles LoginSets: pods with sshd and sackd that users log in to.
//!
//! observe (reads) → validate, build (pure) → apply (writes) → status (writes).

mod apply;
mod build;
pub(crate) mod host_keys;
mod lifecycle;
mod observe;
mod status;
mod validate;

use std::sync::Arc;

use keelson_runtime::{Key, Requeue, apply::Writer, run::chain};

use build::Children;
use observe::Observed;

use crate::{anchor, context::Context, error::Error, pod_diagnosis, pod_template, problem::Problem};

pub const MANAGER: &str = "slurm-operator/loginset";

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(loginset) = context.caches.loginsets.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    let (teardown, held) = lifecycle::hold_or_release(&context, &writer, &loginset).await?;
    let Some(writer) = held else {
        return Ok(Requeue::OnChange);
    };
    let mut observed = observe::observe(&context, Arc::clone(&loginset)).await?;
    if apply::make_missing_host_keys(&writer, &loginset, &observed.live).await? {
        // The watch reports the new Secret and triggers another reconcile.
        return Ok(Requeue::OnChange);
    }
    let built = decide(&observed);
    let applied = match &built {
        // The garbage collector is about to remove the owner references that an apply would add again.
        Ok(_) if anchor::is_foreground(loginset.as_ref()) => Ok(()),
        Ok(children) => apply::apply(&context, &writer, children, &observed.live)
            .await
            .map_err(Error::Apply),
        Err(_) => Ok(()),
    };
    let problem = Problem::of(&built, &applied);
    let unused = built.as_ref().map_or(&[][..], |children| &children.findings);
    observed.live.deployment = context.caches.deployments.get(&observe::name(&loginset));
    let now = context.clock.now();
    let status = status::compute(&observed, problem.as_ref(), unused, &teardown, now);
    let before = loginset.status.clone().unwrap_or_default().conditions;
    if let Err(problem) = built {
        context.report_problem(loginset.as_ref(), problem, &before);
    }
    let trouble = pod_diagnosis::among(&observed.live.pods, now);
    context.report_pod_problem(loginset.as_ref(), trouble, &before, &status.conditions);
    context
        .write_status(&writer, &context.caches.loginsets, loginset.as_ref(), &status)
        .await?;
    let requeue_after = pod_diagnosis::requeue_after(&observed.live.pods, now);
    applied.map(|()| Requeue::OnChange.or_within(requeue_after))
}

/// Builds the children. Running pods keep the fingerprints of Secrets that they have; if they are replaced anyway, the
/// fingerprints are computed as for new pods.
fn decide(observed: &Observed) -> Result<Children, Problem> {
    let build = |observed: &Observed| {
        let validated = validate::validate(observed)?;
        build::build(
            &observed.loginset,
            &validated,
            observed.live.deployment.as_deref(),
        )
        .map_err(|error| Problem::invalid(chain(&error)))
    };
    let children = build(observed)?;
    if pod_template::changes(&children.deployment, observed.live.deployment.as_deref()) {
        let mut observed = observed.clone();
        observed.live.deployment = None;
        return build(&observed);
    }
    Ok(children)
}

#[cfg(test)]
mod tests;
