//! Errors of a reconcile. The loop names the object, so the texts here do not.

use keelson_api::well_known::{event, failure, reason};
use keelson_runtime::{ReconcileError, apply, contents};

use crate::{loginset::host_keys, nodeset::StepError};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read a referenced object")]
    Observe(#[from] contents::Error),
    #[error("failed to create the key Secret")]
    Key(#[source] apply::Error),
    #[error("failed to update a finalizer")]
    Finalizer(#[source] apply::Error),
    #[error("failed to update the anchor of the child objects")]
    Anchor(#[source] apply::Error),
    #[error("failed to generate SSH host keys")]
    HostKeys(#[source] host_keys::Error),
    #[error("generating SSH host keys was interrupted")]
    HostKeysInterrupted(#[source] tokio::task::JoinError),
    #[error("failed to sign the token")]
    Sign(#[source] jsonwebtoken::errors::Error),
    #[error("failed to read the JWT key")]
    JwtKey(#[source] contents::Error),
    #[error("failed to set up a client for {endpoint}")]
    Connect {
        endpoint: String,
        #[source]
        source: Box<slurm_rest::Error>,
    },
    #[error("failed to apply a child object")]
    Apply(#[source] apply::Error),
    #[error("failed to update the revision history")]
    Revision(#[source] apply::Error),
    #[error("{failed} of {all} steps failed")]
    Act {
        failed: usize,
        all: usize,
        #[source]
        first: Box<StepError>,
    },
    #[error("failed to update reservation {name} for updateStrategy.scheduledUpdate")]
    Reservation {
        name: String,
        #[source]
        source: Box<slurm_rest::Error>,
    },
    #[error("failed to write the status")]
    Status(#[source] apply::Error),
}

impl ReconcileError for Error {
    fn reason(&self) -> &'static str {
        match self {
            Self::Observe(_) => failure::OBSERVE_FAILED,
            Self::Key(_) => failure::KEY_FAILED,
            Self::Finalizer(_) => event::SYNC_FINALIZER_FAILED,
            Self::HostKeys(_) | Self::HostKeysInterrupted(_) => failure::HOST_KEYS_FAILED,
            Self::Sign(_) => failure::SIGN_FAILED,
            Self::JwtKey(_) | Self::Connect { .. } => failure::SLURM_CONNECTION_FAILED,
            Self::Anchor(_) | Self::Apply(_) | Self::Revision(_) => reason::APPLY_FAILED,
            Self::Act { .. } => event::SYNC_FAILED,
            Self::Reservation { .. } => reason::RESERVATION_FAILED,
            Self::Status(_) => failure::STATUS_FAILED,
        }
    }
}
