//! Applies the children, puts back what others changed in them, and removes those that are no longer wanted.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use keelson_api::{SlurmCluster, slurmcluster::children};
use keelson_runtime::{
    Cache, Key,
    apply::{self, Desired, Writer},
    run::chain,
};
use kube::{Resource, ResourceExt, core::NamespaceResourceScope};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    build::Built,
    database,
    observe::{self, Observed, children_of},
};
use crate::{apply_child::apply_child, caches::Caches, context::Context, error::Error, problem::Problem};

/// The outcome of an apply.
#[derive(Debug, Default)]
pub struct Applied {
    /// Children that could not be applied.
    pub failures: Vec<apply::Error>,
    /// Events about edits that were put back.
    pub reverted: Vec<String>,
    /// Events about children that were removed.
    pub removed: Vec<String>,
}

impl Applied {
    /// Returns the first failure, for the conditions.
    pub fn problem(&self) -> Option<Problem> {
        self.failures.first().map(|error| Problem::refused(chain(error)))
    }
}

/// The writers for the two sorts of children.
#[derive(Debug)]
pub struct Writers<'a> {
    /// For objects of the six kinds, whose own controllers hold them back when they are deleted.
    pub children: &'a Writer,
    /// For objects that workers need until the last job has ended.
    pub anchored: &'a Writer,
}

/// Applies every child that finds what it needs, also after another one failed: the others may be what users are waiting
/// for. A pod that starts with a file that is missing, old or somebody else's may keep it for as long as it runs.
pub async fn apply(caches: &Caches, writers: &Writers<'_>, built: &Built, observed: &Observed) -> Applied {
    let Built {
        config_files,
        files,
        database,
        operated,
        accounting,
        controller,
        restapi,
        loginsets,
        nodesets,
    } = built;
    let cluster = observed.cluster.as_ref();
    let mut step = Step::with(writers.children, cluster);
    let mut anchored = Step::with(writers.anchored, cluster);
    let mut has_config_files = true;
    if let Some(desired) = config_files {
        let live = observed.config_files.as_ref();
        has_config_files = anchored.apply::<ConfigMap>(None, desired, live).await;
    }
    if let Some(desired) = files {
        let live = observed.files.as_ref();
        anchored.apply::<ConfigMap>(None, desired, live).await;
    }
    let mut has_database = true;
    if let Some(database) = database {
        let live = &observed.live.database;
        has_database &= anchored
            .apply(Some(&caches.services), &database.service, live.service.as_ref())
            .await;
        has_database &= anchored
            .apply(
                Some(&caches.stateful_sets),
                &database.stateful_set,
                live.stateful_set.as_ref(),
            )
            .await;
        if let Some(dump) = &database.dump {
            anchored
                .apply(Some(&caches.cron_jobs), dump, live.dump.as_ref())
                .await;
        }
    }
    if let Some(operated) = operated {
        let live = observed.live.database.operated.as_ref();
        has_database &= anchored.apply(Some(&caches.mariadbs.cache), operated, live).await;
    }
    // slurmdbd would send its password to a database that is somebody else's.
    if let Some(accounting) = accounting.as_ref().filter(|_| has_database) {
        step.child(&caches.accountings, accounting).await;
    }
    let has_controller = has_config_files && step.child(&caches.controllers, controller).await;
    if has_controller {
        step.child(&caches.restapis, restapi).await;
    }
    if has_controller && anchored.applied.failures.is_empty() {
        for loginset in loginsets {
            step.child(&caches.loginsets, loginset).await;
        }
        for nodeset in nodesets {
            step.child(&caches.nodesets, nodeset).await;
        }
    }
    let mut applied = step.applied;
    applied.failures.extend(anchored.applied.failures);
    applied.reverted.extend(anchored.applied.reverted);
    if applied.failures.is_empty() {
        prune(caches, writers.children, built, observed, &mut applied).await;
    }
    applied
}

struct Step<'a> {
    applied: Applied,
    writer: Writer,
    cluster: &'a SlurmCluster,
}

impl<'a> Step<'a> {
    fn with(writer: &Writer, cluster: &'a SlurmCluster) -> Self {
        Self {
            applied: Applied::default(),
            writer: writer.clone(),
            cluster,
        }
    }

    /// Applies an object of one of the six kinds. Returns whether that succeeded.
    async fn child<K>(&mut self, cache: &Cache<K>, desired: &Desired<K>) -> bool
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        let live = cache.get(&desired.key());
        self.apply(Some(cache), desired, live.as_ref()).await
    }

    async fn apply<K>(
        &mut self,
        cache: Option<&Cache<K>>,
        desired: &Desired<K>,
        live: Option<&Arc<K>>,
    ) -> bool
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        let edited = live
            .filter(|live| desired.is_applied_to(live.as_ref()))
            .map(|live| desired.edited_fields(live.as_ref()))
            .unwrap_or_default();
        let applied = match live.and_then(|live| observe::other_owner(live.as_ref(), self.cluster)) {
            Some(owner) => Err(apply::Error::Owned {
                kind: K::kind(&()).into_owned(),
                object: desired.key(),
                owner,
            }),
            None => apply_child(&self.writer, cache, desired, live).await,
        };
        let is_applied = applied.is_ok();
        match applied {
            Ok(true) if !edited.is_empty() => self.applied.reverted.push(format!(
                "put back {} of {} {}: the SlurmCluster sets it, so change it there",
                edited.join(", "),
                K::kind(&()),
                desired.key().name
            )),
            Ok(_) => {}
            Err(error) => self.applied.failures.push(error),
        }
        is_applied
    }
}

