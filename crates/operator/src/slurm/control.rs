//! The operations on a Slurm cluster. The act step of NodeSets uses nothing else of Slurm.

use std::collections::BTreeMap;

use futures::future::BoxFuture;

use super::facts::{NodeName, SlurmNode};

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Slurm understood and refused; retrying at once does not help.
    #[error("Slurm refused: {0}")]
    Refused(String),
    /// The API version that both sides support lacks the operation.
    #[error("{0}")]
    Unsupported(String),
    /// No response, or none that could be understood.
    #[error("no answer from Slurm: {0}")]
    Unreachable(String),
}

/// A change to one or more nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    Drain {
        reason: String,
    },
    Undrain,
    Topology {
        topology: String,
    },
    Features {
        features: Vec<String>,
        active: Vec<String>,
    },
    Resume,
}

pub trait Control: Send + Sync {
    /// Applies one change to all these nodes in one call.
    fn change<'a>(&'a self, nodes: &'a [NodeName], change: &'a Change) -> BoxFuture<'a, Result<(), Error>>;
    /// Reads these nodes now; those that Slurm does not know are left out.
    fn nodes<'a>(
        &'a self,
        names: &'a [NodeName],
    ) -> BoxFuture<'a, Result<BTreeMap<NodeName, SlurmNode>, Error>>;
    /// Reads one node now; `None` if Slurm has no node of that name.
    fn node<'a>(&'a self, name: &'a NodeName) -> BoxFuture<'a, Result<Option<SlurmNode>, Error>>;
    /// Requeues jobs. Those that Slurm does not requeue keep running; the next reading of the jobs says why.
    fn requeue<'a>(&'a self, addresses: &'a [String]) -> BoxFuture<'a, Result<(), Error>>;
    fn cancel<'a>(&'a self, addresses: &'a [String]) -> BoxFuture<'a, Result<(), Error>>;
    /// Removes the records of nodes in one call. Slurm refuses those with running jobs and may have removed the others
    /// then, so a refusal of several says nothing about any of them.
    fn delete<'a>(&'a self, names: &'a [NodeName]) -> BoxFuture<'a, Result<(), Error>>;
}
