//! Builds the Secret that contains a token. Pure.

use k8s_openapi::{ByteString, api::core::v1::Secret};
use keelson_api::Token;
use keelson_runtime::apply::Desired;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::validate::Validated;
use crate::children::metadata::{Metadata, owned_by};

pub fn build_secret(token: &Token, validated: &Validated, text: &str) -> Desired<Secret> {
    let metadata = Metadata::inherited(token).of_object(
        &token.namespace().unwrap_or_default(),
        &validated.secret_name,
        &[owned_by(token)],
    );
    let mut secret = json!({
        "metadata": metadata,
        "type": "Opaque",
        "data": { &validated.secret_key: ByteString(text.as_bytes().to_vec()) },
    });
    if let (false, Value::Object(fields)) = (validated.refresh, &mut secret) {
        fields.insert("immutable".into(), json!(true));
    }
    Desired::new(secret)
}
