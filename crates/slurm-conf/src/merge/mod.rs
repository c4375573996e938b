//! Merging of the operator's text and the user's text. A writer returns the merged file with the ignored lines of the
//! user's text, or the reason why no file can be written.

mod join;

use std::fmt;

use crate::syntax::{Origin, Problem, SyntaxError};
use crate::value::ValueError;

pub(crate) use join::{Piece, Refusal, merge};

/// The contents of a file, and the ignored lines of the user's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The whole file.
    pub text: String,
    /// The ignored lines of the user's text, ordered by line.
    pub findings: Vec<Finding>,
}

/// A line of the user's text that is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The location of the line.
    pub origin: Origin,
    /// The parameter, as written.
    pub key: String,
    /// Why the line is ignored.
    pub kind: FindingKind,
}

/// Why a line of the user's text is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindingKind {
    /// The operator requires another value.
    Required {
        /// The setting in the file.
        ours: String,
    },
    /// The parameter must not be set here.
    Refused {
        /// The reason, as the rest of a sentence.
        why: &'static str,
    },
    /// Another line of the user's text sets the same parameter: Slurm uses the last one, sshd the first one.
    Superseded {
        /// The line that takes precedence.
        by: Origin,
    },
    /// The operator writes a record with that name.
    NameTaken {
        /// The record's name.
        name: String,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, key, kind } = self;
        match kind {
            FindingKind::Required { ours } => {
                write!(
                    f,
                    "{origin}: {key} is ignored because the operator requires {ours}"
                )
            }
            FindingKind::Refused { why } => write!(f, "{origin}: {key} is ignored because {why}"),
            FindingKind::Superseded { by } => {
                write!(f, "{origin}: {key} is ignored because {by} takes precedence")
            }
            FindingKind::NameTaken { name } => {
                write!(
                    f,
                    "{origin}: {key}={name} is ignored because the operator writes a {key} with that name"
                )
            }
        }
    }
}

/// The reason why no file can be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The user's text cannot be parsed.
    #[error("{}", list(.0))]
    Unreadable(Vec<Problem>),
    /// A value passed to the operator cannot be written to the file.
    #[error("{field} {source}")]
    Value {
        /// The name of the value.
        field: String,
        /// The error.
        source: ValueError,
    },
    /// Slurm exits with an error if two records have the same name.
    #[error("{second}: {key}={name} repeats {first}")]
    Repeated {
        /// The record's key.
        key: String,
        /// The record's name.
        name: String,
        /// The first of them.
        first: Origin,
        /// The second of them.
        second: Origin,
    },
    /// The operator was given two records with the same name.
    #[error("{key}={name} is defined twice")]
    Twice {
        /// The record's key.
        key: String,
        /// The record's name.
        name: String,
    },
    /// The parameters of a partition cannot be parsed.
    #[error("the partition config of {nodeset}: {source}")]
    PartitionConfig {
        /// The node set that it belongs to.
        nodeset: String,
        /// The error.
        source: SyntaxError,
    },
}

fn list(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}
