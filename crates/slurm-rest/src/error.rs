//! What can go wrong with a call, by what a caller does about it.

use std::fmt;
use std::time::Duration;

/// One entry of an answer's `errors` or `warnings`, in Slurm's own words.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Complaint {
    /// Slurm's error number; 0 where it gives none.
    pub number: i64,
    /// What the number means.
    pub error: String,
    /// What Slurm was doing.
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
    #[error("{what} is not known to Slurm")]
    NotFound {
        /// The object.
        what: String,
    },
    /// Slurm understood and said no.
    #[error("refused: {}", words(complaints))]
    Refused {
        /// Slurm's reasons, in its order.
        complaints: Vec<Complaint>,
    },
    /// No key that is known here signs a token that Slurm accepts, or the user may not do this.
    #[error("not authorised: {message}")]
    Unauthorised {
        /// What the answer said.
        message: String,
    },
    /// slurmrestd, or a daemon behind it, could not be reached.
    #[error("cannot reach {daemon}: {message}")]
    Unreachable {
        /// Who could not be reached.
        daemon: Peer,
        /// What was said about it.
        message: String,
    },
    /// No answer in time. A write may have been carried out.
    #[error("no answer within {after:?}")]
    Timeout {
        /// How long it was waited for.
        after: Duration,
    },
    /// The answer makes no sense.
    #[error("cannot understand the answer to {call}: {message}")]
    Protocol {
        /// The call.
        call: String,
        /// What is wrong with its answer.
        message: String,
    },
    /// The server does not offer this.
    #[error("{call} is not served{}", version.as_ref().map(|v| format!(" in {v}")).unwrap_or_default())]
    Unsupported {
        /// The call, or the part of it.
        call: String,
        /// The version that was agreed on, if any was.
        version: Option<String>,
    },
    /// A token could not be signed.
    #[error("cannot sign a token: {message}")]
    Signing {
        /// What the signing library said; never anything of the key.
        message: String,
    },
    /// A request that could never work, refused before it was sent.
    #[error("cannot ask for {what}: {message}")]
    Request {
        /// What was asked for.
        what: String,
        /// What is wrong with it.
        message: String,
    },
}

/// Who did not answer.
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
    /// Whether the same call may work a moment later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }

    /// Whether Slurm said no because jobs still use the object.
    pub fn is_in_use(&self) -> bool {
        self.numbers()
            .any(|number| matches!(number, NODES_BUSY | PARTITION_IN_USE | RESERVATION_BUSY))
    }

    /// Whether the object does not exist.
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
            "refused: Failure to delete node n0: Requested nodes are busy (2016)"
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
