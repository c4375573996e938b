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

pub use error::Error;

use crate::{context::Context, pod_trouble, problem::Problem};

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
    let built = validate::validate(&observed).and_then(|validated| {
        build::build(&loginset, &validated).map_err(|error| Problem::invalid(chain(&error)))
    });
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
        context.tell_problem(loginset.as_ref(), problem.clone(), &before);
    }
    let trouble = pod_trouble::among(&observed.live.pods, now);
    context.tell_trouble(loginset.as_ref(), trouble, &before, &status.conditions);
    let written = writer
        .apply_status(loginset.as_ref(), &json!(loginset.status), &json!(status))
        .await
        .map_err(Error::Status)?;
    if let Some(written) = written {
        context.caches.loginsets.upsert(written);
    }
    let look_again = pod_trouble::look_again(&observed.live.pods, now);
    applied.map(|()| Requeue::OnChange.or_within(look_again))
}

#[cfg(test)]
mod tests;
