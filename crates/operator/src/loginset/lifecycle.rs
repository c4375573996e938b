//! Keeps the login pods of a deleted SlurmCluster until its last worker has left.
//!
//! People wait for their jobs in login pods: if `srun` or `salloc` is ended, so is its job. A LoginSet that is deleted on
//! its own is deleted at once.

use keelson_api::{LoginSet, SlurmCluster};
use keelson_runtime::{
    Key,
    apply::Writer,
    contents::{self, limited},
    ownership::is_controlled_by,
};
use kube::{Api, Resource, ResourceExt};

use crate::{
    caches::{CONTROLLER, sibling},
    context::Context,
    error::Error,
    hold,
    teardown::Teardown,
};

/// Returns the progress of the deletion and, unless the LoginSet may go, the writer for its children.
pub async fn hold_or_release(
    context: &Context,
    writer: &Writer,
    loginset: &LoginSet,
) -> Result<(Teardown, Option<Writer>), Error> {
    let Some(cluster) = slurm_cluster(loginset) else {
        let is_deleted = loginset.metadata.deletion_timestamp.is_some();
        let writer = (!is_deleted).then(|| writer.clone());
        return Ok((Teardown::of(loginset, []), writer));
    };
    let users = if is_deleted_with(context, loginset, &cluster).await? {
        nodesets(context, loginset)
    } else {
        Vec::new()
    };
    let teardown = Teardown::of(loginset, users);
    let cache = &context.caches.loginsets;
    let writer = hold::hold_or_release(context, writer, cache, loginset, &teardown).await?;
    Ok((teardown, writer))
}

/// Returns the SlurmCluster that this LoginSet was created for.
fn slurm_cluster(loginset: &LoginSet) -> Option<Key> {
    let owners = loginset.owner_references().iter();
    let owner = owners
        .filter(|owner| owner.controller == Some(true))
        .find(|owner| owner.kind == SlurmCluster::kind(&()))?;
    Some(Key::new(loginset.namespace().unwrap_or_default(), &owner.name))
}

/// Reports whether the SlurmCluster is being deleted too. Asks the API server, because the watch of SlurmClusters may lag
/// behind the watch of LoginSets.
async fn is_deleted_with(
    context: &Context,
    loginset: &LoginSet,
    cluster: &Key,
) -> Result<bool, contents::Error> {
    if loginset.metadata.deletion_timestamp.is_none() {
        return Ok(false);
    }
    let api = Api::<SlurmCluster>::namespaced(context.client.clone(), &cluster.namespace);
    let found = limited("SlurmCluster", cluster, api.get_metadata_opt(&cluster.name)).await?;
    Ok(found.is_some_and(|found| {
        found.metadata.deletion_timestamp.is_some() && is_controlled_by(&loginset.metadata, &found.metadata)
    }))
}

fn nodesets(context: &Context, loginset: &LoginSet) -> Vec<String> {
    let controller = sibling(loginset, &loginset.spec.controller_ref.name);
    let nodesets = context.caches.nodesets.find(CONTROLLER, &controller);
    nodesets
        .iter()
        .map(|nodeset| format!("NodeSet {}", nodeset.name_any()))
        .collect()
}
