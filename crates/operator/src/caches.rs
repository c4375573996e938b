//! Caches of everything that is watched, and their indexes.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, Deployment, StatefulSet},
    batch::v1::CronJob,
    core::v1::{ConfigMap, Node, PersistentVolumeClaim, Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use keelson_api::well_known::{app, label};
use keelson_api::{Accounting, Controller, LoginSet, NodeSet, RestApi, SlurmCluster, Token};
use keelson_runtime::{Cache, Key, optional_kind::Optional};
use kube::{Resource, ResourceExt, core::PartialObjectMeta};

use crate::{
    cached_fields,
    children::{mariadb::MariaDb, service_monitor::ServiceMonitor},
    orphaning::ForegroundDeletions,
};

/// Children by `namespace/kind/name` of the controlling owner.
pub const OWNER: &str = "owner";
/// Workers without a controlling owner, by `namespace/name` of the NodeSet that their labels name.
pub const ORPHAN: &str = "orphan";
/// Objects by `namespace/name` of the Controller that they belong to.
pub const CONTROLLER: &str = "controller";
/// Pods by the node that they run on.
pub const NODE: &str = "node";
/// Pods by the daemon and the object that their labels name.
pub const INSTANCE: &str = "instance";
/// Custom resources by `kind/namespace/name` of what they refer to.
pub const REFERENCE: &str = "reference";

#[derive(Debug)]
pub struct Caches {
    pub slurm_clusters: Arc<Cache<SlurmCluster>>,
    pub controllers: Arc<Cache<Controller>>,
    pub accountings: Arc<Cache<Accounting>>,
    pub restapis: Arc<Cache<RestApi>>,
    pub nodesets: Arc<Cache<NodeSet>>,
    pub loginsets: Arc<Cache<LoginSet>>,
    pub tokens: Arc<Cache<Token>>,
    pub stateful_sets: Arc<Cache<StatefulSet>>,
    pub deployments: Arc<Cache<Deployment>>,
    /// Those that dump a database.
    pub cron_jobs: Arc<Cache<CronJob>>,
    pub services: Arc<Cache<Service>>,
    pub pods: Arc<Cache<Pod>>,
    pub nodes: Arc<Cache<Node>>,
    pub claims: Arc<Cache<PersistentVolumeClaim>>,
    pub disruption_budgets: Arc<Cache<PodDisruptionBudget>>,
    pub revisions: Arc<Cache<ControllerRevision>>,
    pub secrets: Arc<Cache<PartialObjectMeta<Secret>>>,
    pub config_maps: Arc<Cache<PartialObjectMeta<ConfigMap>>>,
    /// Those of slurmctld, if the cluster has the CRD.
    pub service_monitors: Arc<Optional<ServiceMonitor>>,
    /// Those of SlurmClusters, if the cluster has the CRD.
    pub mariadbs: Arc<Optional<MariaDb>>,
    pub foreground_deletions: ForegroundDeletions,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            slurm_clusters: cache(&[(REFERENCE, references_of_slurm_cluster)]),
            controllers: cache(&[(OWNER, owner_of), (REFERENCE, references_of_controller)]),
            accountings: cache(&[(OWNER, owner_of), (REFERENCE, references_of_accounting)]),
            restapis: cache(&[
                (OWNER, owner_of),
                (CONTROLLER, |r: &RestApi| {
                    vec![sibling(r, &r.spec.controller_ref.name)]
                }),
            ]),
            nodesets: cache(&[
                (OWNER, owner_of),
                (CONTROLLER, |n: &NodeSet| {
                    vec![sibling(n, &n.spec.controller_ref.name)]
                }),
                (REFERENCE, references_of_nodeset),
            ]),
            loginsets: cache(&[
                (OWNER, owner_of),
                (CONTROLLER, |l: &LoginSet| {
                    vec![sibling(l, &l.spec.controller_ref.name)]
                }),
                (REFERENCE, references_of_loginset),
            ]),
            tokens: cache(&[(REFERENCE, references_of_token)]),
            stateful_sets: cache(&[(OWNER, owner_of)]),
            deployments: cache(&[(OWNER, owner_of)]),
            cron_jobs: cache(&[(OWNER, owner_of)]),
            services: cache(&[(OWNER, owner_of)]),
            pods: Arc::new(
                Cache::new(&[
                    (OWNER, owner_of),
                    (NODE, node_of),
                    (ORPHAN, orphan_of),
                    (INSTANCE, instance_of),
                ])
                .pruned(cached_fields::pod),
            ),
            nodes: Arc::new(Cache::new(&[]).pruned(cached_fields::node)),
            claims: cache(&[(OWNER, owner_of)]),
            disruption_budgets: cache(&[(OWNER, owner_of)]),
            revisions: cache(&[(OWNER, owner_of)]),
            secrets: cache(&[]),
            config_maps: cache(&[]),
            service_monitors: Arc::default(),
            mariadbs: Arc::default(),
            foreground_deletions: ForegroundDeletions::default(),
        }
    }
}

