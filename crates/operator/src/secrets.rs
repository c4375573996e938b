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

/// Checksum of the sssd.conf that the reference names; users must be able to log in with it. Domains that it lacks may be in the
/// `conf.d` of the image, which only the pod sees: its first process looks again, and says so when they are not.
pub fn sssd_conf(secret: Option<&Secret>, reference: &SecretKeySelector) -> Result<String, Problem> {
    let text = value(secret, reference)?;
    match slurm_conf::sssd_conf::read(text) {
        Err(fault) if !fault.may_be_mended_in_conf_d() => {
            let SecretKeySelector { name, key, .. } = reference;
            Err(Problem::invalid(format!("key {key:?} of Secret {name}: {fault}")))
        }
        Ok(_) | Err(_) => Ok(checksum::of_bytes(text)),
    }
}

/// Checksum of the whole Secret, in which the referenced key must be.
pub fn checksum(secret: Option<&Secret>, reference: &SecretKeySelector) -> Result<String, Problem> {
    value(secret, reference)?;
    Ok(secret
        .and_then(|secret| secret.data.as_ref())
        .map(checksum::of_secret)
        .unwrap_or_default())
}
