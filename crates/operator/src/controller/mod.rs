//! Controller: slurmctld, its configuration and its Services.
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
use status::Outcome;

use crate::{context::Context, problem::Problem, teardown::Teardown};

pub const MANAGER: &str = "slurm-operator/controller";

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(controller) = context.caches.controllers.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    let teardown = Teardown::of(controller.as_ref(), apply::users(&context, &key));
    if teardown == Teardown::Done {
        apply::release(&context, &writer, &controller).await?;
        return Ok(Requeue::OnChange);
    }
    if apply::make_missing_keys(&context, &writer, &controller).await? {
        // The watch reports the new Secret and brings us back.
        return Ok(Requeue::OnChange);
    }
    let observed = observe::observe(&context, Arc::clone(&controller)).await?;
    if teardown == Teardown::Not {
        apply::hold(&context, &writer, &observed).await?;
    }
    let built = validate::validate(&observed).and_then(|validated| {
        build::build(&controller, &validated).map_err(|error| Problem::invalid(chain(&error)))
    });
    let applied = match &built {
        Ok(children) => apply::apply(&context, &writer, children, &observed.live).await,
        Err(problem) => {
            context
                .events
                .warning(controller.as_ref(), problem.reason, problem.message.clone());
            Ok(())
        }
    };
    let refused = applied.as_ref().err().map(|error| Problem::refused(chain(error)));
    let outcome = match (&built, &refused) {
        (_, Some(problem)) | (Err(problem), None) => Outcome::Blocked(problem),
        (Ok(children), None) => Outcome::Applied(children),
    };
    let status = status::compute(&observed, &outcome, &teardown, context.clock.now());
    let live_status = json!(controller.status);
    let written = writer
        .apply_status(controller.as_ref(), &live_status, &json!(status))
        .await
        .map_err(Error::Status)?;
    if let Some(written) = written {
        context.caches.controllers.upsert(written);
    }
    applied.map(|()| Requeue::OnChange)
}

#[cfg(test)]
mod tests;
