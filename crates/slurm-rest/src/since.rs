//! Conditional lists: requests for changes since a given time.

use jiff::Timestamp;

use crate::client::{Reply, Request};
use crate::response::Listing;

/// A list, or the result that nothing changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched<T> {
    /// Nothing has changed since the given time.
    Unchanged,
    /// The whole list: Slurm does not send only the changed objects.
    Changed(T),
}

impl<T> Fetched<T> {
    /// Returns the list, if it changed.
    pub fn changed(self) -> Option<T> {
        match self {
            Self::Unchanged => None,
            Self::Changed(list) => Some(list),
        }
    }
}

impl<T> Fetched<Listing<T>> {
    /// Converts a reply. For an unchanged list Slurm responds 304, except for jobs: with 200, no jobs, no `last_update`
    /// and a warning. A list that is really empty has its `last_update`.
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

/// Adds the time to a request, if there is one.
pub(crate) fn since(ask: Request<'_>, changed_since: Option<Timestamp>) -> Request<'_> {
    match changed_since {
        Some(instant) => ask.since(instant),
        None => ask,
    }
}
