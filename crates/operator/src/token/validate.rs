//! Turns what was observed into input that can be planned with, or says what is missing.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference};
use keelson_api::{Token, well_known::slurm::TOKEN_LIFETIME_MAX_SECS};
use kube::ResourceExt;
use secrecy::SecretSlice;

use super::observe::Observed;
use crate::{problem::Problem, secrets};

/// What a token is made from, and where it lies.
#[derive(Debug)]
pub struct Validated {
    pub user: String,
    pub lifetime_secs: i64,
    pub refresh: bool,
    pub key: SecretSlice<u8>,
    /// The Secret that holds the key.
    pub key_secret: String,
    pub secret_name: String,
    pub secret_key: String,
    pub place: Place,
}

/// What is there where the token belongs.
#[derive(Clone)]
pub enum Place {
    Free,
    /// A Secret of this Token's.
    Ours(Arc<Secret>),
    /// A Secret that Slinky's operator made for this Token; it belongs to the key's Secret.
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

/// A Secret that belongs to somebody else is not written to: it would be deleted together with the Token.
fn place(token: &Token, secret: Option<&Arc<Secret>>, key_secret: &str) -> Result<Place, Problem> {
    let Some(secret) = secret else {
        return Ok(Place::Free);
    };
    if belongs_to(secret, token) {
        return Ok(Place::Ours(Arc::clone(secret)));
    }
    match owner_of(secret) {
        Some(owner) if owner.kind == "Secret" && owner.name == key_secret => {
            Ok(Place::Slinkys(Arc::clone(secret)))
        }
        Some(owner) if owner.kind == "Token" && owner.name == token.name_any() => {
            Err(Problem::missing(format!(
                "Secret {} is of an earlier Token of this name and about to be deleted",
                secret.name_any()
            )))
        }
        _ => Err(Problem::invalid(format!(
            "Secret {} exists and does not belong to this Token: delete it, or name another in secretRef",
            secret.name_any()
        ))),
    }
}

pub fn belongs_to(secret: &Secret, token: &Token) -> bool {
    owner_of(secret).is_some_and(|owner| Some(&owner.uid) == token.metadata.uid.as_ref())
}

fn owner_of(secret: &Secret) -> Option<&OwnerReference> {
    secret
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true))
}
