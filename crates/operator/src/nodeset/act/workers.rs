//! What the doing side asks of Kubernetes.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use jiff::Timestamp;
use keelson_runtime::apply;

use crate::{
    nodeset::facts::{ClaimOwner, Intent, PodFacts, PodId},
    slurm::{control, facts::NodeName},
};

#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("cannot create pod {pod}")]
    Create {
        pod: String,
        #[source]
        source: apply::Error,
    },
    #[error("cannot change pod {pod}")]
    Patch {
        pod: String,
        #[source]
        source: apply::Error,
    },
    #[error("cannot delete pod {pod}")]
    Delete {
        pod: String,
        #[source]
        source: apply::Error,
    },
    #[error("cannot change {nodes} nodes in Slurm")]
    Slurm {
        nodes: usize,
        #[source]
        source: control::Error,
    },
    #[error("cannot {verb} {jobs} jobs")]
    Jobs {
        verb: &'static str,
        jobs: usize,
        #[source]
        source: control::Error,
    },
    #[error("cannot ask Slurm about node {node}")]
    Ask {
        node: NodeName,
        #[source]
        source: control::Error,
    },
    #[error("node {node} changed while it was to be renewed; its record and pod stay for now")]
    NotRenewed { node: NodeName },
    #[error("cannot create claim {claim}")]
    CreateClaim {
        claim: String,
        #[source]
        source: apply::Error,
    },
    #[error("cannot change the owner of claim {claim}")]
    OwnClaim {
        claim: String,
        #[source]
        source: apply::Error,
    },
    #[error("claim {claim} of a former worker is being deleted; its successor waits")]
    ClaimGoing { claim: String },
    #[error("worker {pod} cannot be built: {why}")]
    NoTemplate { pod: String, why: String },
}

/// What becomes of something that is written on a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mark<T> {
    #[default]
    Unchanged,
    Set(T),
    Cleared,
}

impl<T> Mark<T> {
    pub fn map<U>(&self, change: impl FnOnce(&T) -> U) -> Mark<U> {
        match self {
            Self::Unchanged => Mark::Unchanged,
            Self::Set(value) => Mark::Set(change(value)),
            Self::Cleared => Mark::Cleared,
        }
    }
}

impl<T> From<Option<T>> for Mark<T> {
    fn from(wanted: Option<T>) -> Self {
        wanted.map_or(Self::Cleared, Self::Set)
    }
}

/// What is to be changed of a pod in one patch; `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodPatch {
    pub intent: Mark<Intent>,
    pub deadline: Mark<Timestamp>,
    pub topology: Mark<String>,
    pub protected: Option<bool>,
    /// We take charge of it.
    pub adopt: bool,
}

/// Where a worker is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spot {
    Ordinal {
        ordinal: u32,
        /// The machine that it is pinned to.
        machine: Option<String>,
    },
    /// DaemonSet mode.
    Machine { machine: String, hostname: String },
}

/// The worker pods of one NodeSet. Every change is made only to the pod as it was last looked at.
pub trait Workers: Send + Sync {
    /// The worker as it was last seen.
    fn look(&self, pod: &PodId) -> Option<PodFacts>;
    /// False when the pod is gone or was changed by somebody else, so that nothing was written.
    fn patch<'a>(&'a self, pod: &'a PodId, patch: &'a PodPatch) -> BoxFuture<'a, Result<bool, StepError>>;
    /// Says with whom a claim of this pod is deleted.
    fn own_claim<'a>(
        &'a self,
        pod: &'a PodId,
        claim: &'a str,
        owner: &'a ClaimOwner,
    ) -> BoxFuture<'a, Result<(), StepError>>;
    /// Shows and drops conditions.
    fn show<'a>(
        &'a self,
        pod: &'a PodId,
        set: &'a BTreeMap<String, String>,
        drop: &'a [String],
    ) -> BoxFuture<'a, Result<(), StepError>>;
    /// False when the pod is gone or was changed by somebody else, so that it stays.
    fn delete<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, Result<bool, StepError>>;
    /// The name of the pod, if one was created.
    fn create<'a>(&'a self, spot: &'a Spot) -> BoxFuture<'a, Result<Option<String>, StepError>>;
    /// Tells people what was done.
    fn note(&self, reason: &'static str, note: String);
    /// Tells people what somebody should look at.
    fn warn(&self, reason: &'static str, note: String);
}
