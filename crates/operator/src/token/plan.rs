//! Whether a token is kept, signed anew, or left to a person. Pure.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use keelson_api::well_known::reason;
use secrecy::ExposeSecret;

use super::{
    jwt::{self, Claims},
    validate::Validated,
};
use crate::problem::Problem;

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// The token is as the spec wants it.
    Keep(Held),
    Sign(Cause),
    /// The token is of no use and not to be renewed: only a person can help.
    Leave(Problem, Option<Claims>),
}

/// A token that verified.
#[derive(Clone, PartialEq, Eq)]
pub struct Held {
    pub text: String,
    pub claims: Claims,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("claims", &self.claims)
            .finish_non_exhaustive()
    }
}

/// Why a token is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Missing,
    /// Not signed with the key as it is now, or not a token at all.
    Unverifiable,
    /// The spec asks for another user or lifetime.
    SpecChanged,
    Due,
}

impl Cause {
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Missing => "there was none",
            Self::Unverifiable => "the old one was not signed with the present key",
            Self::SpecChanged => "the spec asks for another user or lifetime",
            Self::Due => "the old one was about to expire",
        }
    }
}

pub fn plan(validated: &Validated, now: Timestamp) -> Plan {
    let Validated {
        user,
        lifetime_secs,
        refresh,
        key,
        key_secret,
        secret_name,
        secret_key,
        place,
    } = validated;
    let Some(text) = place.secret().and_then(|secret| text_of(secret, secret_key)) else {
        return Plan::Sign(Cause::Missing);
    };
    let Ok(claims) = jwt::verify(&text, key.expose_secret()) else {
        return if *refresh {
            Plan::Sign(Cause::Unverifiable)
        } else {
            let message = format!(
                "the token in Secret {secret_name} was not signed with the present key in Secret {key_secret}; {}",
                remedy(secret_name)
            );
            Plan::Leave(
                Problem {
                    reason: reason::KEY_CHANGED,
                    message,
                },
                None,
            )
        };
    };
    // Slinky rounds both ends of a lifetime by themselves.
    if claims.sun != *user || claims.lifetime_secs().abs_diff(*lifetime_secs) > 1 {
        return Plan::Sign(Cause::SpecChanged);
    }
    let good_until = if *refresh {
        renew_at(&claims)
    } else {
        claims.expires_at()
    };
    if now < good_until {
        return Plan::Keep(Held { text, claims });
    }
    if *refresh {
        return Plan::Sign(Cause::Due);
    }
    let message = format!(
        "the token in Secret {secret_name} expired at {}; {}",
        claims.expires_at(),
        remedy(secret_name)
    );
    Plan::Leave(
        Problem {
            reason: reason::EXPIRED,
            message,
        },
        Some(claims),
    )
}

fn remedy(secret: &str) -> String {
    format!(
        "delete that Secret to have a new one signed (kubectl delete secret {secret}), or set refresh: true"
    )
}

fn text_of(secret: &Secret, key: &str) -> Option<String> {
    let value = secret.data.as_ref()?.get(key)?;
    // Something that is no text is no token either: it verifies with no key.
    Some(String::from_utf8_lossy(&value.0).into_owned())
}

/// A fifth of the lifetime is left to whoever reads the Secret late.
pub fn renew_at(claims: &Claims) -> Timestamp {
    let margin = SignedDuration::from_secs(claims.lifetime_secs() / 5);
    claims
        .expires_at()
        .checked_sub(margin)
        .unwrap_or_else(|_| claims.expires_at())
}

/// Whether the Secret has to make room for its successor: an immutable one takes no new content, and never becomes
/// mutable again.
pub fn must_be_replaced(live: &Secret, text: &str, validated: &Validated) -> bool {
    let same = live.data.as_ref().is_some_and(|data| {
        data.len() == 1
            && data
                .get(&validated.secret_key)
                .is_some_and(|value| value.0 == text.as_bytes())
    });
    live.immutable == Some(true) && (validated.refresh || !same)
}
