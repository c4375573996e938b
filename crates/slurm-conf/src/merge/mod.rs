//! The operator's text and the user's become one file. What a writer gives back is that file with what of the
//! user's text did not reach it, or why there is no file.

mod join;

use std::fmt;

use crate::syntax::{Origin, Problem, SyntaxError};
use crate::value::ValueError;

pub(crate) use join::{Piece, Refusal, merge};

/// A file's bytes, and what of the user's text did not reach them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The whole file.
    pub text: String,
    /// The user's lines that are not used, by line.
    pub findings: Vec<Finding>,
}

/// A line of the user's that is not used as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where it stands.
    pub origin: Origin,
    /// The parameter, as written.
    pub key: String,
    /// Why it is not used.
    pub kind: FindingKind,
}

/// Why a line of the user's is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindingKind {
    /// The operator needs another value.
    Required {
        /// What the file holds.
        ours: String,
    },
    /// The parameter must not be set at all here.
    Refused {
        /// The reason, as the rest of a sentence.
        why: &'static str,
    },
    /// Another line of the user's sets the same parameter: Slurm takes the last, sshd the first.
    Superseded {
        /// The line that counts.
        by: Origin,
    },
    /// The operator writes a record of that name.
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
                write!(f, "{origin}: {key} is not used, the operator needs {ours}")
            }
            FindingKind::Refused { why } => write!(f, "{origin}: {key} is not used, {why}"),
            FindingKind::Superseded { by } => write!(f, "{origin}: {key} is not used, {by} counts"),
            FindingKind::NameTaken { name } => {
                write!(
                    f,
                    "{origin}: {key}={name} is not used, the operator writes a {key} of that name"
                )
            }
        }
    }
}

/// Why no file can be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The user's text cannot be read.
    #[error("{}", list(.0))]
    Unreadable(Vec<Problem>),
    /// A value that the operator was given cannot stand in the file.
    #[error("{field} {source}")]
    Value {
        /// Which value.
        field: String,
        /// What is wrong with it.
        source: ValueError,
    },
    /// Slurm ends with an error on two records of the same name.
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
    /// The operator was given two records of the same name.
    #[error("{key}={name} would stand twice")]
    Twice {
        /// The record's key.
        key: String,
        /// The record's name.
        name: String,
    },
    /// The rest of a partition line cannot be read.
    #[error("the partition config of {nodeset}: {source}")]
    PartitionConfig {
        /// The node set that it belongs to.
        nodeset: String,
        /// What is wrong with it.
        source: SyntaxError,
    },
    /// A topology that does not hang together.
    #[error("topology {topology}: {reason}")]
    Topology {
        /// The topology's name.
        topology: String,
        /// What is wrong with it.
        reason: String,
    },
}

fn list(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}
