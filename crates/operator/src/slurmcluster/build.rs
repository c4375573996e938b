//! Builds the children. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use keelson_api::{
    Accounting, Controller, LoginSet, NodeSet, RestApi, SlurmCluster,
    slurmcluster::children::{self, Around, Child},
};
use keelson_runtime::apply::Desired;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{
    database::{self, Database, operated},
    files,
    observe::{Observed, is_child},
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
    };
    let children =
        children::children(cluster, &around).map_err(|report| Problem::invalid(report.to_string()))?;
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
        nodesets: children
            .nodesets
            .iter()
            .map(|child| desired(cluster, child))
            .collect::<Result<_, _>>()?,
    })
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
