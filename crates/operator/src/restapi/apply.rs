//! Brings the children of a RestApi to their desired form.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use keelson_runtime::apply::{self, Writer};

use super::{build::Children, observe::Live};
use crate::{apply_child::apply_child, context::Context};

pub async fn apply(
    context: &Context,
    writer: &Writer,
    children: &Children,
    live: &Live,
) -> Result<(), apply::Error> {
    let Children {
        config,
        service,
        deployment,
        disruption_budget,
    } = children;
    let caches = &context.caches;
    // First: a pod that starts with the new Deployment is to find it.
    apply_child(writer, None, config, live.config.as_ref()).await?;
    apply_child(writer, Some(&caches.services), service, live.service.as_ref()).await?;
    apply_child(
        writer,
        Some(&caches.deployments),
        deployment,
        live.deployment.as_ref(),
    )
    .await?;
    match (disruption_budget, &live.disruption_budget) {
        // A budget of the chart's with the same name stays the chart's.
        (_, Some(live)) if live.metadata.owner_references.is_none() => {}
        (Some(desired), live) => {
            apply_child(writer, Some(&caches.disruption_budgets), desired, live.as_ref()).await?;
        }
        (None, Some(live)) if is_ours(live) => {
            writer.delete(live.as_ref()).await?;
        }
        (None, _) => {}
    }
    Ok(())
}

/// Somebody else may have a budget of this name.
fn is_ours(budget: &PodDisruptionBudget) -> bool {
    let owners = budget.metadata.owner_references.iter().flatten();
    owners
        .into_iter()
        .any(|owner| owner.kind == "RestApi" && owner.controller == Some(true))
}
