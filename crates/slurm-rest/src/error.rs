//! Errors of a call, grouped by how a caller handles them.

use std::fmt;
use std::time::Duration;

/// One entry of a response's `errors` or `warnings`, in Slurm's own words.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Complaint {
    /// Slurm's error number; 0 if it gives none.
    pub number: i64,
    /// The meaning of the number.
    pub error: String,
    /// The action that failed.
    pub description: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            number,
            error,
            description,
        } = self;
        match (error.as_str(), description.as_str()) {
            ("" | "No error", description) => f.write_str(description),
            (error, "") => write!(f, "{error} ({number})"),
            (error, description) => write!(f, "{description}: {error} ({number})"),
        }
    }
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The object does not exist in Slurm.
    #[error("{what} not found in Slurm")]
    NotFound {
        /// The object.
        what: String,
    },
    /// Slurm rejected the request.
    #[error("Slurm rejected the request: {}", words(complaints))]
    Refused {
        /// Slurm's reasons, in its order.
        complaints: Vec<Complaint>,
    },
    /// Slurm accepts no token signed with the known keys, or the user lacks permission.
    #[error("not authorized: {message}")]
    Unauthorised {
        /// Slurm's message.
        message: String,
    },
    /// slurmrestd, or a daemon behind it, could not be reached.
    #[error("failed to reach {daemon}: {message}")]
    Unreachable {
        /// The unreachable daemon.
        daemon: Peer,
        /// The cause.
        message: String,
    },
    /// The call timed out. A write may have taken effect.
    #[error("timed out after {after:?}")]
    Timeout {
        /// The deadline.
        after: Duration,
    },
    /// The response could not be decoded.
    #[error("invalid response to {call}: {message}")]
    Protocol {
        /// The call.
        call: String,
        /// The problem with the response.
        message: String,
    },
    /// The server does not support this call.
    #[error("the server does not support {call}{}", version.as_ref().map(|v| format!(" in {v}")).unwrap_or_default())]
    Unsupported {
        /// The call, or a part of it.
        call: String,
        /// The negotiated version, if any.
        version: Option<String>,
    },
    /// A token could not be signed.
    #[error("failed to sign a token: {message}")]
    Signing {
        /// The signing library's message, which never contains the key.
        message: String,
    },
    /// An invalid request, rejected before it was sent.
    #[error("invalid request for {what}: {message}")]
    Request {
        /// The subject of the request.
        what: String,
        /// The problem with it.
        message: String,
    },
}

/// A daemon that can be unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
pub enum Peer {
    /// The REST daemon itself.
    #[strum(serialize = "slurmrestd")]
    Slurmrestd,
    /// The controller behind it.
    #[strum(serialize = "slurmctld")]
    Slurmctld,
    /// The accounting daemon behind it.
    #[strum(serialize = "slurmdbd")]
    Slurmdbd,
}

impl Error {
    /// Reports whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }

    /// Reports whether Slurm rejected the request because jobs still use the object.
    pub fn is_in_use(&self) -> bool {
        self.numbers()
            .any(|number| matches!(number, NODES_BUSY | PARTITION_IN_USE | RESERVATION_BUSY))
    }

    /// Reports whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    fn numbers(&self) -> impl Iterator<Item = i64> {
        let complaints = if let Self::Refused { complaints } = self {
            complaints.as_slice()
        } else {
            &[]
        };
        complaints.iter().map(|complaint| complaint.number)
    }
}

const NODES_BUSY: i64 = 2016;
const RESERVATION_BUSY: i64 = 2055;
const PARTITION_IN_USE: i64 = 2075;

fn words(complaints: &[Complaint]) -> String {
    complaints
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurms_own_words_are_quoted() {
        let complaint = Complaint {
            number: 2016,
            error: "Requested nodes are busy".into(),
            description: "Failure to delete node n0".into(),
        };
        let error = Error::Refused {
            complaints: vec![complaint],
        };
        assert_eq!(
            error.to_string(),
            "Slurm rejected the request: Failure to delete node n0: Requested nodes are busy (2016)"
        );
        assert!(error.is_in_use());
    }

    #[test]
    fn a_number_of_zero_says_nothing() {
        let complaint = Complaint {
            number: 0,
            error: "No error".into(),
            description: "Failure to query".into(),
        };
        assert_eq!(complaint.to_string(), "Failure to query");
    }
}
