//! Why a NodeSet could not be reconciled.

use keelson_runtime::{ReconcileError, Retry, apply, contents};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read what the NodeSet refers to")]
    Observe(#[from] contents::Error),
    #[error("cannot change a finalizer")]
    Finalizer(#[source] apply::Error),
    #[error("cannot keep or release the anchor of its children")]
    Anchor(#[source] apply::Error),
    #[error("cannot apply a child")]
    Apply(#[source] apply::Error),
    #[error("cannot keep the history of revisions")]
    Revision(#[source] apply::Error),
    #[error("{failed} of {all} steps failed")]
    Act {
        failed: usize,
        all: usize,
        #[source]
        first: Box<super::act::StepError>,
    },
    #[error("Slurm did not keep reservation {name} as updateStrategy.scheduledUpdate wants it")]
    Reservation {
        name: String,
        #[source]
        source: Box<slurm_rest::Error>,
    },
    #[error("cannot write the status")]
    Status(#[source] apply::Error),
}

impl ReconcileError for Error {
    fn reason(&self) -> &'static str {
        match self {
            Self::Observe(_) => "ObserveFailed",
            Self::Finalizer(_) => keelson_api::well_known::event::SYNC_FINALIZER_FAILED,
            Self::Anchor(_) | Self::Apply(_) | Self::Revision(_) => {
                keelson_api::well_known::reason::APPLY_FAILED
            }
            Self::Act { .. } => keelson_api::well_known::event::SYNC_FAILED,
            Self::Reservation { .. } => keelson_api::well_known::reason::RESERVATION_FAILED,
            Self::Status(_) => "StatusFailed",
        }
    }

    fn retry(&self) -> Retry {
        Retry::Backoff
    }
}
