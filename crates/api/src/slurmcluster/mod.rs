//! SlurmCluster: a whole Slurm cluster in one object.
//!
//! Its children are the six kinds. [`children`] computes them; it is pure, and the operator and the webhook both use it.

pub mod children;
mod fields;
mod status;
mod storage;

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::accounting::StorageTls;
use crate::auth::Auth;
use crate::defaults;
use crate::overrides::RawObject;
use crate::references::{LocalObjectReference, SecretKeySelector};
use crate::scalars::Quantity;
use crate::{AccountingSpec, ControllerSpec, LoginSetSpec, NodeSetSpec, RestApiSpec};

pub use fields::Fields;
pub use status::{ComponentStatus, NodeCounts, PartitionStatus, Phase, SlurmClusterStatus};
pub use storage::{File, FileUpdate, NfsVolume, SharedVolume, Storage, Volume};

/// A whole Slurm cluster: slurmctld, slurmrestd, accounting, logins, workers and partitions.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "keelson.dev",
    version = "v1alpha1",
    kind = "SlurmCluster",
    plural = "slurmclusters",
    shortname = "slc",
    namespaced,
    status = "SlurmClusterStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "A whole Slurm cluster: slurmctld, slurmrestd, accounting, logins, workers and partitions.",
    crates(kube_core = "::kube_core"),
    printcolumn = r#"{"name": "PHASE", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "SLURM", "type": "string", "jsonPath": ".status.version"}"#,
    printcolumn = r#"{"name": "WORKERS", "type": "integer", "jsonPath": ".status.nodes.desired"}"#,
    printcolumn = r#"{"name": "READY", "type": "integer", "jsonPath": ".status.nodes.ready"}"#,
    printcolumn = r#"{"name": "IDLE", "type": "integer", "jsonPath": ".status.nodes.idle"}"#,
    printcolumn = r#"{"name": "ALLOCATED", "type": "integer", "jsonPath": ".status.nodes.allocated"}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.hibernate)",
     "message": "hibernate is not supported yet: leave it out; to stop all workers, set replicas to 0 in nodeSets",
     "fieldPath": ".hibernate", "reason": "FieldValueInvalid"},
    {"rule": "!has(self.exporter)",
     "message": "exporter is not supported yet: leave it out; slurmctld's own metrics are in controller.metrics",
     "fieldPath": ".exporter", "reason": "FieldValueInvalid"},
    {"rule": "self.version == oldSelf.version",
     "message": "the Slurm release of a cluster cannot be changed here yet: follow the how-to about upgrades, or set image in each component",
     "fieldPath": ".version", "reason": "FieldValueInvalid"},
    // `controller.auth` takes precedence.
    {"rule": "(has(self.controller) && has(self.controller.auth) && has(self.controller.auth.type) ? self.controller.auth.type : has(self.auth) && has(self.auth.type) ? self.auth.type : 'slurm') == (has(oldSelf.controller) && has(oldSelf.controller.auth) && has(oldSelf.controller.auth.type) ? oldSelf.controller.auth.type : has(oldSelf.auth) && has(oldSelf.auth.type) ? oldSelf.auth.type : 'slurm')",
     "message": "the type cannot be changed, here or in controller.auth, because the daemons of a cluster would no longer understand each other: restore the old value, or create a new object",
     "fieldPath": ".auth", "reason": "FieldValueInvalid"},
]))]
pub struct SlurmClusterSpec {
    /// Slurm release, such as `26.05`: the tag of all images that are not set otherwise. Cannot be changed yet.
    #[serde(default = "defaults::slurm_release")]
    #[schemars(extend("maxLength" = 64))]
    pub version: String,

    /// Where images come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<Images>,

    /// Whether cgroups confine jobs to the cores, memory and GPUs that they asked for. This needs privileged workers. If
    /// false, workers run without privileges, and jobs are tracked and bound to cores, but not confined.
    #[serde(default = "defaults::yes")]
    pub confine_jobs: bool,

    /// How the daemons authenticate each other: with auth/slurm by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,

    /// slurmctld: any field of a Controller's spec. The Slurm and JWT keys are generated unless they are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Fields<ControllerSpec>>,

    /// slurmdbd and its database. Without it, Slurm keeps no records of jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting: Option<AccountingPart>,

