//! Writes the Secret of a Token.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use keelson_api::Token;
use keelson_runtime::apply::{self, Desired, Writer};
use kube::core::PartialObjectMetaExt;
use serde_json::json;

use super::validate::Place;
use crate::{children::metadata::owned_by, context::Context};

pub async fn apply(
    context: &Context,
    writer: &Writer,
    token: &Token,
    desired: &Desired<Secret>,
    place: &Place,
) -> Result<(), apply::Error> {
    let live = match place {
        Place::Free => None,
        Place::Ours(secret) => Some(Arc::clone(secret)),
        // Kubernetes allows only one controller owner: Slinky's is removed first.
        Place::Slinkys(secret) => {
            let patch = json!({ "metadata": { "ownerReferences": [owned_by(token)] } });
            Some(Arc::new(writer.merge(secret.as_ref(), patch).await?))
        }
    };
    write(context, writer, desired, live.as_deref()).await
}

/// Deletes a Secret that cannot be changed and creates its replacement.
pub async fn replace(
    context: &Context,
    writer: &Writer,
    desired: &Desired<Secret>,
    old: &Secret,
) -> Result<(), apply::Error> {
    writer.delete(old).await?;
    write(context, writer, desired, None).await
}

async fn write(
    context: &Context,
    writer: &Writer,
    desired: &Desired<Secret>,
    live: Option<&Secret>,
) -> Result<(), apply::Error> {
    if let Some(written) = writer.apply(desired, live).await?.written() {
        // The next reconcile may come before the watch event, and would sign another token if it found the old one.
        context
            .caches
            .secrets
            .upsert(written.metadata.into_response_partial());
    }
    Ok(())
}
