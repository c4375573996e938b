//! Token: a JSON Web Token for one Slurm user, stored in a Secret.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::references::SecretKeySelector;
use crate::scalars::{GoDuration, Rfc3339};
use crate::schema;
use crate::status::Condition;

/// A JSON Web Token for one Slurm user, stored in a Secret and renewed before it expires.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "Token",
    plural = "tokens",
    shortname = "tokens",
    shortname = "jwt",
    namespaced,
    status = "TokenStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "A JSON Web Token for one Slurm user, stored in a Secret and renewed before it expires.",
    crates(kube_core = "::kube_core"),
    printcolumn = r#"{"name": "USER", "type": "string", "jsonPath": ".spec.username"}"#,
    printcolumn = r#"{"name": "IAT", "type": "date", "jsonPath": ".status.issuedAt"}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)",
     "message": "jwtKeyRef or jwtHs256KeyRef must be set",
     "fieldPath": ".jwtKeyRef", "reason": "FieldValueRequired"},
]))]
pub struct TokenSpec {
    /// Secret key that holds the HS256 key that signs the token. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_key_ref: Option<SecretKeySelector>,

    /// Deprecated: use `jwtKeyRef`, which takes precedence if both are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_hs256_key_ref: Option<SecretKeySelector>,

    /// Slurm user of the token.
    pub username: String,

    /// How long each token is valid, such as `1h`. Defaults to 15 minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<GoDuration>,

    /// Whether to renew the token before it expires. If false, the Secret is immutable.
    #[serde(default = "defaults::yes")]
    pub refresh: bool,

    /// Secret key to write the token to. Defaults to the key `SLURM_JWT` of `<name>-jwt-<username>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeySelector>,
}

impl Default for TokenSpec {
    fn default() -> Self {
        Self {
            jwt_key_ref: None,
            jwt_hs256_key_ref: None,
            username: String::new(),
            lifetime: None,
            refresh: defaults::yes(),
            secret_ref: None,
        }
    }
}

/// Observed state of a Token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenStatus {
    /// Generation of the object that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions: Ready, Progressing, Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// When the token was signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued_at: Option<Rfc3339>,
    /// When the token expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Rfc3339>,
    /// Secret that holds the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
}