    /// slurmrestd: any field of a RestApi's spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_api: Option<Fields<RestApiSpec>>,

    /// Login pods by name: any field of a LoginSet's spec. The LoginSet is named `<cluster>-login-<name>`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub login: BTreeMap<String, Fields<LoginSetSpec>>,

    /// Workers by name. The NodeSet is named `<cluster>-worker-<name>`, and its Slurm nodes `<name>-0`, `<name>-1` and so on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_sets: BTreeMap<String, NodeSetPart>,

    /// Partitions by name. By default, one partition `all` contains all workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<BTreeMap<String, PartitionPart>>,

    /// Volumes that login pods and workers share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,

    /// Files in login pods and workers, by absolute path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, File>,

    /// Not supported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hibernate: Option<bool>,

    /// Not supported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exporter: Option<RawObject>,
}

impl Default for SlurmClusterSpec {
    fn default() -> Self {
        Self {
            version: defaults::slurm_release(),
            images: None,
            confine_jobs: defaults::yes(),
            auth: None,
            controller: None,
            accounting: None,
            rest_api: None,
            login: BTreeMap::new(),
            node_sets: BTreeMap::new(),
            partitions: None,
            storage: None,
            files: BTreeMap::new(),
            hibernate: None,
            exporter: None,
        }
    }
}

/// Where images come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Images {
    /// Registry and optional path of all images that are not set otherwise. Defaults to `localhost/keelson`: images that are
    /// already on the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// Pull policy of all containers that do not set one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<String>,
    /// Secrets with registry credentials, for all pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<LocalObjectReference>,
}

/// slurmdbd and its database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccountingPart {
    /// Whether the cluster has accounting.
    #[serde(default = "defaults::yes")]
    pub enabled: bool,
    /// Database of slurmdbd. Defaults to `embedded: {}`, unless `storageConfig` or `external` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<Database>,
    /// Any field of an Accounting's spec.
    #[serde(flatten)]
    pub fields: Fields<AccountingSpec>,
}

impl Default for AccountingPart {
    fn default() -> Self {
        Self {
            enabled: defaults::yes(),
            database: None,
            fields: Fields::default(),
        }
    }
}

/// Database of slurmdbd. Set exactly one field.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "(has(self.embedded) ? 1 : 0) + (has(self.external) ? 1 : 0) + (has(self.mariadbOperator) ? 1 : 0) == 1",
     "message": "set exactly one of embedded, external and mariadbOperator"},
]))]
pub struct Database {
    /// A MariaDB that the operator runs for this cluster alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedded: Option<EmbeddedDatabase>,
    /// A MariaDB or MySQL that is already there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalDatabase>,
    /// A MariaDB that mariadb-operator runs. Its CRDs must be installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mariadb_operator: Option<OperatedDatabase>,
}

/// A MariaDB that mariadb-operator runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatedDatabase {
    /// Size of the volume. Defaults to `10Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Quantity>,
    /// Secret key with the password of slurmdbd's user, without a line break. By default, the operator generates a Secret once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_key_ref: Option<SecretKeySelector>,
    /// Host that slurmdbd connects to. Defaults to the Service of the MariaDB object. With replication or Galera, set it to
    /// the Service of the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Fields of the spec of the MariaDB object (`k8s.mariadb.com/v1alpha1`), merged over the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<RawObject>,
}

/// A MariaDB that the operator runs for this cluster alone: one pod and one volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "(has(self.storage) ? string(self.storage) : '10Gi') == (has(oldSelf.storage) ? string(oldSelf.storage) : '10Gi')",
     "message": "the size of an existing volume is changed in its PersistentVolumeClaim, not here",
     "fieldPath": ".storage", "reason": "FieldValueInvalid"},
    {"rule": "(has(self.storageClassName) ? self.storageClassName : '') == (has(oldSelf.storageClassName) ? oldSelf.storageClassName : '')",
     "message": "the class of an existing volume cannot be changed: dump the database and restore it into a new cluster",
     "fieldPath": ".storageClassName", "reason": "FieldValueInvalid"},
]))]
pub struct EmbeddedDatabase {
    /// Size of the volume. Defaults to `10Gi`. Cannot be changed: to grow the volume, change its PersistentVolumeClaim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Quantity>,
    /// StorageClass of the volume. Defaults to the cluster's default. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// Secret key with the password of slurmdbd's user. By default, the operator generates a Secret once. To change the
    /// password, replace the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_key_ref: Option<SecretKeySelector>,
    /// Overrides of the container; fields of a core/v1 Container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mariadb: Option<RawObject>,
    /// Overrides of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<crate::overrides::PodTemplate>,
    /// Scheduled dumps. None by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<DatabaseDump>,
    /// Dump to load before the database starts for the first time. It is not read once there is a database, but its claim must
    /// exist until you remove this field, because the pod mounts it at every start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_from: Option<DumpFile>,
}