/// Deletes children that the spec no longer has. Their own controllers drain and wait.
async fn prune(caches: &Caches, writer: &Writer, built: &Built, observed: &Observed, applied: &mut Applied) {
    let cluster = observed.cluster.as_ref();
    let names = |keys: Vec<Key>| keys.into_iter().map(|key| key.name).collect::<Vec<_>>();
    let nodesets = names(built.nodesets.iter().map(Desired::key).collect());
    let loginsets = names(built.loginsets.iter().map(Desired::key).collect());
    let accountings = names(built.accounting.iter().map(Desired::key).collect());
    remove_others(writer, &caches.nodesets, cluster, &nodesets, applied).await;
    remove_others(writer, &caches.loginsets, cluster, &loginsets, applied).await;
    remove_others(writer, &caches.accountings, cluster, &accountings, applied).await;
    let live = &observed.live.database;
    if built
        .database
        .as_ref()
        .is_none_or(|database| database.dump.is_none())
    {
        remove_one(writer, live.dump.as_deref(), cluster, applied).await;
    }
    // The database serves slurmdbd until that is gone, or uses another. Its volume stays.
    if built.database.is_none() && database_is_unused(caches, cluster, &children::database_name(cluster)) {
        remove_one(writer, live.stateful_set.as_deref(), cluster, applied).await;
        remove_one(writer, live.service.as_deref(), cluster, applied).await;
    }
    let operated = children::operated_database_name(cluster);
    if built.operated.is_none() && live.operated.is_some() && database_is_unused(caches, cluster, &operated) {
        remove_one(writer, live.operated.as_deref(), cluster, applied).await;
    }
    if built.files.is_none() && caches_are_clear(observed) {
        remove_one(writer, observed.files.as_deref(), cluster, applied).await;
    }
    if built.config_files.is_none() {
        remove_one(writer, observed.config_files.as_deref(), cluster, applied).await;
    }
}

fn database_is_unused(caches: &Caches, cluster: &SlurmCluster, host: &str) -> bool {
    children_of(&caches.accountings, cluster)
        .iter()
        .all(|accounting| {
            let namespace = accounting.namespace().unwrap_or_default();
            let slurmdbd = Key::new(namespace, accounting.accounting_name());
            let slurmdbd = caches.stateful_sets.get(&slurmdbd);
            database::has_left(host, accounting, slurmdbd.as_deref())
        })
}

/// Workers that still run may be restarted by the kubelet and then mount the files again.
fn caches_are_clear(observed: &Observed) -> bool {
    let mut nodesets = observed.live.nodesets.iter();
    nodesets.all(|nodeset| observe::is_settled(nodeset))
}

async fn remove_others<K>(
    writer: &Writer,
    cache: &Cache<K>,
    cluster: &SlurmCluster,
    wanted: &[String],
    applied: &mut Applied,
) where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned,
{
    for child in children_of(cache, cluster) {
        if !wanted.contains(&child.name_any()) {
            remove_one(writer, Some(child.as_ref()), cluster, applied).await;
        }
    }
}

async fn remove_one<K>(writer: &Writer, child: Option<&K>, cluster: &SlurmCluster, applied: &mut Applied)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned,
{
    let removable =
        |child: &&K| child.meta().deletion_timestamp.is_none() && observe::is_child(*child, cluster);
    let Some(child) = child.filter(removable) else {
        return;
    };
    match writer.delete(child).await {
        Ok(true) => applied.removed.push(format!(
            "deleted {} {}, which is no longer in the spec",
            K::kind(&()),
            child.name_any()
        )),
        Ok(false) => {}
        Err(error) => applied.failures.push(error),
    }
}

/// Deletes the children of a SlurmCluster that is being deleted, all at once: each waits for those that need it.
pub async fn delete_all(context: &Context, writer: &Writer, cluster: &SlurmCluster) -> Result<(), Error> {
    let caches = &context.caches;
    delete_children(writer, &caches.nodesets, cluster).await?;
    delete_children(writer, &caches.loginsets, cluster).await?;
    delete_children(writer, &caches.restapis, cluster).await?;
    delete_children(writer, &caches.controllers, cluster).await?;
    delete_children(writer, &caches.accountings, cluster).await
}

async fn delete_children<K>(writer: &Writer, cache: &Cache<K>, cluster: &SlurmCluster) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned,
{
    for child in children_of(cache, cluster) {
        if child.meta().deletion_timestamp.is_none() {
            writer.delete(child.as_ref()).await.map_err(Error::Apply)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
