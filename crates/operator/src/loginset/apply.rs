//! Applies the children of a LoginSet.

use keelson_api::LoginSet;
use keelson_runtime::apply::{self, Writer};
use kube::ResourceExt;

use super::{
    build::{self, Children},
    host_keys,
    observe::Live,
};
use crate::{apply_child::apply_child, context::Context, error::Error};

/// Creates the host keys if none are known; true if the watch has yet to report them.
pub async fn make_missing_host_keys(
    writer: &Writer,
    loginset: &LoginSet,
    live: &Live,
) -> Result<bool, Error> {
    if live.host_keys.is_some() {
        return Ok(false);
    }
    let comment = loginset.name_any();
    let files = tokio::task::spawn_blocking(move || host_keys::generate(&comment))
        .await
        .map_err(Error::HostKeysInterrupted)?
        .map_err(Error::HostKeys)?;
    match writer.create(&build::build_host_keys(loginset, files)).await {
        Ok(_) => Ok(true),
        // The cache was stale: the existing keys count.
        Err(error) if error.is_already_exists() => Ok(true),
        Err(error) => Err(Error::Apply(error)),
    }
}

pub async fn apply(
    context: &Context,
    writer: &Writer,
    children: &Children,
    live: &Live,
) -> Result<(), apply::Error> {
    let Children {
        ssh_config,
        service,
        deployment,
        findings: _,
    } = children;
    let caches = &context.caches;
    apply_child(writer, None, ssh_config, live.ssh_config.as_ref()).await?;
    apply_child(writer, Some(&caches.services), service, live.service.as_ref()).await?;
    apply_child(
        writer,
        Some(&caches.deployments),
        deployment,
        live.deployment.as_ref(),
    )
    .await?;
    Ok(())
}
