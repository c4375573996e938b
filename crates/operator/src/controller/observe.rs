//! Reads the inputs of a Controller and its existing children.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service},
};
use keelson_api::{Accounting, Controller, NodeSet};
use keelson_runtime::{Key, contents, optional_kind::Installed};
use kube::ResourceExt;
use slurm_rest::{Fetched, partition::Partition};

use super::{
    configuration::{
        change::Usage,
        gres,
        {delivery::Answer, status_port},
    },
    rivals::Rival,
};
use crate::{
    caches::{CONTROLLER, OWNER, owned_by_value},
    children::service_monitor::ServiceMonitor,
    context::Context,
    fingerprints::HashKey,
    slurm::facts::Slurm,
};

/// Input of the other steps.
#[derive(Debug, Clone)]
pub struct Observed {
    pub controller: Arc<Controller>,
    pub accounting: Option<Arc<Accounting>>,
    /// The NodeSets that register with this Controller, by name.
    pub nodesets: Vec<Arc<NodeSet>>,
    /// The other Controllers of the namespace.
    pub rivals: Vec<Rival>,
    pub slurm_key: Option<Arc<Secret>>,
    pub jwt_key: Option<Arc<Secret>>,
    pub hash_key: Option<HashKey>,
    /// Every ConfigMap that the spec names; `None` if it does not exist.
    pub config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    /// The existing claim that the spec names, if any.
    pub claim: Option<Arc<PersistentVolumeClaim>>,
    /// Number of Kubernetes nodes, for NodeSets with one worker per node.
    pub kubernetes_nodes: usize,
    /// Number of nodes that Slurm knows, including those of deleted workers; 0 while Slurm does not answer.
    pub slurm_nodes: usize,
    /// Whether the cluster has the CRD of `ServiceMonitor`.
    pub monitoring: Installed,
    pub live: Live,
}

/// The existing children.
#[derive(Debug, Clone, Default)]
pub struct Live {
    pub internal_service: Option<Arc<Service>>,
    pub service: Option<Arc<Service>>,
    /// The configuration that was published last.
    pub config: Option<Arc<ConfigMap>>,
    /// The configuration that slurmctld accepted last.
    pub config_in_use: Option<Arc<ConfigMap>>,
    pub stateful_set: Option<Arc<StatefulSet>>,
    pub pods: Vec<Arc<Pod>>,
    pub monitor: Option<Arc<ServiceMonitor>>,
    /// What the `init` of each pod reports.
    pub answers: Vec<Answer>,
}

pub fn workload(controller: &Controller) -> Key {
    Key::new(
        controller.namespace().unwrap_or_default(),
        controller.controller_name(),
    )
}

pub async fn observe(context: &Context, controller: Arc<Controller>) -> Result<Observed, contents::Error> {
    let caches = &context.caches;
    let namespace = controller.namespace().unwrap_or_default();
    let here = |name: &str| Key::new(&namespace, name);
    let spec = &controller.spec;

    let mut config_maps = BTreeMap::new();
    for name in config_map_names(&controller) {
        let map = context.config_map(&namespace, &name).await?;
        config_maps.insert(name, map);
    }
    let mut keys = [None, None];
    for (slot, reference) in keys.iter_mut().zip([spec.slurm_key_ref.as_ref(), spec.jwt_key()]) {
        if let Some(reference) = reference {
            *slot = context.secret(&namespace, &reference.name).await?;
        }
    }
    let [slurm_key, jwt_key] = keys;
    let hash_key = if spec.external {
        None
    } else {
        context.hash_key(controller.as_ref()).await?
    };
    let workload = controller.controller_name();
    let pods = caches
        .pods
        .find(OWNER, &owned_by_value("StatefulSet", &namespace, &workload));
    let answers = status_port::ask(&context.http, &pods).await;
    Ok(Observed {
        accounting: spec
            .accounting_ref
            .as_ref()
            .and_then(|r| caches.accountings.get(&here(&r.name))),
        nodesets: caches
            .nodesets
            .find(CONTROLLER, &Key::of(controller.as_ref()).to_string()),
        rivals: rivals(context, &controller),
        slurm_key,
        jwt_key,
        hash_key,
        config_maps,
        claim: spec
            .existing_claim()
            .and_then(|claim| caches.claims.get(&here(claim))),
        kubernetes_nodes: caches.nodes.len(),
        slurm_nodes: match context.mirrors.slurm(&here(&controller.name_any())) {
            Slurm::Unknown { .. } => 0,
            Slurm::Known { nodes, .. } => nodes.len(),
        },
        monitoring: caches.service_monitors.installed(),
        live: Live {
            internal_service: caches.services.get(&here(&controller.internal_service_name())),
            service: caches.services.get(&here(&workload)),
            config: context.config_map(&namespace, &controller.config_name()).await?,
            config_in_use: context
                .config_map(&namespace, &controller.config_in_use_name())
                .await?,
            stateful_set: caches.stateful_sets.get(&self::workload(&controller)),
            pods,
            monitor: caches.service_monitors.cache.get(&here(&workload)),
            answers,
        },
        controller,
    })
}

fn rivals(context: &Context, controller: &Controller) -> Vec<Rival> {
    let caches = &context.caches;
    let (namespace, name) = (controller.namespace(), controller.name_any());
    let others = caches.controllers.all().into_iter();
    others
        .filter(|other| other.namespace() == namespace && other.name_any() != name)
        .map(|controller| Rival {
            runs: caches.stateful_sets.get(&workload(&controller)).is_some(),
            controller,
        })
        .collect()
}

fn config_map_names(controller: &Controller) -> Vec<String> {
    let spec = &controller.spec;
    let lists = [
        &spec.config_file_refs,
        &spec.prolog_script_refs,
        &spec.epilog_script_refs,
        &spec.prolog_slurmctld_script_refs,
        &spec.epilog_slurmctld_script_refs,
    ];
    let names = lists
        .into_iter()
        .flatten()
        .flatten()
        .map(|reference| reference.name.clone());
    names
        .chain(spec.jwks_key_ref.iter().map(|key| key.name.clone()))
        .collect()
}

/// Reads the partitions and jobs of Slurm, and its nodes if wanted; `None` if Slurm does not answer.
pub async fn observe_usage(context: &Context, key: &Key, with_nodes: bool) -> Option<Usage> {
    let client = context.mirrors.client(key)?;
    // Before the jobs: a job that starts after both were read starts on a node that takes jobs.
    let nodes = if with_nodes {
        Some(client.nodes(None).await.ok()?)
    } else {
        None
    };
    let (partitions, jobs) = tokio::join!(client.partitions(None), client.jobs(None));
    let (Ok(Fetched::Changed(partitions)), Ok(Fetched::Changed(jobs))) = (partitions, jobs) else {
        return None;
    };
    let gres = match &nodes {
        Some(Fetched::Changed(nodes)) => gres::nodes_in_use(&nodes.items, &jobs.items),
        // The request was not for changes only; an answer without a list proves nothing.
        Some(Fetched::Unchanged) | None => None,
    };
    // A draining or inactive partition takes no new jobs; one that is down still queues them.
    let takes_jobs =
        |partition: &Partition| !(partition.state.contains("DRAIN") || partition.state.contains("INACTIVE"));
    Some(Usage {
        partitions: partitions
            .items
            .iter()
            .map(|p| (p.name.to_string(), takes_jobs(p)))
            .collect(),
        jobs: jobs
            .items
            .iter()
            .filter(|job| job.is_active())
            .map(|job| (job.id, job.partition.iter().map(str::to_owned).collect()))
            .collect(),
        gres,
    })
}
