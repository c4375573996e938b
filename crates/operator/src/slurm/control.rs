//! What may be asked of a Slurm cluster. The NodeSet's doing side knows no more of Slurm than this.

use std::collections::BTreeMap;

use futures::future::BoxFuture;

use super::facts::{NodeName, SlurmNode};

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Slurm understood and said no; asking again at once does not help.
    #[error("Slurm refused: {0}")]
    Refused(String),
    /// The version of the API that both sides speak has no word for it.
    #[error("{0}")]
    Unsupported(String),
    /// No answer, or none that could be understood.
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
    /// Reads one node now; `None` when Slurm says that there is none of that name.
    fn node<'a>(&'a self, name: &'a NodeName) -> BoxFuture<'a, Result<Option<SlurmNode>, Error>>;
    /// Puts jobs back into the queue. What Slurm does not requeue goes on running; the next reading of it says why.
    fn requeue<'a>(&'a self, addresses: &'a [String]) -> BoxFuture<'a, Result<(), Error>>;
    /// Ends jobs.
    fn cancel<'a>(&'a self, addresses: &'a [String]) -> BoxFuture<'a, Result<(), Error>>;
    /// Removes a node's record. Slurm refuses while a job runs there.
    fn delete<'a>(&'a self, name: &'a NodeName) -> BoxFuture<'a, Result<(), Error>>;
}
