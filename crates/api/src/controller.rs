//! Controller: the slurmctld of a Slurm cluster, or the address of an external slurmctld.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaimSpec, TypedLocalObjectReference, TypedObjectReference, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::auth::Auth;
use crate::defaults;
use crate::metrics::Metrics;
use crate::overrides::{PodTemplate, RawObject, ServiceOverride};
use crate::references::{ConfigMapKeySelector, ExternalConfig, LocalObjectReference, SecretKeySelector};
use crate::scalars::Quantity;
use crate::schema;
use crate::status::{Condition, Endpoint};

/// A Slurm cluster: its slurmctld and the configuration that all other components of the cluster use.
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
    doc = "A Slurm cluster: its slurmctld and the configuration that all other components of the cluster use.",
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
    {"rule": "(has(self.auth) && has(self.auth.type) ? self.auth.type : 'slurm') == (has(oldSelf.auth) && has(oldSelf.auth.type) ? oldSelf.auth.type : 'slurm')",
     "message": "the type cannot be changed, because the daemons of a cluster would no longer understand each other: restore the old value, or create a new object",
     "fieldPath": ".auth", "reason": "FieldValueInvalid"},
]))]
pub struct ControllerSpec {
    /// Slurm's `ClusterName`, at most 40 characters. Defaults to `<namespace>_<name>`. Immutable: slurmctld refuses state
    /// that was saved under another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,

    /// How the daemons authenticate each other: with auth/slurm by default. Not in Slinky.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,

    /// Secret key that holds the auth/slurm key (`slurm.key`), or the auth/munge key. Required unless `external` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_key_ref: Option<SecretKeySelector>,

    /// Secret key that holds the HS256 key that signs tokens (`jwt.key`). Required unless `external` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_key_ref: Option<SecretKeySelector>,

    /// Deprecated: use `jwtKeyRef`, which takes precedence if both are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_hs256_key_ref: Option<SecretKeySelector>,

    /// ConfigMap key that holds a JSON Web Key Set to verify tokens from other issuers (`jwks.json`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_key_ref: Option<ConfigMapKeySelector>,

    /// Accounting object that stores this cluster's job records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting_ref: Option<LocalObjectReference>,

    /// Whether slurmctld runs outside this Kubernetes cluster.
    #[serde(default)]
    pub external: bool,

    /// Address of the external slurmctld. Required if `external` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_config: Option<ExternalConfig>,

    /// Slurm's own high availability: a primary and backups that share their state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ha: Option<HighAvailability>,

    /// Overrides of the slurmctld container; fields of a core/v1 Container. `image` has no default: set it here or in
    /// `template`, unless `external` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurmctld: Option<RawObject>,

    /// Whether the running slurmctld reloads a changed configuration, instead of a restart of its pod. Keelson's own images do
    /// not need this: they reload the configuration whenever Slurm supports it.
    #[serde(default)]
    pub inplace_reconfigure: bool,

    /// Overrides of the sidecar that runs `scontrol reconfigure`; fields of a core/v1 Container. Used only with
    /// `inplaceReconfigure`, which requires its `image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconfigure: Option<RawObject>,

    /// Overrides of the sidecar that prints slurmctld's log; fields of a core/v1 Container. `image` has no default: use any
    /// image that has `sh`, `mkfifo` and `cat`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logfile: Option<RawObject>,

    /// Overrides of the slurmctld pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,

    /// Lines to add to slurm.conf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// ConfigMaps whose keys become files in the directory of slurm.conf. slurm.conf and slurmdbd.conf are not allowed.
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

    /// Volume for slurmctld's state. The operator creates a claim unless `existingClaim` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<Persistence>,

    /// Overrides of the Service `<name>-controller`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceOverride>,

    /// Metrics of slurmctld and the ServiceMonitor that scrapes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,

    /// `MaxNodeCount` in slurm.conf. By default, the operator derives it from the NodeSets with room to grow, at least 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_node_count: Option<i32>,
}

/// Slurm's own high availability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HighAvailability {
    /// Whether to run backups of the primary. Requires a ReadWriteMany claim in `persistence.existingClaim`.
    #[serde(default)]
    pub enabled: bool,
    /// Number of backups.
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

/// Volume for slurmctld's state. Also has the fields of a core/v1 PersistentVolumeClaimSpec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Persistence {
    /// Whether to keep the state on a persistent volume. If false, slurmctld loses all jobs when its pod restarts.
    #[serde(default = "defaults::yes")]
    pub enabled: bool,
    /// Name of an existing PersistentVolumeClaim to use instead of creating one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_claim: Option<String>,
    /// Whether to keep (`Retain`) or delete (`Delete`) the claim of this Controller when the Controller is deleted. Defaults to
    /// `Retain`. The operator never deletes the claim in `existingClaim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<ClaimPolicy>,
    /// Access modes of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub access_modes: Option<Vec<String>>,
    /// Object to populate the volume from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "typed_local_object_reference")]
    pub data_source: Option<TypedLocalObjectReference>,
    /// Object to populate the volume from, of any kind and in any namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "typed_object_reference")]
    pub data_source_ref: Option<TypedObjectReference>,
    /// Size of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<VolumeResources>,
    /// Label selector of the volumes to bind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: Option<LabelSelector>,
    /// StorageClass of the claim. Defaults to the cluster's default; an empty string means no class.
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
    /// Spec of the claim to create. Defaults the size and the access mode like the charts, because Kubernetes rejects a claim
    /// without them.
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

/// Whether to keep a PersistentVolumeClaim that is no longer needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ClaimPolicy {
    /// Keep the claim.
    #[default]
    Retain,
    /// Delete the claim, which usually deletes the data too.
    Delete,
}

/// Size of a volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeResources {
    /// Limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, Quantity>>,
    /// Requests, such as `storage: 4Gi`.
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

/// Observed state of a Controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControllerStatus {
    /// Generation of the object that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions: Ready, Progressing, Degraded, ConfigApplied, AccountingRegistered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Addresses of slurmctld.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub endpoints: Vec<Endpoint>,
    /// Name of the cluster in Slurm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Slurm release that slurmctld reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_version: Option<String>,
    /// Desired number of slurmctld pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Number of ready slurmctld pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Checksum of the latest configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,
    /// Checksum of the configuration in use by slurmctld.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_config_hash: Option<String>,
}
