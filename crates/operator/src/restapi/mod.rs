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

use keelson_runtime::{Key, Requeue, apply::Writer, run::chain};
use serde_json::json;

pub use error::Error;

use crate::{context::Context, problem::Problem};

pub const MANAGER: &str = "slurm-operator/restapi";

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(restapi) = context.caches.restapis.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    if restapi.metadata.deletion_timestamp.is_some() {
        return Ok(Requeue::OnChange);
    }
    let observed = observe::observe(&context, Arc::clone(&restapi)).await?;
    let built = validate::validate(&observed).and_then(|validated| {
        build::build(&restapi, &validated).map_err(|error| Problem::invalid(chain(&error)))
    });
    let applied = match &built {
        Ok(children) => apply::apply(&context, &writer, children, &observed.live).await,
        Err(problem) => {
            context
                .events
                .warning(restapi.as_ref(), problem.reason, problem.message.clone());
            Ok(())
        }
    };
    let problem = match (&built, &applied) {
        (Err(problem), _) => Some(problem.clone()),
        (Ok(_), Err(error)) => Some(Problem::refused(chain(error))),
        (Ok(_), Ok(())) => None,
    };
    let status = status::compute(&observed, problem.as_ref(), context.clock.now());
    let written = writer
        .apply_status(restapi.as_ref(), &json!(restapi.status), &json!(status))
        .await
        .map_err(Error::Status)?;
    if let Some(written) = written {
        context.caches.restapis.upsert(written);
    }
    applied.map(|()| Requeue::OnChange)
}

#[cfg(test)]
mod tests;
