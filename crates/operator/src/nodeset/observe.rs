//! Reads a NodeSet, its pods and the objects it depends on.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{ConfigMap, Node, PersistentVolumeClaim, Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use keelson_api::{Controller, NodeSet, nodeset::ScalingMode};
use keelson_runtime::{Key, contents};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::{nodeset_facts, pod_facts};
use crate::{
    caches::{CONTROLLER, ORPHAN, OWNER, owned_by_value},
    context::Context,
    fingerprints::HashKey,
    keys,
};

/// The objects that were read. `derive_facts` turns them into facts.
#[derive(Debug, Clone)]
pub struct Read {
    pub nodeset: Arc<NodeSet>,
    pub controller: Option<Arc<Controller>>,
    /// The configuration that slurmctld accepted last.
    pub config_in_use: Option<Arc<ConfigMap>>,
    /// All NodeSets of the same Controller, including this one.
    pub siblings: Vec<Arc<NodeSet>>,
    /// Pods of the other NodeSets. DaemonSet mode only: workers are named after Kubernetes nodes, and names must be
    /// unique.
    pub pods_of_siblings: Vec<Arc<Pod>>,
    pub slurm_key: Option<Arc<Secret>>,
    pub hash_key: Option<HashKey>,
    /// Checksum of the slurm.key that slurmctld runs with, unless slurmctld is external.
    pub slurm_key_in_use: Option<String>,
    pub sssd: Option<Arc<Secret>>,
    pub cluster_domain: String,
    pub pods: Vec<Arc<Pod>>,
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// The workers' claims that exist, by name.
    pub claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    /// The revisions of the NodeSet, and revisions without an owner whose names have its prefix.
    pub revisions: Vec<Arc<ControllerRevision>>,
    pub live: Live,
}

/// The existing children other than pods.
#[derive(Debug, Clone, Default)]
pub struct Live {
    pub workers_service: Option<Arc<Service>>,
    pub workers_budget: Option<Arc<PodDisruptionBudget>>,
    pub ssh_config: Option<Arc<ConfigMap>>,
}

pub async fn read(context: &Context, nodeset: Arc<NodeSet>) -> Result<Read, contents::Error> {
    let caches = &context.caches;
    let namespace = nodeset.namespace().unwrap_or_default();
    let here = |name: &str| Key::new(&namespace, name);
    let controller_key = here(&nodeset.spec.controller_ref.name);
    let controller = caches.controllers.get(&controller_key);
    let key = controller
        .as_ref()
        .and_then(|controller| controller.spec.slurm_key_ref.as_ref());
    let slurm_key = match key {
        Some(key) => context.secret(&namespace, &key.name).await?,
        None => None,
    };
    let slurmctld = controller
        .as_ref()
        .and_then(|controller| caches.stateful_sets.get(&here(&controller.controller_name())));
    let sssd = match nodeset
        .spec
        .ssh
        .as_ref()
        .and_then(|ssh| ssh.sssd_conf_ref.as_ref())
    {
        Some(reference) if nodeset.spec.sssd_enabled() => context.secret(&namespace, &reference.name).await?,
        _ => None,
    };
    let owned = owned_by_value("NodeSet", &namespace, &nodeset.name_any());
    let is_ours = |owners: &[OwnerReference]| {
        owners
            .iter()
            .any(|owner| Some(&owner.uid) == nodeset.metadata.uid.as_ref())
    };
    let mut pods: Vec<Arc<Pod>> = caches.pods.find(OWNER, &owned);
    pods.retain(|pod| is_ours(pod.owner_references()));
    let orphans = caches.pods.find(ORPHAN, &here(&nodeset.name_any()).to_string());
    pods.extend(
        orphans
            .into_iter()
            .filter(|pod| pod_facts::is_one_of(&nodeset, pod)),
    );
    let nodes = match nodeset.spec.scaling_mode {
        ScalingMode::DaemonSet => caches
            .nodes
            .all()
            .into_iter()
            .map(|node| (node.name_any(), node))
            .collect(),
        ScalingMode::StatefulSet => pods
            .iter()
            .filter_map(|pod| pod_facts::target(pod))
            .chain(nodeset_facts::pins(&nodeset).into_values())
            .filter_map(|name| Some((name.clone(), caches.nodes.get(&Key::new("", name))?)))
            .collect(),
    };
    let siblings = caches.nodesets.find(CONTROLLER, &controller_key.to_string());
    let pods_of_siblings = match nodeset.spec.scaling_mode {
        ScalingMode::DaemonSet => siblings
            .iter()
            .filter(|sibling| sibling.metadata.uid != nodeset.metadata.uid)
            .flat_map(|sibling| {
                let owned = owned_by_value("NodeSet", &namespace, &sibling.name_any());
                caches.pods.find(OWNER, &owned)
            })
            .collect(),
        ScalingMode::StatefulSet => vec![],
    };
    let claims = pods
        .iter()
        .flat_map(|pod| pod_facts::claim_names(&nodeset, pod))
        .filter_map(|name| Some((name.clone(), caches.claims.get(&here(&name))?)))
        .collect();
    let prefix = nodeset.pod_generate_name();
    let mut revisions = if nodeset_facts::is_deletion_undecided(&nodeset, &pods) {
        revisions_now(&context.client, &nodeset).await?
    } else {
        caches.revisions.all()
    };
    revisions.retain(|revision| {
        let owners = revision.owner_references();
        revision.namespace().as_deref() == Some(&namespace)
            && (is_ours(owners) || (owners.is_empty() && revision.name_any().starts_with(&prefix)))
    });
    let ssh_config = if nodeset.spec.ssh_enabled() {
        context.config_map(&namespace, &nodeset.ssh_config_name()).await?
    } else {
        None
    };
    let config_in_use = match &controller {
        Some(controller) => {
            context
                .config_map(&namespace, &controller.config_in_use_name())
                .await?
        }
        None => None,
    };
    Ok(Read {
        controller,
        config_in_use,
        slurm_key,
        hash_key: context.hash_key(nodeset.as_ref()).await?,
        slurm_key_in_use: keys::slurm_key_in_use(slurmctld.as_deref()),
        siblings,
        pods_of_siblings,
        sssd,
        cluster_domain: context.settings.cluster_domain.clone(),
        pods,
        nodes,
        claims,
        revisions,
        live: Live {
            workers_service: caches.services.get(&here(&nodeset.workers_service_name())),
            workers_budget: caches.disruption_budgets.get(&here(&nodeset.workers_pdb_name())),
            ssh_config,
        },
        nodeset,
    })
}

/// Reads the revisions from the API server. The watches of NodeSets and revisions are not synchronised: the NodeSet
/// watch may report that the garbage collector has finished before the revision watch shows the released revisions.
async fn revisions_now(
    client: &Client,
    nodeset: &NodeSet,
) -> Result<Vec<Arc<ControllerRevision>>, contents::Error> {
    let key = Key::of(nodeset);
    let api = Api::<ControllerRevision>::namespaced(client.clone(), &key.namespace);
    let params = ListParams::default();
    let list = contents::limited("ControllerRevisions of NodeSet", &key, api.list(&params)).await?;
    Ok(list.items.into_iter().map(Arc::new).collect())
}
