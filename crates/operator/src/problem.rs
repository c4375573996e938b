//! Why something cannot be built, for a person.

use keelson_api::well_known::reason;

/// A reason in one word and a sentence that names what is missing and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub reason: &'static str,
    pub message: String,
}

impl Problem {
    /// A referenced object does not exist, or lacks what is needed of it.
    pub fn missing(message: impl Into<String>) -> Self {
        Self {
            reason: reason::REFERENCE_MISSING,
            message: message.into(),
        }
    }

    pub fn no_controller(name: &str) -> Self {
        Self {
            reason: reason::CONTROLLER_MISSING,
            message: format!("Controller {name} does not exist"),
        }
    }

    /// The spec cannot be carried out as written.
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
