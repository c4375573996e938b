//! Keeps the login pods of a deleted SlurmCluster until its last worker has left.
//!
//! People wait for their jobs in login pods: if `srun` or `salloc` is ended, so is its job. A LoginSet that is deleted on
//! its own is deleted at once.

use keelson_api::{LoginSet, SlurmCluster, well_known::finalizer};
use keelson_runtime::{
    Key,
    apply::Writer,
    contents::{self, limited},
    ownership::is_controlled_by,
};
use kube::{Api, Resource, ResourceExt};

use super::observe;
use crate::{
    caches::{CONTROLLER, sibling},
    context::Context,
    error::Error,
    hold,
    orphaning::is_orphaned,
    teardown::Teardown,
};

/// Returns the progress of the deletion and, unless the LoginSet may go, the writer for its children.
pub async fn hold_or_release(
    context: &Context,
    writer: &Writer,
    loginset: &LoginSet,
) -> Result<(Teardown, Option<Writer>), Error> {
    let users = match slurm_cluster(loginset) {
        Some(cluster) if is_deleted_with(context, loginset, &cluster).await? => nodesets(context, loginset),
        Some(_) => Vec::new(),
        // A SlurmCluster that was deleted without its children leaves the finalizer and the anchor behind.
        None if has_finalizer(loginset) => Vec::new(),
        None => {
            let is_deleted = loginset.metadata.deletion_timestamp.is_some();
            let writer = (!is_deleted).then(|| writer.clone());
            return Ok((Teardown::of(loginset, [], false), writer));
        }
    };
    let workload = context.caches.deployments.get(&observe::name(loginset));
    let child = workload.as_ref().map(|workload| &workload.metadata);
    let orphaned = is_orphaned(context, loginset, child);
    let teardown = Teardown::of(loginset, users, orphaned);
    let cache = &context.caches.loginsets;
    let writer = hold::hold_or_release(context, writer, cache, loginset, &teardown).await?;
    Ok((teardown, writer))
}

fn has_finalizer(loginset: &LoginSet) -> bool {
    loginset
        .finalizers()
        .iter()
        .any(|known| known == finalizer::IN_USE)
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
