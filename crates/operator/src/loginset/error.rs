//! Why a LoginSet could not be reconciled.

use keelson_runtime::{ReconcileError, Retry, apply, contents};

use super::host_keys;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read what the LoginSet refers to")]
    Observe(#[from] contents::Error),
    #[error("cannot make SSH host keys")]
    HostKeys(#[source] host_keys::Error),
    #[error("making SSH host keys was stopped")]
    HostKeysAborted(#[source] tokio::task::JoinError),
    #[error("cannot apply a child")]
    Apply(#[source] apply::Error),
    #[error("cannot write the status")]
    Status(#[source] apply::Error),
}

impl ReconcileError for Error {
    fn reason(&self) -> &'static str {
        match self {
            Self::Observe(_) => "ObserveFailed",
            Self::HostKeys(_) | Self::HostKeysAborted(_) => "HostKeysFailed",
            Self::Apply(_) => keelson_api::well_known::reason::APPLY_FAILED,
            Self::Status(_) => "StatusFailed",
        }
    }

    fn retry(&self) -> Retry {
        Retry::Backoff
    }
}
