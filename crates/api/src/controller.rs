//! Controller: one Slurm cluster's slurmctld, or the address of one that runs elsewhere.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaimSpec, TypedLocalObjectReference, TypedObjectReference, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::metrics::Metrics;
use crate::overrides::{PodTemplate, RawObject, ServiceOverride};
use crate::references::{ConfigMapKeySelector, ExternalConfig, LocalObjectReference, SecretKeySelector};
use crate::scalars::Quantity;
use crate::schema;
use crate::status::{Condition, Endpoint};

/// A Slurm cluster: its slurmctld and the configuration that every other part of the cluster uses.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "Controller",
    plural = "controllers",
    shortname = "slurmctld",
    namespaced,
    status = "ControllerStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "A Slurm cluster: its slurmctld and the configuration that every other part of the cluster uses.",
    crates(kube_core = "::kube_core"),
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.external || has(self.slurmKeyRef)",
     "message": "slurmKeyRef must be set when external is false",
     "fieldPath": ".slurmKeyRef", "reason": "FieldValueRequired"},
    {"rule": "self.external || has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)",
     "message": "jwtKeyRef or jwtHs256KeyRef must be set when external is false",
     "fieldPath": ".jwtKeyRef", "reason": "FieldValueRequired"},
    {"rule": "!self.external || has(self.externalConfig)",
     "message": "externalConfig must be set when external is true",
     "fieldPath": ".externalConfig", "reason": "FieldValueRequired"},
    {"rule": "!has(self.ha) || !self.ha.enabled || (has(self.persistence) && self.persistence.enabled && has(self.persistence.existingClaim) && self.persistence.existingClaim.size() > 0)",
     "message": "slurm high availability (HA) mode requires existing PVC with an access mode of ReadWriteMany: set persistence.enabled to true and persistence.existingClaim to its name",
     "fieldPath": ".persistence", "reason": "FieldValueInvalid"},
]))]
pub struct ControllerSpec {
    /// Slurm's `ClusterName`, at most 40 characters. `<namespace>_<name>` when absent. Cannot be changed: slurmctld
    /// refuses state that was saved under another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,

    /// Secret key that holds the auth/slurm key (`slurm.key`). Required unless `external`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_key_ref: Option<SecretKeySelector>,

    /// Secret key that holds the HS256 key by which tokens are signed (`jwt.key`). Required unless `external`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_key_ref: Option<SecretKeySelector>,

    /// Deprecated name of `jwtKeyRef`, which wins when both are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_hs256_key_ref: Option<SecretKeySelector>,

    /// ConfigMap key that holds a JSON Web Key Set, for tokens that others sign (`jwks.json`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_key_ref: Option<ConfigMapKeySelector>,

    /// Accounting object that stores this cluster's job records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting_ref: Option<LocalObjectReference>,

    /// Whether slurmctld runs outside of this Kubernetes cluster.
    #[serde(default)]
    pub external: bool,

    /// Address of the external slurmctld. Required when `external`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_config: Option<ExternalConfig>,

    /// Slurm's own high availability: one primary and backups on shared state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ha: Option<HighAvailability>,

    /// Changes to the slurmctld container; fields of a core/v1 Container. Its `image` must be written, here or in
    /// `template`, unless `external`: there is no default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurmctld: Option<RawObject>,

    /// Whether a changed configuration is taken in by the running slurmctld instead of by a restart of its pod. The project's own
    /// images do without this wherever Slurm can.
    #[serde(default)]
    pub inplace_reconfigure: bool,

    /// Changes to the sidecar that runs `scontrol reconfigure`; used with `inplaceReconfigure`, and then its `image` must be
    /// written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconfigure: Option<RawObject>,

    /// Changes to the sidecar that prints slurmctld's log; fields of a core/v1 Container. Its `image` must be written, too:
    /// any with `sh`, `mkfifo` and `cat` will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logfile: Option<RawObject>,

    /// Changes to the slurmctld pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,

    /// Lines added to slurm.conf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// ConfigMaps whose keys become files beside slurm.conf. slurm.conf and slurmdbd.conf themselves are not allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub config_file_refs: Option<Vec<LocalObjectReference>>,

    /// ConfigMaps whose keys are prolog scripts that slurmd runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub prolog_script_refs: Option<Vec<LocalObjectReference>>,

    /// ConfigMaps whose keys are epilog scripts that slurmd runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub epilog_script_refs: Option<Vec<LocalObjectReference>>,

    /// ConfigMaps whose keys are prolog scripts that slurmctld runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub prolog_slurmctld_script_refs: Option<Vec<LocalObjectReference>>,

    /// ConfigMaps whose keys are epilog scripts that slurmctld runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub epilog_slurmctld_script_refs: Option<Vec<LocalObjectReference>>,

    /// Volume for slurmctld's state. A claim is made for it unless `existingClaim` names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<Persistence>,

    /// Changes to the Service `<name>-controller`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceOverride>,

    /// slurmctld's metrics and who scrapes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,

    /// `MaxNodeCount` of slurm.conf. When absent it follows the NodeSets with room to grow, at least 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_node_count: Option<i32>,
}

