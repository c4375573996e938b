//! Does what was planned. One arm per step, no decisions: what has changed since the plan was made makes a step fail or
//! do nothing, never do harm.

mod claims;
mod marks;
mod pods;
mod slurm;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use keelson_api::NodeSet;
use keelson_runtime::{
    Key,
    apply::{self, Writer},
};
use kube::ResourceExt;

use super::{
    build::Template,
    facts::{Plan, PodId},
};
use crate::{
    context::Context,
    slurm::{
        control::{self, Control},
        facts::NodeName,
    },
};

/// Calls to the API server at the same time.
const AT_ONCE: usize = 32;

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
    #[error("cannot end {jobs} jobs")]
    Jobs {
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

/// A few of them by name, for a person.
fn listed(names: &[impl ToString]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = names.iter().take(SHOWN).map(ToString::to_string).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What came of a plan.
#[derive(Debug, Default)]
pub struct Acted {
    pub done: usize,
    pub failures: Vec<StepError>,
}

impl Acted {
    fn take(&mut self, results: Vec<Result<(), StepError>>) {
        for result in results {
            match result {
                Ok(()) => self.done += 1,
                Err(error) => self.failures.push(error),
            }
        }
    }
}

/// What a plan is carried out with.
pub struct Act<'a> {
    pub context: &'a Context,
    pub writer: &'a Writer,
    pub nodeset: &'a NodeSet,
    /// Absent when workers cannot be built now; then none is created.
    pub template: Result<&'a Template, String>,
    /// What workers made now are marked with.
    pub revision: &'a str,
    pub slurm: Option<Arc<dyn Control>>,
}

impl std::fmt::Debug for Act<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Act")
            .field("nodeset", &self.nodeset.name_any())
            .finish_non_exhaustive()
    }
}
impl Act<'_> {
    /// First what must be written down before Slurm is called, then Slurm, then pods.
    pub async fn run(&self, plan: &Plan) -> Acted {
        let mut acted = Acted::default();
        let (patched, held) = self.patch(&plan.steps).await;
        acted.take(patched);
        let (owned, kept) = self.own_claims(&plan.steps).await;
        acted.take(owned);
        acted.take(self.change_slurm(&plan.steps, &held).await);
        acted.take(self.show_conditions(&plan.steps).await);
        acted.take(self.remove(&plan.steps, &kept).await);
        acted.take(self.create(&plan.steps).await);
        acted
    }

    fn here(&self, name: &str) -> Key {
        Key::new(self.nodeset.namespace().unwrap_or_default(), name)
    }

    fn pod(&self, id: &PodId) -> Option<Arc<Pod>> {
        self.context
            .caches
            .pods
            .get(&self.here(&id.name))
            .filter(|pod| pod.uid().as_deref() == Some(&id.uid))
    }

    /// Lets the next look see the answer to our own write.
    fn remember(&self, pod: Pod) {
        self.context.caches.pods.upsert(pod);
    }
}