/// Name of an index, and the values under which it finds an object.
type Index<K> = (&'static str, fn(&K) -> Vec<String>);

fn cache<K: ResourceExt>(indexes: &[Index<K>]) -> Arc<Cache<K>> {
    Arc::new(Cache::new(indexes))
}

impl Caches {
    /// Resolves when every kind has been listed once.
    pub async fn synced(&self) {
        let Self {
            slurm_clusters,
            controllers,
            accountings,
            restapis,
            nodesets,
            loginsets,
            tokens,
            stateful_sets,
            deployments,
            cron_jobs,
            services,
            pods,
            nodes,
            claims,
            disruption_budgets,
            revisions,
            secrets,
            config_maps,
            // Not awaited: the CRDs may never be installed.
            service_monitors: _,
            mariadbs: _,
            foreground_deletions: _,
        } = self;
        tokio::join!(
            slurm_clusters.synced(),
            controllers.synced(),
            accountings.synced(),
            restapis.synced(),
            nodesets.synced(),
            loginsets.synced(),
            tokens.synced(),
            stateful_sets.synced(),
            deployments.synced(),
            cron_jobs.synced(),
            services.synced(),
            pods.synced(),
            nodes.synced(),
            claims.synced(),
            disruption_budgets.synced(),
            revisions.synced(),
            secrets.synced(),
            config_maps.synced(),
        );
    }
}

/// Returns `namespace/name` of an object in this object's namespace.
pub fn sibling<K: ResourceExt>(object: &K, name: &str) -> String {
    Key::new(object.namespace().unwrap_or_default(), name).to_string()
}

/// Returns an index value of [`OWNER`].
pub fn owned_by_value(kind: &str, namespace: &str, name: &str) -> String {
    format!("{namespace}/{kind}/{name}")
}

/// Returns an index value of [`REFERENCE`].
pub fn reference_value(kind: &str, namespace: &str, name: &str) -> String {
    format!("{kind}/{namespace}/{name}")
}

fn owner_of<K: ResourceExt>(child: &K) -> Vec<String> {
    let namespace = child.namespace().unwrap_or_default();
    child
        .owner_references()
        .iter()
        .filter(|owner| owner.controller == Some(true))
        .map(|owner| owned_by_value(&owner.kind, &namespace, &owner.name))
        .collect()
}

fn orphan_of(pod: &Pod) -> Vec<String> {
    let in_charge = pod
        .owner_references()
        .iter()
        .any(|owner| owner.controller == Some(true));
    let labels = pod.labels();
    let is_worker = labels.get(label::APP).is_some_and(|app| app == app::SLURMD);
    let instance = labels.get(label::INSTANCE).filter(|_| is_worker && !in_charge);
    instance.into_iter().map(|name| sibling(pod, name)).collect()
}

/// Returns an index value of [`INSTANCE`].
pub fn instance_value(app: &str, namespace: &str, name: &str) -> String {
    format!("{namespace}/{app}/{name}")
}

fn instance_of(pod: &Pod) -> Vec<String> {
    let label = |key| pod.labels().get(key);
    let namespace = pod.namespace().unwrap_or_default();
    label(label::APP)
        .zip(label(label::INSTANCE))
        .map(|(app, name)| instance_value(app, &namespace, name))
        .into_iter()
        .collect()
}

fn node_of(pod: &Pod) -> Vec<String> {
    pod.spec
        .iter()
        .filter_map(|spec| spec.node_name.clone())
        .collect()
}

fn secret<K: Resource>(object: &K, name: &str) -> String {
    reference_value(
        "Secret",
        object.meta().namespace.as_deref().unwrap_or_default(),
        name,
    )
}

fn config_map<K: Resource>(object: &K, name: &str) -> String {
    reference_value(
        "ConfigMap",
        object.meta().namespace.as_deref().unwrap_or_default(),
        name,
    )
}

fn references_of_slurm_cluster(cluster: &SlurmCluster) -> Vec<String> {
    let namespace = cluster.namespace().unwrap_or_default();
    let password = cluster
        .database_password()
        .map(|reference| secret(cluster, &reference.name));
    let files = cluster.spec.files.values();
    let files = files
        .filter_map(|file| file.config_map_key_ref.as_ref())
        .map(|reference| config_map(cluster, &reference.name));
    let claims = cluster.shared_claims();
    let claims = claims
        .into_iter()
        .map(|(_, name, _)| reference_value("PersistentVolumeClaim", &namespace, &name));
    password.into_iter().chain(files).chain(claims).collect()
}

fn references_of_controller(controller: &Controller) -> Vec<String> {
    let spec = &controller.spec;
    let scripts = [
        &spec.config_file_refs,
        &spec.prolog_script_refs,
        &spec.epilog_script_refs,
        &spec.prolog_slurmctld_script_refs,
        &spec.epilog_slurmctld_script_refs,
    ];
    let namespace = controller.namespace().unwrap_or_default();
    let accounting = spec
        .accounting_ref
        .iter()
        .map(|r| reference_value("Accounting", &namespace, &r.name));
    let claims = spec
        .existing_claim()
        .map(|claim| reference_value("PersistentVolumeClaim", &namespace, claim));
    let keys = spec
        .slurm_key_ref
        .iter()
        .chain(spec.jwt_key())
        .map(|key| secret(controller, &key.name));
    let maps = scripts
        .into_iter()
        .flatten()
        .flatten()
        .map(|reference| &reference.name)
        .chain(spec.jwks_key_ref.iter().map(|key| &key.name))
        .map(|name| config_map(controller, name));
    keys.chain(maps).chain(accounting).chain(claims).collect()
}

fn references_of_accounting(accounting: &Accounting) -> Vec<String> {
    let spec = &accounting.spec;
    let password = spec
        .storage_config
        .iter()
        .map(|storage| &storage.password_key_ref);
    let tls = spec
        .storage_config
        .iter()
        .filter_map(|storage| storage.tls.as_ref());
    let client = tls.clone().filter_map(|tls| tls.client_cert_ref.as_ref());
    let client = client.map(|reference| secret(accounting, &reference.name));
    let authorities = tls.map(|tls| &tls.ca_cert_ref);
    let secrets = spec
        .slurm_key_ref
        .iter()
        .chain(spec.jwt_key())
        .chain(password)
        .chain(authorities);
    let maps = spec
        .jwks_key_ref
        .iter()
        .map(|key| config_map(accounting, &key.name));
    secrets
        .map(|key| secret(accounting, &key.name))
        .chain(client)
        .chain(maps)
        .collect()
}

fn references_of_loginset(loginset: &LoginSet) -> Vec<String> {
    loginset
        .spec
        .sssd_conf_ref
        .iter()
        .map(|key| secret(loginset, &key.name))
        .collect()
}

fn references_of_nodeset(nodeset: &NodeSet) -> Vec<String> {
    let sssd = nodeset
        .spec
        .ssh
        .as_ref()
        .and_then(|ssh| ssh.sssd_conf_ref.as_ref());
    sssd.into_iter().map(|key| secret(nodeset, &key.name)).collect()
}

fn references_of_token(token: &Token) -> Vec<String> {
    let key = token.spec.jwt_key().map(|key| key.name.clone());
    // The Token's own Secret counts even while it belongs to someone else: the Token waits for it to be deleted.
    key.into_iter()
        .chain([token.secret_name()])
        .map(|name| secret(token, &name))
        .collect()
}
