//! Why a Token could not be reconciled.

use keelson_runtime::{ReconcileError, Retry, apply, contents};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read what the Token refers to")]
    Observe(#[from] contents::Error),
    #[error("cannot sign the token")]
    Sign(#[source] jsonwebtoken::errors::Error),
    #[error("cannot write the token's Secret")]
    Apply(#[source] apply::Error),
    #[error("cannot write the status")]
    Status(#[source] apply::Error),
}

impl ReconcileError for Error {
    fn reason(&self) -> &'static str {
        match self {
            Self::Observe(_) => "ObserveFailed",
            Self::Sign(_) => "SignFailed",
            Self::Apply(_) => keelson_api::well_known::reason::APPLY_FAILED,
            Self::Status(_) => "StatusFailed",
        }
    }

    fn retry(&self) -> Retry {
        Retry::Backoff
    }
}
