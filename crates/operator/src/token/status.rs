//! Computes the status of a Token. Pure.

use jiff::Timestamp;
use keelson_api::{
    Token, TokenStatus,
    scalars::Rfc3339,
    well_known::{condition, reason},
};

use super::{jwt::Claims, plan::renew_at};
use crate::{
    conditions::{self, Finding},
    problem::Problem,
};

/// Result of a reconcile.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing could be decided; the Secret stays as it is.
    Blocked(Problem),
    /// The Secret contains an unusable token.
    Left(Problem, Option<Claims>),
    Issued(Claims),
}

impl Outcome {
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Blocked(problem) | Self::Left(problem, _) => Some(problem),
            Self::Issued(_) => None,
        }
    }
}

pub fn compute(token: &Token, outcome: &Outcome, now: Timestamp) -> TokenStatus {
    let before = token.status.clone().unwrap_or_default();
    let (issued_at, expires_at) = match outcome {
        Outcome::Blocked(_) => (before.issued_at, before.expires_at),
        Outcome::Left(_, None) => (None, None),
        Outcome::Left(_, Some(claims)) | Outcome::Issued(claims) => (
            Some(Rfc3339::from(claims.issued_at())),
            Some(Rfc3339::from(claims.expires_at())),
        ),
    };
    TokenStatus {
        observed_generation: token.metadata.generation,
        conditions: conditions::compute(
            &before.conditions,
            findings(token, outcome),
            token.metadata.generation,
            now,
        ),
        issued_at,
        expires_at,
        secret_name: match outcome {
            Outcome::Blocked(_) => before.secret_name,
            _ => Some(token.secret_name()),
        },
    }
}

fn findings(token: &Token, outcome: &Outcome) -> Vec<Finding> {
    match outcome {
        Outcome::Blocked(problem) | Outcome::Left(problem, _) => Finding::blocked(problem),
        Outcome::Issued(claims) => {
            let then = if token.spec.refresh {
                format!("renewed at {}", renew_at(claims))
            } else {
                "not renewed automatically".to_owned()
            };
            let message = format!(
                "Secret {} holds a token for {}, valid until {}, {then}",
                token.secret_name(),
                claims.sun,
                claims.expires_at(),
            );
            vec![
                Finding::new(condition::READY, true, reason::ISSUED, message),
                Finding::settled(),
                Finding::new(condition::DEGRADED, false, reason::AS_SPECIFIED, ""),
            ]
        }
    }
}
