//! Problems that block a reconcile, worded for users.

use keelson_api::well_known::reason;
use keelson_runtime::run::chain;

use crate::error::Error;

/// A reason in one word and a message that says what is missing and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub reason: &'static str,
    pub message: String,
}

impl Problem {
    /// Returns why the children were not built or not applied.
    pub fn of<T>(built: &Result<T, Self>, applied: &Result<(), Error>) -> Option<Self> {
        match (built, applied) {
            (Err(problem), _) => Some(problem.clone()),
            (Ok(_), Err(error)) => Some(Self::refused(chain(error))),
            (Ok(_), Ok(())) => None,
        }
    }

    /// Appends further messages.
    #[must_use]
    pub fn and(&self, more: impl IntoIterator<Item = String>) -> Self {
        let message = std::iter::once(self.message.clone()).chain(more);
        Self {
            reason: self.reason,
            message: message.collect::<Vec<_>>().join(". Also: "),
        }
    }

    /// A referenced object does not exist, or lacks something that is needed.
    pub fn missing(message: impl Into<String>) -> Self {
        Self {
            reason: reason::REFERENCE_MISSING,
            message: message.into(),
        }
    }

    /// There is no object of that name.
    pub fn absent(kind: &str, name: &str, remedy: impl std::fmt::Display) -> Self {
        Self::missing(format!("{kind} {name} does not exist: {remedy}"))
    }

    /// The object has no such key.
    pub fn no_key(kind: &str, name: &str, key: &str) -> Self {
        Self::missing(format!(
            "{kind} {name} has no key {key:?}, or it is empty: add it"
        ))
    }

    pub fn no_controller(name: &str) -> Self {
        Self {
            reason: reason::CONTROLLER_MISSING,
            message: format!("Controller {name} does not exist: create it, or correct controllerRef"),
        }
    }

    /// The spec cannot be applied as written.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self {
            reason: reason::INVALID_SPEC,
            message: message.into(),
        }
    }

    /// The API server refused a child.
    pub fn refused(message: impl Into<String>) -> Self {
        Self {
            reason: reason::APPLY_FAILED,
            message: message.into(),
        }
    }
}
