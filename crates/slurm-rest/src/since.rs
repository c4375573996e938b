//! Asking only for what has changed.

use jiff::Timestamp;

use crate::client::{Reply, Request};
use crate::response::Listing;

/// A list, or the news that there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched<T> {
    /// Nothing has changed since the instant that was asked about.
    Unchanged,
    /// The whole list: Slurm has no smaller answer.
    Changed(T),
}

impl<T> Fetched<T> {
    /// The list, if there is one.
    pub fn changed(self) -> Option<T> {
        match self {
            Self::Unchanged => None,
            Self::Changed(list) => Some(list),
        }
    }
}

impl<T> Fetched<Listing<T>> {
    /// Jobs answer 200 with no job and no instant where all other lists answer 304. A list that is really empty has
    /// its instant.
    pub(crate) fn from_reply(reply: Reply<Listing<T>>) -> Self {
        match reply {
            Reply::NotModified => Self::Unchanged,
            Reply::Body { body, warnings } => {
                let nothing = body.items.is_empty() && body.last_update.is_none();
                let says_so = warnings
                    .iter()
                    .any(|warning| warning.description.contains("changes since update_time"));
                if nothing && says_so {
                    Self::Unchanged
                } else {
                    Self::Changed(body)
                }
            }
        }
    }
}

/// Adds the instant to a request, if there is one.
pub(crate) fn since(ask: Request<'_>, changed_since: Option<Timestamp>) -> Request<'_> {
    match changed_since {
        Some(instant) => ask.since(instant),
        None => ask,
    }
}
