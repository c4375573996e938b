//! Reads what a SlurmCluster needs, and its existing children.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::CronJob,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service},
};
use keelson_api::{
    Accounting, Controller, LoginSet, NodeSet, RestApi, SlurmCluster, slurmcluster::children, well_known::app,
};
use keelson_runtime::{Cache, Key, contents, optional_kind::Installed, ownership::is_controlled_by};
use kube::{Resource, ResourceExt};

use crate::{
    caches::{CONTROLLER, INSTANCE, OWNER, instance_value, owned_by_value, sibling},
    children::mariadb::MariaDb,
    context::Context,
    fingerprints::HashKey,
};

/// Input of the other steps.
#[derive(Debug, Clone)]
pub struct Observed {
    pub cluster: Arc<SlurmCluster>,
    pub password: Option<Arc<Secret>>,
    pub hash_key: Option<HashKey>,
    /// ConfigMaps that `spec.files` names.
    pub file_sources: BTreeMap<String, Arc<ConfigMap>>,
    /// Claims that `spec.storage` names.
    pub claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    pub config_files: Option<Arc<ConfigMap>>,
    pub files: Option<Arc<ConfigMap>>,
    /// Whether the cluster has the CRDs of mariadb-operator.
    pub mariadb_operator: Installed,
    pub live: Live,
}

/// The existing children.
#[derive(Debug, Clone, Default)]
pub struct Live {
    pub controller: Option<Arc<Controller>>,
    pub accounting: Option<Arc<Accounting>>,
    pub restapi: Option<Arc<RestApi>>,
    /// LoginSets of the cluster, including those that the user created.
    pub loginsets: Vec<Arc<LoginSet>>,
    /// NodeSets of the cluster, including those that the user created.
    pub nodesets: Vec<Arc<NodeSet>>,
    pub database: LiveDatabase,
}

/// The existing parts of the embedded database.
#[derive(Debug, Clone, Default)]
pub struct LiveDatabase {
    pub service: Option<Arc<Service>>,
    pub stateful_set: Option<Arc<StatefulSet>>,
    /// The database that mariadb-operator runs.
    pub operated: Option<Arc<MariaDb>>,
    pub pods: Vec<Arc<Pod>>,
    pub dump: Option<Arc<CronJob>>,
    pub dump_pods: Vec<Arc<Pod>>,
}

pub async fn observe(context: &Context, cluster: Arc<SlurmCluster>) -> Result<Observed, contents::Error> {
    let namespace = cluster.namespace().unwrap_or_default();
    let mut file_sources = BTreeMap::new();
    for file in cluster.spec.files.values() {
        if let Some(reference) = &file.config_map_key_ref
            && let Some(map) = context.config_map(&namespace, &reference.name).await?
        {
            file_sources.insert(reference.name.clone(), map);
        }
    }
    let claims = cluster.shared_claims();
    let claims = claims
        .into_iter()
        .filter_map(|(_, name, _)| {
            let claim = context.caches.claims.get(&Key::new(&namespace, &name))?;
            Some((name, claim))
        })
        .collect();
    let password = match cluster.database_password() {
        Some(reference) => context.secret(&namespace, &reference.name).await?,
        None => None,
    };
    let hash_key = match &password {
        Some(_) => context.hash_key(cluster.as_ref()).await?,
        None => None,
    };
    Ok(Observed {
        password,
        hash_key,
        file_sources,
        claims,
        config_files: context
            .config_map(&namespace, &children::config_files_name(&cluster))
            .await?,
        files: context
            .config_map(&namespace, &children::files_name(&cluster))
            .await?,
        mariadb_operator: context.caches.mariadbs.installed(),
        live: live(context, &cluster),
        cluster,
    })
}

/// Returns the existing children from the caches.
pub fn live(context: &Context, cluster: &SlurmCluster) -> Live {
    let caches = &context.caches;
    let namespace = cluster.namespace().unwrap_or_default();
    let key = Key::new(&namespace, cluster.name_any());
    let id = sibling(cluster, &cluster.name_any());
    let database = Key::new(&namespace, children::database_name(cluster));
    let pods = |app: &str| {
        let instance = instance_value(app, &namespace, &cluster.name_any());
        caches.pods.find(INSTANCE, &instance)
    };
    Live {
        controller: caches.controllers.get(&key),
        accounting: caches.accountings.get(&key),
        restapi: caches.restapis.get(&key),
        loginsets: caches.loginsets.find(CONTROLLER, &id),
        nodesets: caches.nodesets.find(CONTROLLER, &id),
        database: LiveDatabase {
            service: caches.services.get(&database),
            stateful_set: caches.stateful_sets.get(&database),
            operated: caches
                .mariadbs
                .cache
                .get(&Key::new(&namespace, children::operated_database_name(cluster))),
            pods: pods(app::DATABASE),
            dump: caches
                .cron_jobs
                .get(&Key::new(&namespace, children::dump_name(cluster))),
            dump_pods: pods(app::DATABASE_DUMP),
        },
    }
}

/// Reports whether the object was created for this SlurmCluster.
pub fn is_child<K: ResourceExt>(object: &K, cluster: &SlurmCluster) -> bool {
    is_controlled_by(object.meta(), &cluster.metadata)
}

/// Returns the controlling owner of an object if it is another one. An earlier SlurmCluster of this name is gone.
pub fn other_owner<K: ResourceExt>(object: &K, cluster: &SlurmCluster) -> Option<Box<str>> {
    let mut owners = object.owner_references().iter();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    let is_predecessor =
        owner.kind == SlurmCluster::kind(&()) && Some(&owner.name) == cluster.metadata.name.as_ref();
    let is_other = !is_predecessor && Some(&owner.uid) != cluster.metadata.uid.as_ref();
    is_other.then(|| format!("{} {}", owner.kind, owner.name).into())
}

/// Reports whether all workers of a NodeSet have its present template.
pub fn is_settled(nodeset: &NodeSet) -> bool {
    nodeset.status.as_ref().is_none_or(|status| {
        status.observed_generation >= nodeset.metadata.generation
            && status.updated_replicas.unwrap_or(0) >= status.replicas.unwrap_or(0)
    })
}

/// Returns the children of one kind.
pub fn children_of<K>(cache: &Cache<K>, cluster: &SlurmCluster) -> Vec<Arc<K>>
where
    K: Resource<DynamicType = ()>,
{
    let namespace = cluster.namespace().unwrap_or_default();
    let owner = owned_by_value("SlurmCluster", &namespace, &cluster.name_any());
    let mut children = cache.find(OWNER, &owner);
    children.retain(|child| is_child(child.as_ref(), cluster));
    children
}

/// Returns the children that a deleted SlurmCluster waits for, by kind and name.
pub fn children_left(context: &Context, cluster: &SlurmCluster) -> Vec<String> {
    let caches = &context.caches;
    if cluster.metadata.deletion_timestamp.is_none() {
        return Vec::new();
    }
    let mut left = named(&children_of(&caches.nodesets, cluster));
    left.extend(named(&children_of(&caches.loginsets, cluster)));
    left.extend(named(&children_of(&caches.restapis, cluster)));
    left.extend(named(&children_of(&caches.controllers, cluster)));
    left.extend(named(&children_of(&caches.accountings, cluster)));
    left
}

fn named<K: Resource<DynamicType = ()>>(objects: &[Arc<K>]) -> Vec<String> {
    objects
        .iter()
        .map(|object| format!("{} {}", K::kind(&()), object.name_any()))
        .collect()
}
