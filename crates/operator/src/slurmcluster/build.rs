//! Builds the children. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use keelson_api::{
    Accounting, Controller, LoginSet, NodeSet, RestApi, SlurmCluster,
    slurmcluster::children::{self, Around, Child, Running},
    well_known::file,
};
use keelson_runtime::apply::Desired;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{
    database::{self, Database, operated},
    files,
    observe::{Observed, is_child, is_settled},
};
use crate::{
    children::{
        mariadb::MariaDb,
        metadata::{Metadata, owned_by},
    },
    problem::Problem,
};

/// The objects that a SlurmCluster consists of.
#[derive(Debug)]
pub struct Built {
    pub config_files: Option<Desired<ConfigMap>>,
    pub files: Option<Desired<ConfigMap>>,
    pub database: Option<Database>,
    /// The database that mariadb-operator runs.
    pub operated: Option<Desired<MariaDb>>,
    pub accounting: Option<Desired<Accounting>>,
    pub controller: Desired<Controller>,
    pub restapi: Desired<RestApi>,
    pub loginsets: Vec<Desired<LoginSet>>,
    pub nodesets: Vec<Desired<NodeSet>>,
}

pub fn build(observed: &Observed) -> Result<Built, Problem> {
    let cluster = observed.cluster.as_ref();
    check_claims(observed)?;
    let files = files::contents(observed)?;
    let around = Around {
        other_nodesets: Some(other_nodesets(observed)),
        file_hash: files::hash(cluster, &files),
        running: running(observed),
    };
    let compute = |around: &Around| {
        children::children(cluster, around).map_err(|report| Problem::invalid(report.to_string()))
    };
    let nodesets: Vec<Desired<NodeSet>> = compute(&around)?
        .nodesets
        .iter()
        .map(|child| desired(cluster, child))
        .collect::<Result<_, _>>()?;
    // Only other children depend on which workers are old.
    let children = compute(&Around {
        running: Running {
            old_workers: old_workers(observed, &nodesets, &around.running.gres_conf),
            ..around.running.clone()
        },
        ..around
    })?;
    let config_files = (!children.config_files.is_empty()).then(|| {
        let name = children::config_files_name(cluster);
        config_map(cluster, &name, &children.config_files)
    });
    Ok(Built {
        config_files,
        files: (!files.is_empty()).then(|| config_map(cluster, &children::files_name(cluster), &files)),
        database: database::build(observed)?,
        operated: operated::build(observed)?,
        accounting: children
            .accounting
            .as_ref()
            .map(|child| desired(cluster, child))
            .transpose()?,
        controller: desired(cluster, &children.controller)?,
        restapi: desired(cluster, &children.restapi)?,
        loginsets: children
            .loginsets
            .iter()
            .map(|child| desired(cluster, child))
            .collect::<Result<_, _>>()?,
        nodesets,
    })
}

/// What the cluster runs with, apart from its workers.
fn running(observed: &Observed) -> Running {
    let controller = observed.live.controller.as_deref();
    let controller = controller.filter(|controller| is_child(*controller, &observed.cluster));
    let files = observed.config_files.as_ref();
    let gres_conf = files.and_then(|files| files.data.as_ref()?.get(file::GRES_CONF));
    Running {
        extra_conf: controller
            .and_then(|controller| controller.spec.extra_conf.clone())
            .unwrap_or_default(),
        gres_conf: gres_conf.cloned().unwrap_or_default(),
        old_workers: BTreeSet::new(),
    }
}

/// Returns what the Slurm names of workers begin with that are to be removed or replaced, as far as their NodeSet says.
fn old_workers(observed: &Observed, desired: &[Desired<NodeSet>], gres_conf: &str) -> BTreeSet<String> {
    let cluster = observed.cluster.as_ref();
    let is_old = |nodeset: &&NodeSet| {
        let wanted = desired
            .iter()
            .find(|desired| desired.key().name == nodeset.name_any());
        let is_applied = wanted.is_some_and(|wanted| wanted.is_applied_to(*nodeset));
        nodeset.metadata.deletion_timestamp.is_some() || !is_applied || !is_settled(nodeset)
    };
    let nodesets = observed.live.nodesets.iter().map(AsRef::as_ref);
    let nodesets = nodesets.filter(|nodeset| is_child(*nodeset, cluster));
    let prefixes: BTreeSet<String> = nodesets.clone().map(NodeSet::node_prefix).collect();
    let mut old: BTreeSet<String> = nodesets.filter(is_old).map(NodeSet::node_prefix).collect();
    if !old.is_empty() {
        // A NodeSet whose hostname was changed does not say how its old workers are named.
        old.extend(children::detected_prefixes(gres_conf).filter(|prefix| !prefixes.contains(prefix)));
    }
    old
}

/// Returns the Slurm names of NodeSets that belong to the cluster, but not to this object.
fn other_nodesets(observed: &Observed) -> BTreeSet<String> {
    let nodesets = observed.live.nodesets.iter();
    nodesets
        .filter(|nodeset| !is_child(nodeset.as_ref(), &observed.cluster))
        .map(|nodeset| nodeset.slurm_name())
        .collect()
}

fn metadata(cluster: &SlurmCluster) -> Metadata {
    Metadata::inherited(cluster)
}

fn desired<K>(cluster: &SlurmCluster, child: &Child<K>) -> Result<Desired<K>, Problem>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let namespace = cluster.namespace().unwrap_or_default();
    // A field of the wrong type is refused here, with the name that the user wrote.
    child.object(&namespace).map_err(|error| {
        let path = error.path().to_string();
        let path = path.strip_prefix("spec.").unwrap_or(&path).to_owned();
        Problem::invalid(format!("{}.{path}: {}", child.field, error.into_inner()))
    })?;
    let annotations = child
        .annotations
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()));
    let metadata = metadata(cluster).with_annotations(annotations).of_object(
        &namespace,
        &child.name,
        &[owned_by(cluster)],
    );
    Ok(Desired::new(json!({ "metadata": metadata, "spec": child.spec })))
}

fn config_map(cluster: &SlurmCluster, name: &str, files: &BTreeMap<String, String>) -> Desired<ConfigMap> {
    let namespace = cluster.namespace().unwrap_or_default();
    let metadata = metadata(cluster).of_object(&namespace, name, &[owned_by(cluster)]);
    Desired::new(json!({ "metadata": metadata, "data": files }))
}

/// Pods on several nodes can only share a volume that allows it.
fn check_claims(observed: &Observed) -> Result<(), Problem> {
    let cluster = observed.cluster.as_ref();
    if cluster.pods_that_share() < 2 {
        return Ok(());
    }
    for (path, name, read_only) in cluster.shared_claims() {
        // Kubernetes reports a missing claim at the pod.
        let Some(claim) = observed.claims.get(&name) else {
            continue;
        };
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.clone());
        let modes = modes.unwrap_or_default();
        let is_enough = |mode: &String| mode == "ReadWriteMany" || (read_only && mode == "ReadOnlyMany");
        if !modes.iter().any(is_enough) {
            return Err(Problem::invalid(format!(
                "{path}: claim {name} allows {}, but pods on several nodes mount it: use a claim that allows ReadWriteMany",
                modes.join(", ")
            )));
        }
    }
    Ok(())
}