/// Slurm's own high availability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HighAvailability {
    /// Whether backups run beside the primary. Needs a ReadWriteMany volume named in `persistence.existingClaim`.
    #[serde(default)]
    pub enabled: bool,
    /// How many backups.
    #[serde(default = "defaults::ha_backups")]
    #[schemars(range(min = 1))]
    pub backups: i32,
}

impl Default for HighAvailability {
    fn default() -> Self {
        Self {
            enabled: false,
            backups: defaults::ha_backups(),
        }
    }
}

/// Volume for slurmctld's state. Beside our own fields it has those of a core/v1 PersistentVolumeClaimSpec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Persistence {
    /// Whether the state outlives the pod. Without it a restarted slurmctld has forgotten every job.
    #[serde(default = "defaults::yes")]
    pub enabled: bool,
    /// Name of a PersistentVolumeClaim to use instead of making one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_claim: Option<String>,
    /// What happens to the claim that was made for this Controller when the Controller is deleted: `Retain` keeps it,
    /// `Delete` deletes it. `Retain` when absent. A claim named by `existingClaim` is never deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<ClaimPolicy>,
    /// Access modes of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub access_modes: Option<Vec<String>>,
    /// Object that the volume's content is taken from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "typed_local_object_reference")]
    pub data_source: Option<TypedLocalObjectReference>,
    /// Object that the volume's content is taken from, of any kind and namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "typed_object_reference")]
    pub data_source_ref: Option<TypedObjectReference>,
    /// Size of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<VolumeResources>,
    /// Labels of the volumes that may be bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: Option<LabelSelector>,
    /// StorageClass of the claim; the cluster's default when absent, none at all when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// VolumeAttributesClass of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_attributes_class_name: Option<String>,
    /// `Filesystem` or `Block`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
    /// Name of the volume to bind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
}

impl Default for Persistence {
    fn default() -> Self {
        Self {
            enabled: defaults::yes(),
            existing_claim: None,
            deletion_policy: None,
            access_modes: None,
            data_source: None,
            data_source_ref: None,
            resources: None,
            selector: None,
            storage_class_name: None,
            volume_attributes_class_name: None,
            volume_mode: None,
            volume_name: None,
        }
    }
}

impl Persistence {
    /// Spec of the claim to make. Without a size or an access mode it gets those that the charts give it; Kubernetes
    /// would refuse the claim otherwise.
    pub fn claim_spec(&self) -> PersistentVolumeClaimSpec {
        let quantities = |map: &Option<BTreeMap<String, Quantity>>| {
            map.as_ref().map(|map| {
                map.iter()
                    .map(|(name, quantity)| (name.clone(), resource::Quantity(quantity.0.to_string())))
                    .collect()
            })
        };
        let written = self.resources.clone().unwrap_or_default();
        let mut requests: BTreeMap<String, resource::Quantity> =
            quantities(&written.requests).unwrap_or_default();
        requests
            .entry("storage".to_owned())
            .or_insert_with(|| resource::Quantity(defaults::STATE_VOLUME_SIZE.to_owned()));
        PersistentVolumeClaimSpec {
            access_modes: Some(
                self.access_modes
                    .clone()
                    .unwrap_or_else(|| vec!["ReadWriteOnce".to_owned()]),
            ),
            data_source: self.data_source.clone(),
            data_source_ref: self.data_source_ref.clone(),
            resources: Some(VolumeResourceRequirements {
                limits: quantities(&written.limits),
                requests: Some(requests),
            }),
            selector: self.selector.clone(),
            storage_class_name: self.storage_class_name.clone(),
            volume_attributes_class_name: self.volume_attributes_class_name.clone(),
            volume_mode: self.volume_mode.clone(),
            volume_name: self.volume_name.clone(),
        }
    }
}

/// What happens to a PersistentVolumeClaim when it is no longer needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ClaimPolicy {
    /// It stays.
    #[default]
    Retain,
    /// It is deleted, and with it most often the data.
    Delete,
}

/// Size of a volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeResources {
    /// Upper bounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, Quantity>>,
    /// What is asked for, such as `storage: 4Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, Quantity>>,
}

fn typed_local_object_reference(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "required": ["kind", "name"],
        "properties": {
            "apiGroup": { "type": "string" }, "kind": { "type": "string" }, "name": { "type": "string" }
        }
    })
}

fn typed_object_reference(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "required": ["kind", "name"],
        "properties": {
            "apiGroup": { "type": "string" }, "kind": { "type": "string" },
            "name": { "type": "string" }, "namespace": { "type": "string" }
        }
    })
}

/// What was last seen of a Controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControllerStatus {
    /// Generation that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Progressing, Degraded, ConfigApplied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Where slurmctld is reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub endpoints: Vec<Endpoint>,
    /// Slurm's name of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Slurm version that slurmctld reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_version: Option<String>,
    /// slurmctld pods that should run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// slurmctld pods that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Pod of the slurmctld in charge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_pod: Option<String>,
    /// Checksum of the newest configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,
    /// Checksum of the configuration that slurmctld runs with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_config_hash: Option<String>,
    /// `MaxNodeCount` in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_node_count: Option<i32>,
}
