//! Computes the children of a SlurmCluster: objects of the six kinds, with the names that chart `slurm` uses, and a ConfigMap
//! for generated files. Pure.
//!
//! Each child is what the user wrote for it, over our defaults. A field that neither of them sets is not in the child.

mod database;
mod gpu;
mod partitions;
mod parts;
mod pods;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

use kube_core::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{SlurmCluster, SlurmClusterSpec};
use crate::overrides::{PodTemplate, RawObject};
use crate::validate::{Path, Report};
use crate::well_known::{annotation, file};
use crate::{Accounting, Controller, LoginSet, NodeSet, NodeSetSpec, RestApi};

pub use database::{DATABASE_VOLUME, MARIADB_IMAGE, PASSWORD, USER};
pub use gpu::detected_prefixes;
pub use partitions::{contains, partitions};
pub use pods::{image_of, pull_secrets};
pub use shared::{check_size, content_of, file_field};

/// A child: the spec to apply, and the field of the SlurmCluster that it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Child<K> {
    /// Name of the object.
    pub name: String,
    /// Annotations of the object.
    pub annotations: BTreeMap<String, String>,
    /// Its spec.
    pub spec: Value,
    /// The field that it comes from, such as `spec.nodeSets.gpu`.
    pub field: Path,
    /// Fields of the child that the user wrote elsewhere: where they are in the child, and in the SlurmCluster.
    origins: Vec<(Path, Path)>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Resource<DynamicType = ()> + DeserializeOwned> Child<K> {
    fn new(name: String, field: Path, spec: Value) -> Self {
        Self {
            name,
            annotations: BTreeMap::new(),
            spec,
            field,
            origins: Vec::new(),
            kind: PhantomData,
        }
    }

    /// Where the user wrote this field of the child.
    pub fn origin(&self, path: &Path) -> Path {
        let mut elsewhere = self.origins.iter();
        elsewhere
            .find_map(|(here, there)| path.moved(here, there))
            .or_else(|| path.moved(&Path::spec(), &self.field))
            .unwrap_or_else(|| self.field.clone())
    }

    /// The child as an object in this namespace. Fails if a field has a wrong type.
    pub fn object(&self, namespace: &str) -> Result<K, serde_path_to_error::Error<serde_json::Error>> {
        serde_path_to_error::deserialize(json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": { "name": self.name, "namespace": namespace, "annotations": self.annotations },
            "spec": self.spec,
        }))
    }
}

/// The children of a SlurmCluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Children {
    /// slurmctld.
    pub controller: Child<Controller>,
    /// slurmdbd, if the cluster has accounting.
    pub accounting: Option<Child<Accounting>>,
    /// slurmrestd.
    pub restapi: Child<RestApi>,
    /// Login pods.
    pub loginsets: Vec<Child<LoginSet>>,
    /// Workers.
    pub nodesets: Vec<Child<NodeSet>>,
    /// Generated files in the directory of slurm.conf, by name. The ConfigMap of the Controller's `configFileRefs`.
    pub config_files: BTreeMap<String, String>,
}

/// Context of the children that is not in the SlurmCluster itself.
#[derive(Debug, Clone, Default)]
pub struct Around {
    /// Slurm names of NodeSets that name this cluster in `controllerRef` without being its children. `None` if they are not
    /// known.
    pub other_nodesets: Option<BTreeSet<String>>,
    /// Contents of `files` that roll out, by path. Those from ConfigMaps are known to the operator only.
    pub file_hash: Option<String>,
    /// What the cluster runs with, for what must not change under running jobs. Known to the operator only.
    pub running: Running,
}

/// What the cluster runs with.
#[derive(Debug, Clone, Default)]
pub struct Running {
    /// `extraConf` of the Controller.
    pub extra_conf: String,
    /// The generated gres.conf.
    pub gres_conf: String,
    /// What the Slurm names of workers that are to be removed or replaced begin with.
    pub old_workers: BTreeSet<String>,
}

/// Computes the children, or reports why there are none.
pub fn children(cluster: &SlurmCluster, around: &Around) -> Result<Children, Report> {
    let mut report = Report::default();
    check_names(cluster, &mut report);
    pods::Pods::of(cluster).check_images(&mut report);
    shared::check(cluster, &mut report);
    let children = Children {
        controller: parts::controller(cluster, around, &mut report),
        accounting: parts::accounting(cluster, &mut report),
        restapi: parts::restapi(cluster),
        loginsets: parts::loginsets(cluster, around, &mut report),
        nodesets: parts::nodesets(cluster, around, &mut report),
        config_files: config_files(cluster, around),
    };
    if report.is_valid() {
        Ok(children)
    } else {
        Err(report)
    }
}

