//! Applies the children of a RestApi.

use keelson_api::RestApi;
use keelson_runtime::{
    apply::{self, Writer},
    ownership::is_controlled_by,
};

use super::{build::Children, observe::Live};
use crate::{apply_child::apply_child, context::Context};

pub async fn apply(
    context: &Context,
    writer: &Writer,
    restapi: &RestApi,
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
    // First, because a pod of the new Deployment mounts it.
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
        // A budget of the chart with the same name is left to the chart.
        (_, Some(live)) if live.metadata.owner_references.is_none() => {}
        (Some(desired), live) => {
            apply_child(writer, Some(&caches.disruption_budgets), desired, live.as_ref()).await?;
        }
        // Someone else may have a budget of this name.
        (None, Some(live)) if is_controlled_by(&live.metadata, &restapi.metadata) => {
            writer.delete(live.as_ref()).await?;
        }
        (None, _) => {}
    }
    Ok(())
}
