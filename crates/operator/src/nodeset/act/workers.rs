//! The Kubernetes operations that carrying out a plan needs.

use std::{collections::BTreeMap, time::Duration};

use futures::future::BoxFuture;
use jiff::Timestamp;
use keelson_runtime::apply;

use crate::{
    nodeset::facts::{ClaimOwner, Intent, PodFacts, PodId},
    slurm::{control, facts::NodeName},
    wording::counted,
};

#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("failed to create pod {pod}")]
    Create {
        pod: String,
        #[source]
        source: apply::Error,
    },
    #[error("failed to update pod {pod}")]
    Patch {
        pod: String,
        #[source]
        source: apply::Error,
    },
    #[error("failed to delete pod {pod}")]
    Delete {
        pod: String,
        #[source]
        source: apply::Error,
    },
    #[error("gave up deleting pod {pod} after {limit:?}: its slurmd may have registered with Slurm again")]
    DeleteLate { pod: String, limit: Duration },
    #[error("failed to update {} in Slurm", counted(*nodes, "node"))]
    Slurm {
        nodes: usize,
        #[source]
        source: control::Error,
    },
    #[error("failed to {verb} {}", counted(*jobs, "job"))]
    Jobs {
        verb: &'static str,
        jobs: usize,
        #[source]
        source: control::Error,
    },
    #[error("failed to call Slurm for node {node}")]
    Ask {
        node: NodeName,
        #[source]
        source: control::Error,
    },
    #[error("node {node} changed before its record could be renewed; its record and pod are kept for now")]
    NotRenewed { node: NodeName },
    #[error("failed to create PersistentVolumeClaim {claim}")]
    CreateClaim {
        claim: String,
        #[source]
        source: apply::Error,
    },
    #[error("failed to update the owner of PersistentVolumeClaim {claim}")]
    OwnClaim {
        claim: String,
        #[source]
        source: apply::Error,
    },
    #[error("PersistentVolumeClaim {claim} of the previous worker is still being deleted")]
    ClaimGoing { claim: String },
    #[error("failed to build worker {pod}: {why}")]
    NoTemplate { pod: String, why: String },
}

/// A change to one annotation of a pod.
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

/// The changes to a pod in one patch; `None` means unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodPatch {
    pub intent: Mark<Intent>,
    pub deadline: Mark<Timestamp>,
    pub topology: Mark<String>,
    pub protected: Option<bool>,
    /// Makes the NodeSet the controller of the pod.
    pub adopt: bool,
}

/// Where a worker is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spot {
    Ordinal {
        ordinal: u32,
        /// The Kubernetes node that it is pinned to.
        kube_node: Option<String>,
    },
    /// DaemonSet mode.
    KubeNode { kube_node: String, hostname: String },
}

/// The worker pods of one NodeSet. Every change applies only to the version of the pod that was last read.
pub trait Workers: Send + Sync {
    /// Returns the worker as last read.
    fn look(&self, pod: &PodId) -> Option<PodFacts>;
    /// Returns false if nothing was written because the pod is gone or was changed by someone else.
    fn patch<'a>(&'a self, pod: &'a PodId, patch: &'a PodPatch) -> BoxFuture<'a, Result<bool, StepError>>;
    /// Sets the owner of a claim of this pod.
    fn own_claim<'a>(
        &'a self,
        pod: &'a PodId,
        claim: &'a str,
        owner: &'a ClaimOwner,
    ) -> BoxFuture<'a, Result<(), StepError>>;
    /// Sets and removes pod conditions.
    fn show<'a>(
        &'a self,
        pod: &'a PodId,
        set: &'a BTreeMap<String, String>,
        drop: &'a [String],
    ) -> BoxFuture<'a, Result<(), StepError>>;
    /// Returns false if nothing was deleted because the pod is gone or was changed by someone else. Gives the call up
    /// after `limit`.
    fn delete<'a>(&'a self, pod: &'a PodId, limit: Duration) -> BoxFuture<'a, Result<bool, StepError>>;
    /// Returns the name of the pod, if one was created.
    fn create<'a>(&'a self, spot: &'a Spot) -> BoxFuture<'a, Result<Option<String>, StepError>>;
    /// Sends a Normal event.
    fn note(&self, reason: &'static str, note: String);
    /// Sends a Warning event.
    fn warn(&self, reason: &'static str, note: String);
}
