//! Reads keys from Secrets.

use k8s_openapi::api::core::v1::Secret;
use keelson_api::references::SecretKeySelector;

use crate::{children::checksum, problem::Problem};

/// Returns the value that the reference names. It must exist and not be empty.
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

/// Returns the checksum of the sssd.conf that the reference names. Users must be able to log in with it. Domains that
/// it lacks may be in the `conf.d` of the image, which only the pod sees: `init` checks again and reports if they are
/// missing there too.
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

/// Returns the checksum of the whole Secret, which must contain the referenced key.
pub fn checksum(secret: Option<&Secret>, reference: &SecretKeySelector) -> Result<String, Problem> {
    value(secret, reference)?;
    Ok(secret
        .and_then(|secret| secret.data.as_ref())
        .map(checksum::of_secret)
        .unwrap_or_default())
}
