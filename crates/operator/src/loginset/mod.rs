//! LoginSet: pods with sshd and sackd that users log in to.
//!
//! observe (reads) → validate, build (pure) → apply (writes) → status (writes).

mod apply;
mod build;
mod error;
mod host_keys;
mod observe;
mod status;
mod validate;

use std::sync::Arc;

use keelson_runtime::{Key, Requeue, apply::Writer, run::chain};
use serde_json::json;

use build::Children;
pub use error::Error;
use observe::Observed;

use crate::{context::Context, pod_diagnosis, pod_template, problem::Problem};

pub const MANAGER: &str = "slurm-operator/loginset";

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(loginset) = context.caches.loginsets.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    if loginset.metadata.deletion_timestamp.is_some() {
        return Ok(Requeue::OnChange);
    }
    let mut observed = observe::observe(&context, Arc::clone(&loginset)).await?;
    if apply::make_missing_host_keys(&writer, &loginset, &observed.live).await? {
        // The watch reports the new Secret and brings us back.
        return Ok(Requeue::OnChange);
    }
    let built = decide(&observed);
    let applied = match &built {
        Ok(children) => apply::apply(&context, &writer, children, &observed.live)
            .await
            .map_err(Error::Apply),
        Err(_) => Ok(()),
    };
    let (problem, unused) = match (&built, &applied) {
        (Err(problem), _) => (Some(problem.clone()), &[][..]),
        (Ok(_), Err(error)) => (Some(Problem::refused(chain(error))), &[][..]),
        (Ok(children), Ok(())) => (None, children.findings.as_slice()),
    };
    observed.live.deployment = context.caches.deployments.get(&observe::name(&loginset));
    let now = context.clock.now();
    let status = status::compute(&observed, problem.as_ref(), unused, now);
    let before = loginset.status.clone().unwrap_or_default().conditions;
    if let Err(problem) = &built {
        context.report_problem(loginset.as_ref(), problem.clone(), &before);
    }
    let trouble = pod_diagnosis::among(&observed.live.pods, now);
    context.report_pod_problem(loginset.as_ref(), trouble, &before, &status.conditions);
    let written = writer
        .apply_status(loginset.as_ref(), &json!(loginset.status), &json!(status))
        .await
        .map_err(Error::Status)?;
    if let Some(written) = written {
        context.caches.loginsets.upsert(written);
    }
    let requeue_after = pod_diagnosis::requeue_after(&observed.live.pods, now);
    applied.map(|()| Requeue::OnChange.or_within(requeue_after))
}

/// The children. Pods that run keep the names of Secrets' contents that they have; where they are replaced anyway, the names
/// are made as for new ones.
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