/// Names of entries become parts of names in Kubernetes and Slurm.
fn check_names(cluster: &SlurmCluster, report: &mut Report) {
    let SlurmClusterSpec { login, node_sets, .. } = &cluster.spec;
    let of = |field: &'static str, names: Vec<&String>| {
        let names: Vec<String> = names.into_iter().cloned().collect();
        names.into_iter().map(move |name| (field, name))
    };
    let names = of("login", login.keys().collect()).chain(of("nodeSets", node_sets.keys().collect()));
    for (field, name) in names {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
        let ends = name.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        if !(starts && ends && name.chars().all(plain)) {
            report.refuse(
                &Path::spec().field(field).field(&name),
                format!("{name:?} cannot be part of a name in Kubernetes and Slurm"),
                "use lower-case letters, digits and '-', starting with a letter and ending with a letter or digit",
            );
        } else if name == "all" && field == "nodeSets" {
            report.refuse(
                &Path::spec().field(field).field(&name),
                "ALL is Slurm's word for all nodes",
                "use another name",
            );
        }
    }
}

fn config_files(cluster: &SlurmCluster, around: &Around) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    if !cluster.spec.confine_jobs {
        files.insert(file::CGROUP_CONF.to_owned(), "CgroupPlugin=disabled\n".to_owned());
    }
    files.extend(gpu::gres_conf(cluster, &around.running).map(|text| (file::GRES_CONF.to_owned(), text)));
    files
}

/// Annotations that make the operator generate the keys that the user did not name.
fn generated_keys(keys: &[&str]) -> BTreeMap<String, String> {
    let value = match keys {
        [] => return BTreeMap::new(),
        keys if keys.len() == annotation::GENERATE_KEYS.len() => "true".to_owned(),
        keys => keys.join(","),
    };
    BTreeMap::from([(annotation::GENERATE.to_owned(), value)])
}

/// Name of the NodeSet with the workers of this name in `nodeSets`.
pub fn nodeset_name(cluster: &SlurmCluster, workers: &str) -> String {
    format!("{}{workers}", nodeset_prefix(cluster))
}

/// The NodeSet with the workers of this name in `nodeSets`, with the fields that Slurm's names derive from.
fn named_nodeset(cluster: &SlurmCluster, workers: &str) -> NodeSet {
    let mut nodeset = NodeSet::new(&nodeset_name(cluster, workers), NodeSetSpec::default());
    let hostname = Map::from_iter([("hostname".to_owned(), parts::hostname(cluster, workers))]);
    nodeset.spec.template = Some(PodTemplate {
        metadata: None,
        spec: Some(RawObject(hostname)),
    });
    nodeset
}

/// The name in `nodeSets` that a NodeSet of this cluster has or had.
pub fn workers_of<'a>(cluster: &SlurmCluster, nodeset: &'a str) -> Option<&'a str> {
    nodeset.strip_prefix(&nodeset_prefix(cluster))
}

fn nodeset_prefix(cluster: &SlurmCluster) -> String {
    format!("{}-worker-", cluster.name_any())
}

/// Name of the ConfigMap with [`Children::config_files`].
pub fn config_files_name(cluster: &SlurmCluster) -> String {
    format!("{}-config-extra", cluster.name_any())
}

/// Name of the ConfigMap with the files of logins and workers.
pub fn files_name(cluster: &SlurmCluster) -> String {
    format!("{}-files", cluster.name_any())
}

/// Name of the database's StatefulSet, Service and password Secret.
pub fn database_name(cluster: &SlurmCluster) -> String {
    format!("{}-mariadb", cluster.name_any())
}

/// Name of the MariaDB object of mariadb-operator, which gives the names of its own StatefulSet and Services.
pub fn operated_database_name(cluster: &SlurmCluster) -> String {
    format!("{}-database", cluster.name_any())
}

/// Name of the CronJob that dumps the database.
pub fn dump_name(cluster: &SlurmCluster) -> String {
    format!("{}-dump", database_name(cluster))
}

/// Name of the PersistentVolumeClaim of the database.
pub fn data_claim_name(cluster: &SlurmCluster) -> String {
    format!("{DATABASE_VOLUME}-{}-0", database_name(cluster))
}

#[cfg(test)]
mod tests;
