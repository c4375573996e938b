//! Reading keys out of Secrets.

use k8s_openapi::api::core::v1::Secret;
use keelson_api::references::SecretKeySelector;

use crate::{children::checksum, problem::Problem};

/// The value that the reference names; it must be there and not empty.
pub fn value<'a>(secret: Option<&'a Secret>, reference: &SecretKeySelector) -> Result<&'a [u8], Problem> {
    let SecretKeySelector {
        name,
        key,
        optional: _,
    } = reference;
    let remedy = || format!("create it with the key {key:?}");
    let secret = secret.ok_or_else(|| Problem::absent("Secret", name, remedy()))?;
    secret
        .data
        .as_ref()
        .and_then(|data| data.get(key))
        .map(|value| value.0.as_slice())
        .filter(|value| !value.is_empty())
        .ok_or_else(|| Problem::no_key("Secret", name, key))
}

/// Checksum of the whole Secret, in which the referenced key must be.
pub fn checksum(secret: Option<&Secret>, reference: &SecretKeySelector) -> Result<String, Problem> {
    value(secret, reference)?;
    Ok(secret
        .and_then(|secret| secret.data.as_ref())
        .map(checksum::of_secret)
        .unwrap_or_default())
}
