//! Implements `Workers` against the Kubernetes API.

mod claims;
mod pod_metadata;
mod pods;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::Pod;
use keelson_api::NodeSet;
use keelson_runtime::{Key, apply::Writer};
use kube::ResourceExt;
use serde_json::Value;

use super::{
    act::{PodPatch, Spot, StepError, Workers},
    build::Template,
    facts::{ClaimOwner, PodFacts, PodId},
    pod_facts::pod_facts,
};
use crate::{context::Context, slurm::facts::Slurm};

pub struct KubeWorkers<'a> {
    pub context: &'a Context,
    pub writer: &'a Writer,
    pub nodeset: &'a NodeSet,
    /// An error if workers cannot be built now; then none is created.
    pub template: Result<&'a Template, String>,
    /// The revision hash of new workers.
    pub revision: &'a str,
    /// The owner that remains when the NodeSet is deleted.
    pub anchor: Option<&'a Value>,
    /// The Slurm facts that the plan was made with.
    pub slurm: &'a Slurm,
}

impl std::fmt::Debug for KubeWorkers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeWorkers")
            .field("nodeset", &self.nodeset.name_any())
            .finish_non_exhaustive()
    }
}

impl KubeWorkers<'_> {
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

    /// Adds the result of our own write to the cache, so the next reconcile sees it.
    fn remember(&self, pod: Pod) {
        self.context.caches.pods.upsert(pod);
    }
}

impl Workers for KubeWorkers<'_> {
    fn look(&self, pod: &PodId) -> Option<PodFacts> {
        let now = self.context.clock.now();
        self.pod(pod).map(|pod| pod_facts(&pod, now))
    }

    fn patch<'a>(&'a self, pod: &'a PodId, patch: &'a PodPatch) -> BoxFuture<'a, Result<bool, StepError>> {
        self.patch_pod(pod, patch).boxed()
    }

    fn own_claim<'a>(
        &'a self,
        pod: &'a PodId,
        claim: &'a str,
        owner: &'a ClaimOwner,
    ) -> BoxFuture<'a, Result<(), StepError>> {
        self.change_owner(pod, claim, owner).boxed()
    }

    fn show<'a>(
        &'a self,
        pod: &'a PodId,
        set: &'a BTreeMap<String, String>,
        drop: &'a [String],
    ) -> BoxFuture<'a, Result<(), StepError>> {
        self.show_conditions(pod, set, drop).boxed()
    }

    fn delete<'a>(&'a self, pod: &'a PodId, limit: Duration) -> BoxFuture<'a, Result<bool, StepError>> {
        self.delete_pod(pod, limit).boxed()
    }

    fn create<'a>(&'a self, spot: &'a Spot) -> BoxFuture<'a, Result<Option<String>, StepError>> {
        self.create_worker(spot).boxed()
    }

    fn note(&self, reason: &'static str, note: String) {
        self.context.events.normal(self.nodeset, reason, note);
    }

    fn warn(&self, reason: &'static str, note: String) {
        self.context.events.warning(self.nodeset, reason, note);
    }
}
