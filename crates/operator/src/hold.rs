//! Carries out what `teardown` decided: keeps an object and its children, or lets both be deleted.

use std::fmt::Debug;

use keelson_api::well_known::finalizer;
use keelson_runtime::{Cache, apply::Writer};
use kube::{Resource, core::NamespaceResourceScope};
use serde::de::DeserializeOwned;

use crate::{anchor, context::Context, error::Error, teardown::Teardown};

/// Adds the finalizer and the anchor, and returns the writer for the object's children. Once no object needs it, removes
/// both and returns `None`.
pub async fn hold_or_release<K>(
    context: &Context,
    writer: &Writer,
    cache: &Cache<K>,
    object: &K,
    teardown: &Teardown,
) -> Result<Option<Writer>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + DeserializeOwned + Debug,
{
    let held = !teardown.lets_go();
    // Children that stay keep the anchor.
    if *teardown == Teardown::Done {
        anchor::release(context, writer, object)
            .await
            .map_err(Error::Anchor)?;
    }
    let written = writer
        .finalizer(object, finalizer::IN_USE, held)
        .await
        .map_err(Error::Finalizer)?;
    if !held {
        return Ok(None);
    }
    if let Some(written) = written {
        cache.upsert(written);
    }
    let anchor = anchor::hold(context, writer, object)
        .await
        .map_err(Error::Anchor)?;
    Ok(Some(writer.anchored(anchor)))
}