/// Scheduled dumps of a database.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseDump {
    /// When to dump, in cron format, such as `15 3 * * *`.
    pub schedule: String,
    /// Time zone of the schedule, such as `Europe/Vienna`. Defaults to that of kube-controller-manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Number of dumps to keep. The oldest ones are removed after a new one is complete.
    #[serde(default = "defaults::kept_dumps")]
    #[schemars(range(min = 1))]
    pub keep: i32,
    /// PersistentVolumeClaim for the dumps. It must exist.
    #[schemars(extend("minLength" = 1))]
    pub claim: String,
    /// Overrides of the container; fields of a core/v1 Container. The image defaults to that of the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<RawObject>,
    /// Overrides of the pod. By default, it runs where the database may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<crate::overrides::PodTemplate>,
}

/// A dump of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DumpFile {
    /// PersistentVolumeClaim with the dump.
    #[schemars(extend("minLength" = 1))]
    pub claim: String,
    /// Path of the dump in the claim: SQL, also compressed by gzip. Defaults to the newest scheduled dump.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A MariaDB or MySQL that is already there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalDatabase {
    /// Host of the database.
    pub host: String,
    /// Port of the database.
    #[serde(default = "defaults::storage_port")]
    pub port: i32,
    /// Name of the database.
    #[serde(default = "defaults::storage_database")]
    pub database: String,
    /// User name for the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Secret key with the user's password.
    pub password_key_ref: SecretKeySelector,
    /// TLS of the connection. slurmdbd connects without TLS by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<StorageTls>,
}

/// Workers: any field of a NodeSet's spec, and GPUs in one place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetPart {
    /// GPUs of each worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Any field of a NodeSet's spec.
    #[serde(flatten)]
    pub fields: Fields<NodeSetSpec>,
}

/// GPUs of each worker. Sets the resource limit of the pod and the GRES of the Slurm node, which must agree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// Resource of the device plug-in, such as `nvidia.com/gpu`.
    pub resource: String,
    /// Number of GPUs of each worker.
    #[schemars(range(min = 1))]
    pub count: i32,
    /// Type of the GPUs in Slurm, such as `h200`, so that jobs can ask for it. By default, GPUs have no type.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^[A-Za-z0-9_.-]+$", "maxLength" = 63))]
    pub kind: Option<String>,
    /// How slurmd finds the GPUs: a value of AutoDetect in gres.conf. Defaults to `nvidia` for NVIDIA's resources and to
    /// `off` for others. With `off`, which needs quotes in YAML, gres.conf must be in `controller.configFileRefs`, and all sets
    /// with GPUs must be `off`. With `scalingMode: DaemonSet`, only `off` is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_detect: Option<AutoDetect>,
}

/// How slurmd finds the GPUs of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AutoDetect {
    /// By NVIDIA's driver.
    Nvidia,
    /// By NVIDIA's library NVML, which the image must have.
    Nvml,
    /// By AMD's library ROCm SMI, which the image must have.
    Rsmi,
    /// By Intel's library oneAPI, which the image must have.
    Oneapi,
    /// Not at all.
    Off,
}

/// A partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionPart {
    /// Names in `nodeSets`, or the Slurm names of NodeSets of your own that name this cluster in `controllerRef`. `ALL` means
    /// all workers.
    pub node_sets: Vec<String>,
    /// Whether jobs that name no partition run here.
    #[serde(default)]
    pub default: bool,
    /// Options to add to its line in slurm.conf, such as `MaxTime=2-0 PriorityTier=10`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}
