//! Applies the children of an Accounting: the Secret and the Service before the StatefulSet.

use std::fmt::Debug;

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use keelson_api::Accounting;
use keelson_runtime::{
    apply::{self, Writer},
    ownership::is_controlled_by,
};
use kube::{Resource, core::NamespaceResourceScope};
use serde::de::DeserializeOwned;

use super::{build::Children, observe::Live};
use crate::{apply_child::apply_child, context::Context, error::Error};

pub async fn apply(
    context: &Context,
    writer: &Writer,
    children: &Children,
    live: &Live,
) -> Result<(), apply::Error> {
    let Children {
        service,
        config,
        stateful_set,
        findings: _,
    } = children;
    let caches = &context.caches;
    apply_child(writer, None, config, live.config.as_ref()).await?;
    apply_child(writer, Some(&caches.services), service, live.service.as_ref()).await?;
    apply_child(
        writer,
        Some(&caches.stateful_sets),
        stateful_set,
        live.stateful_set.as_ref(),
    )
    .await?;
    Ok(())
}

/// Deletes the children created before slurmdbd became external. Job records are in the database, not in these.
pub async fn remove(writer: &Writer, accounting: &Accounting, live: &Live) -> Result<(), Error> {
    let Live {
        service,
        config,
        stateful_set,
        pod: _,
    } = live;
    remove_own(writer, accounting, stateful_set.as_deref()).await?;
    remove_own(writer, accounting, service.as_deref()).await?;
    remove_own(writer, accounting, config.as_deref()).await
}

async fn remove_own<K>(writer: &Writer, accounting: &Accounting, child: Option<&K>) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Metadata<Ty = ObjectMeta>,
    K: Clone + DeserializeOwned + Debug,
{
    let Some(child) = child.filter(|child| Resource::meta(*child).deletion_timestamp.is_none()) else {
        return Ok(());
    };
    if is_controlled_by(Resource::meta(child), &accounting.metadata) {
        writer.delete(child).await.map_err(Error::Apply)?;
    }
    Ok(())
}
