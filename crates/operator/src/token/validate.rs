//! Turns the observed state into input for the plan, or reports what is missing.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference};
use keelson_api::{Token, well_known::slurm::TOKEN_LIFETIME_MAX_SECS};
use keelson_runtime::ownership::is_controlled_by;
use kube::ResourceExt;
use secrecy::SecretSlice;

use super::observe::Observed;
use crate::{problem::Problem, secrets};

/// Validated input of the plan, and where the token is stored.
#[derive(Debug)]
pub struct Validated {
    pub user: String,
    pub lifetime_secs: i64,
    pub refresh: bool,
    pub key: SecretSlice<u8>,
    /// Name of the Secret with the signing key.
    pub key_secret: String,
    pub secret_name: String,
    pub secret_key: String,
    pub place: Place,
}

/// Owner of the Secret that the token is to be stored in.
#[derive(Clone)]
pub enum Place {
    Free,
    /// A Secret of this Token.
    Ours(Arc<Secret>),
    /// A Secret that Slinky's operator created for this Token; its owner is the key's Secret.
    Slinkys(Arc<Secret>),
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Free => "Free",
            Self::Ours(_) => "Ours",
            Self::Slinkys(_) => "Slinkys",
        })
    }
}

impl Place {
    pub fn secret(&self) -> Option<&Arc<Secret>> {
        match self {
            Self::Free => None,
            Self::Ours(secret) | Self::Slinkys(secret) => Some(secret),
        }
    }
}

pub fn validate(observed: &Observed) -> Result<Validated, Problem> {
    let Observed {
        token,
        key,
        secret,
        former: _,
    } = observed;
    let spec = &token.spec;
    let reference = spec
        .jwt_key()
        .ok_or_else(|| Problem::invalid("jwtKeyRef must be set"))?;
    let key = secrets::value(key.as_deref(), reference)?.to_vec();
    let lifetime = spec
        .lifetime()
        .map_err(|error| Problem::invalid(format!("lifetime: {error}")))?;
    Ok(Validated {
        user: token.username().to_owned(),
        lifetime_secs: whole_seconds(lifetime)?,
        refresh: spec.refresh,
        key: key.into(),
        key_secret: reference.name.clone(),
        secret_name: token.secret_name(),
        secret_key: token.secret_key().to_owned(),
        place: place(token, secret.as_ref(), &reference.name)?,
    })
}

fn whole_seconds(lifetime: Duration) -> Result<i64, Problem> {
    match i64::try_from(lifetime.as_secs()) {
        Ok(0) => Err(Problem::invalid("lifetime must be at least one second")),
        Ok(seconds) => Ok(seconds.min(TOKEN_LIFETIME_MAX_SECS)),
        Err(_) => Ok(TOKEN_LIFETIME_MAX_SECS),
    }
}

/// A Secret that belongs to someone else is not written to: it would be deleted together with the Token.
fn place(token: &Token, secret: Option<&Arc<Secret>>, key_secret: &str) -> Result<Place, Problem> {
    let Some(secret) = secret else {
        return Ok(Place::Free);
    };
    if is_controlled_by(&secret.metadata, &token.metadata) {
        return Ok(Place::Ours(Arc::clone(secret)));
    }
    match owner_of(secret) {
        Some(owner) if owner.kind == "Secret" && owner.name == key_secret => {
            Ok(Place::Slinkys(Arc::clone(secret)))
        }
        Some(owner) if owner.kind == "Token" && owner.name == token.name_any() => {
            Err(Problem::missing(format!(
                "Secret {} belongs to an earlier Token of the same name and is about to be deleted",
                secret.name_any()
            )))
        }
        _ => Err(Problem::invalid(format!(
            "Secret {} exists and does not belong to this Token: delete it, or choose another name in secretRef",
            secret.name_any()
        ))),
    }
}

/// Returns the controlling owner.
fn owner_of(secret: &Secret) -> Option<&OwnerReference> {
    secret
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true))
}
