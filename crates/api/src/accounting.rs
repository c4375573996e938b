//! Accounting: slurmdbd and its database, or the address of an external slurmdbd.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::auth::Auth;
use crate::defaults;
use crate::overrides::{PodTemplate, RawObject, ServiceOverride};
use crate::references::{ConfigMapKeySelector, ExternalConfig, LocalObjectReference, SecretKeySelector};
use crate::schema;
use crate::status::{Condition, Endpoint};

/// slurmdbd, which stores the job records of one or more clusters in a database.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "Accounting",
    plural = "accountings",
    shortname = "slurmdbd",
    namespaced,
    status = "AccountingStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "slurmdbd, which stores the job records of one or more clusters in a database.",
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
    {"rule": "(has(self.auth) && has(self.auth.type) ? self.auth.type : 'slurm') == (has(oldSelf.auth) && has(oldSelf.auth.type) ? oldSelf.auth.type : 'slurm')",
     "message": "the type cannot be changed, because the daemons of a cluster would no longer understand each other: restore the old value, or create a new object",
     "fieldPath": ".auth", "reason": "FieldValueInvalid"},
]))]
pub struct AccountingSpec {
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

    /// Whether slurmdbd runs outside this Kubernetes cluster.
    #[serde(default)]
    pub external: bool,

    /// Address of the external slurmdbd. Required if `external` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_config: Option<ExternalConfig>,

    /// Overrides of the slurmdbd container; fields of a core/v1 Container. `image` has no default: set it here or in
    /// `template`, unless `external` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurmdbd: Option<RawObject>,

    /// Overrides of the slurmdbd pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,

    /// Database of slurmdbd. Required unless `external` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_config: Option<StorageConfig>,

    /// Lines to add to slurmdbd.conf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// Overrides of the Service `<name>-accounting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceOverride>,
}

/// Database of slurmdbd: MariaDB or MySQL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageConfig {
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
    /// Secret key that holds the user's password.
    pub password_key_ref: SecretKeySelector,
    /// TLS of the connection. slurmdbd connects without TLS by default. Not in Slinky.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<StorageTls>,
}

/// TLS of the connection to a database. What slurmdbd verifies depends on its client library; see the how-to about accounting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageTls {
    /// Secret key that holds the certificates, in PEM format, of the authorities that may sign the database's certificate.
    pub ca_cert_ref: SecretKeySelector,
    /// Secret of type `kubernetes.io/tls` with the certificate (`tls.crt`) that slurmdbd shows to the database, and its key
    /// (`tls.key`). By default, slurmdbd shows none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cert_ref: Option<LocalObjectReference>,
}

impl Default for StorageConfig {
    fn default() -> Self {
        Self {
            host: String::new(),
            port: defaults::storage_port(),
            database: defaults::storage_database(),
            username: None,
            password_key_ref: SecretKeySelector::default(),
            tls: None,
        }
    }
}

/// Observed state of an Accounting.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccountingStatus {
    /// Generation of the object that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions: Ready, Progressing, Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Addresses of slurmdbd.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub endpoints: Vec<Endpoint>,
}
