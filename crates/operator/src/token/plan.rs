//! Decides whether a token is kept, signed again, or left to a person. Pure.

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

/// What to do with the token.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// The token is as the spec wants it.
    Keep(Held),
    Sign(Cause),
    /// The token is unusable and must not be renewed: only a person can help.
    Leave(Problem, Option<Claims>),
}

/// A verified token.
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

/// Reason for signing a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Missing,
    /// Not signed with the current key, or not a token at all.
    Unverifiable,
    /// The spec asks for another user or lifetime.
    SpecChanged,
    Due,
}

impl Cause {
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Missing => "no token existed",
            Self::Unverifiable => "the old one was not signed with the current key",
            Self::SpecChanged => "the user or lifetime in the spec changed",
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
                "the token in Secret {secret_name} was not signed with the current key in Secret {key_secret}; {}",
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
    // Slinky rounds the two ends of a lifetime separately.
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
    format!("delete that Secret to get a new token (kubectl delete secret {secret}), or set refresh: true")
}

fn text_of(secret: &Secret, key: &str) -> Option<String> {
    let value = secret.data.as_ref()?.get(key)?;
    // Data that is not text is not a token either: it verifies with no key.
    Some(String::from_utf8_lossy(&value.0).into_owned())
}

/// Returns when to renew. A fifth of the lifetime is left for those who read the Secret late.
pub fn renew_at(claims: &Claims) -> Timestamp {
    let margin = SignedDuration::from_secs(claims.lifetime_secs() / 5);
    claims
        .expires_at()
        .checked_sub(margin)
        .unwrap_or_else(|_| claims.expires_at())
}

/// Reports whether the Secret must be recreated: an immutable one takes no new content and never becomes mutable.
pub fn must_be_replaced(live: &Secret, text: &str, validated: &Validated) -> bool {
    let same = live.data.as_ref().is_some_and(|data| {
        data.len() == 1
            && data
                .get(&validated.secret_key)
                .is_some_and(|value| value.0 == text.as_bytes())
    });
    live.immutable == Some(true) && (validated.refresh || !same)
}
