//! Does what was planned. One arm per step, no decisions: what has changed since the plan was made makes a step fail or
//! do nothing, never do harm.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use keelson_api::{
    NodeSet,
    well_known::{annotation, event, label},
};
use keelson_runtime::{
    Key,
    apply::{self, Desired, Writer},
};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::{
    build::{Place, Template, build_pod, build_pod_on},
    claims,
    facts::{ClaimOwner, Plan, PodId, Step},
};
use crate::{
    children::metadata::owned_by,
    context::Context,
    slurm::{
        control::{self, Change, Control},
        facts::{NodeName, SlurmNode},
    },
    watches::prune_pod,
};

/// What is to be changed of a pod's metadata in one patch.
#[derive(Debug, Default)]
struct Patch {
    annotations: Map<String, Value>,
    labels: Map<String, Value>,
    /// We take charge of it.
    owner: bool,
}

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

    fn pod(&self, id: &PodId) -> Option<Arc<Pod>> {
        let key = Key::new(self.nodeset.namespace().unwrap_or_default(), &id.name);
        self.context
            .caches
            .pods
            .get(&key)
            .filter(|pod| pod.uid().as_deref() == Some(&id.uid))
    }

    /// Lets the next look see the answer to our own write.
    fn remember(&self, mut pod: Pod) {
        prune_pod(&mut pod);
        self.context.caches.pods.upsert(pod);
    }

    /// One patch per pod. Also tells which Slurm nodes must not be drained, because their intent could not be written.
    async fn patch(&self, steps: &[Step]) -> (Vec<Result<(), StepError>>, Vec<NodeName>) {
        let mut patches: BTreeMap<PodId, Patch> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Intend { pod, intent } => {
                    let Patch { annotations, .. } = patches.entry(pod.clone()).or_default();
                    annotations.insert(annotation::DRAIN_CAUSE.into(), json!(intent.cause.word()));
                    annotations.insert(annotation::DRAIN_SINCE.into(), json!(intent.since.to_string()));
                }
                Step::Adopt { pod } => {
                    patches.entry(pod.clone()).or_default().owner = true;
                }
                Step::Forget { pod } => {
                    let Patch { annotations, .. } = patches.entry(pod.clone()).or_default();
                    annotations.insert(annotation::DRAIN_CAUSE.into(), Value::Null);
                    annotations.insert(annotation::DRAIN_SINCE.into(), Value::Null);
                }
                Step::Topology { pod, topology } => {
                    let Patch { annotations, .. } = patches.entry(pod.clone()).or_default();
                    annotations.insert(annotation::TOPOLOGY_SPEC.into(), json!(topology));
                }
                Step::Deadline { pod, at } => {
                    let Patch { annotations, .. } = patches.entry(pod.clone()).or_default();
                    annotations.insert(
                        annotation::POD_DEADLINE.into(),
                        json!(at.map(|at| at.to_string())),
                    );
                }
                Step::Protect { pod, protected } => {
                    let Patch { labels, .. } = patches.entry(pod.clone()).or_default();
                    let value = if *protected { json!("true") } else { Value::Null };
                    labels.insert(label::POD_PROTECT.into(), value);
                }
                _ => {}
            }
        }
        let results: Vec<(PodId, Result<(), StepError>)> = stream::iter(patches)
            .map(|(id, patch)| async move {
                let result = self.patch_pod(&id, patch).await;
                (id, result)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let held = results
            .iter()
            .filter(|(_, result)| result.is_err())
            .filter_map(|(id, _)| self.pod(id))
            .map(|pod| super::perceive::pod_facts(&pod).node)
            .collect();
        (results.into_iter().map(|(_, result)| result).collect(), held)
    }

    async fn patch_pod(&self, id: &PodId, patch: Patch) -> Result<(), StepError> {
        let Patch {
            annotations,
            labels,
            owner,
        } = patch;
        let Some(pod) = self.pod(id) else { return Ok(()) };
        let mut metadata = Map::new();
        if owner {
            let mut owners: Vec<Value> = pod.owner_references().iter().map(|owner| json!(owner)).collect();
            owners.push(owned_by(self.nodeset));
            metadata.insert("ownerReferences".into(), json!(owners));
            metadata.insert("resourceVersion".into(), json!(pod.resource_version()));
        }
        if !annotations.is_empty() {
            metadata.insert("annotations".into(), Value::Object(annotations));
        }
        if !labels.is_empty() {
            metadata.insert("labels".into(), Value::Object(labels));
        }
        match self
            .writer
            .merge(pod.as_ref(), json!({ "metadata": metadata }))
            .await
        {
            Ok(written) => {
                self.remember(written);
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(source) => Err(StepError::Patch {
                pod: id.name.clone(),
                source,
            }),
        }
    }

    /// One call per distinct change, whatever the number of nodes.
    async fn change_slurm(&self, steps: &[Step], held: &[NodeName]) -> Vec<Result<(), StepError>> {
        let Some(slurm) = &self.slurm else { return vec![] };
        let mut changes: BTreeMap<Change, Vec<NodeName>> = BTreeMap::new();
        for step in steps {
            let (node, change) = match step {
                Step::Drain { node, reason } => (
                    node,
                    Change::Drain {
                        reason: reason.clone(),
                    },
                ),
                Step::PlaceNode { node, topology } => (
                    node,
                    Change::Topology {
                        topology: topology.clone(),
                    },
                ),
                Step::SetFeatures {
                    node,
                    features,
                    active,
                } => (
                    node,
                    Change::Features {
                        features: features.clone(),
                        active: active.clone(),
                    },
                ),
                Step::Undrain { node } => (node, Change::Undrain),
                Step::Resume { node } => (node, Change::Resume),
                _ => continue,
            };
            if !held.contains(node) {
                changes.entry(change).or_default().push(node.clone());
            }
        }
        let mut results = Vec::new();
        for (change, nodes) in changes {
            results.push(self.change_nodes(slurm.as_ref(), &change, nodes).await);
        }
        for step in steps {
            if let Step::EndJobs { jobs, requeue } = step {
                let note = format!(
                    "the time for jobs on leaving workers is over, ending {}",
                    jobs.len()
                );
                self.context.events.warning(self.nodeset, "DrainTimeout", note);
                let ended = slurm.end_jobs(jobs, *requeue).await;
                results.push(ended.map_err(|source| StepError::Jobs {
                    jobs: jobs.len(),
                    source,
                }));
            }
        }
        results
    }

    async fn change_nodes(
        &self,
        slurm: &dyn Control,
        change: &Change,
        mut nodes: Vec<NodeName>,
    ) -> Result<(), StepError> {
        let count = nodes.len();
        let failed = |source| StepError::Slurm { nodes: count, source };
        // Somebody may have drained the node, or made our drain theirs, since it was read: their reason must stay.
        let still_due: Option<fn(&SlurmNode) -> bool> = match change {
            Change::Drain { .. } => Some(|node| !node.draining()),
            Change::Undrain | Change::Resume => Some(SlurmNode::reason_is_ours),
            Change::Topology { .. } | Change::Features { .. } => None,
        };
        if let Some(still_due) = still_due {
            let now = slurm.nodes(&nodes).await.map_err(failed)?;
            nodes.retain(|name| now.get(name).is_some_and(still_due));
        }
        if nodes.is_empty() {
            return Ok(());
        }
        tracing::info!(?change, nodes = nodes.len(), first = ?nodes.first(), "changing Slurm nodes");
        slurm.change(&nodes, change).await.map_err(failed)
    }

    /// Pod conditions are a list of everybody's: ours are set and dropped by their type.
    async fn show_conditions(&self, steps: &[Step]) -> Vec<Result<(), StepError>> {
        let now = crate::conditions::whole_seconds(self.context.clock.now()).to_string();
        let patches = steps.iter().filter_map(|step| {
            let Step::Conditions { pod, set, drop } = step else {
                return None;
            };
            let set = set.iter().map(|(kind, message)| {
                json!({ "type": kind, "status": "True", "message": message, "lastTransitionTime": now })
            });
            let drop = drop
                .iter()
                .map(|kind| json!({ "$patch": "delete", "type": kind }));
            Some((pod.clone(), set.chain(drop).collect::<Vec<_>>()))
        });
        stream::iter(patches.collect::<Vec<_>>())
            .map(|(id, conditions)| async move {
                let Some(pod) = self.pod(&id) else { return Ok(()) };
                let patch = json!({ "status": { "conditions": conditions } });
                match self.writer.patch_status(pod.as_ref(), patch).await {
                    Ok(written) => {
                        self.remember(written);
                        Ok(())
                    }
                    Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
                    Err(source) => Err(StepError::Patch { pod: id.name, source }),
                }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await
    }

    /// Also tells which pods must not go, because their claims would be left behind against the user's will.
    async fn own_claims(&self, steps: &[Step]) -> (Vec<Result<(), StepError>>, Vec<PodId>) {
        let mut results = Vec::new();
        let mut kept = Vec::new();
        for step in steps {
            let Step::OwnClaim { pod, claim, owner } = step else {
                continue;
            };
            let result = self.own_claim(pod, claim, owner).await;
            if result.is_err() && *owner == ClaimOwner::Pod(pod.clone()) {
                kept.push(pod.clone());
            }
            results.push(result);
        }
        (results, kept)
    }

    async fn own_claim(&self, pod: &PodId, name: &str, owner: &ClaimOwner) -> Result<(), StepError> {
        let claims = &self.context.caches.claims;
        let Some(claim) = claims.get(&self.here(name)) else {
            return Ok(());
        };
        let patch = json!({ "metadata": {
            "ownerReferences": claims::owner_references(self.nodeset, pod, &claim, owner),
            "resourceVersion": claim.resource_version(),
        } });
        match self.writer.merge(claim.as_ref(), patch).await {
            Ok(written) => {
                claims.upsert(written);
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(source) => Err(StepError::OwnClaim {
                claim: name.to_owned(),
                source,
            }),
        }
    }

    fn here(&self, name: &str) -> Key {
        Key::new(self.nodeset.namespace().unwrap_or_default(), name)
    }

    /// The worker's claims exist and stay.
    async fn ensure_claims(&self, identity: &str) -> Result<(), StepError> {
        let caches = &self.context.caches;
        for desired in claims::build_claims(self.nodeset, identity) {
            let key = desired.key();
            let is_there = |uid: &str| {
                let pods = caches.pods.all();
                pods.iter().any(|pod| pod.uid().as_deref() == Some(uid))
            };
            if let Some(live) = caches.claims.get(&key) {
                if live.metadata.deletion_timestamp.is_some() || claims::is_orphan_of_a_pod(&live, is_there) {
                    return Err(StepError::ClaimGoing { claim: key.name });
                }
                continue;
            }
            match self.writer.create(&desired).await {
                Ok(claim) => {
                    caches.claims.upsert(claim);
                }
                Err(error) if error.is_already_exists() => {}
                Err(source) => {
                    return Err(StepError::CreateClaim {
                        claim: key.name,
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    async fn remove(&self, steps: &[Step], kept: &[PodId]) -> Vec<Result<(), StepError>> {
        let removes = steps.iter().filter(|step| match step {
            Step::Discard { pod }
            | Step::Force { pod }
            | Step::Replace { pod, .. }
            | Step::Retire { pod, .. } => !kept.contains(pod),
            _ => false,
        });
        stream::iter(removes.cloned().collect::<Vec<_>>())
            .map(|step| async move {
                match step {
                    Step::Discard { pod } => Some(self.discard(&pod).await),
                    Step::Force { pod } => Some(self.delete_pod(&pod).await),
                    Step::Replace { pod, node } => Some(self.replace(&pod, &node).await),
                    Step::Retire { pod, node } => Some(self.retire(&pod, &node).await),
                    _ => None,
                }
            })
            .buffer_unordered(AT_ONCE)
            .filter_map(futures::future::ready)
            .collect()
            .await
    }

    /// It may have started since the plan was made; if it starts after this look, the deletion is refused, as it is for
    /// the pod as it was looked at.
    async fn discard(&self, pod: &PodId) -> Result<(), StepError> {
        let is_empty = |pod: Arc<Pod>| super::perceive::pod_facts(&pod).is_empty();
        if !self.pod(pod).is_some_and(is_empty) {
            return Ok(());
        }
        self.delete_pod(pod).await
    }

    /// The last look before the deletion: the plan's reading may be a second old.
    async fn replace(&self, pod: &PodId, node: &NodeName) -> Result<(), StepError> {
        let Some(slurm) = &self.slurm else { return Ok(()) };
        let now = slurm.node(node).await.map_err(|source| StepError::Ask {
            node: node.clone(),
            source,
        })?;
        if now.is_some_and(|now| !now.drained()) {
            tracing::info!(%node, pod = pod.name, "no longer drained, keeping the pod");
            return Ok(());
        }
        self.delete_pod(pod).await
    }

    /// Slurm is the referee: a node on which a job runs cannot be deleted. The record of a pod that is gone already may be
    /// its successor's by now.
    async fn retire(&self, pod: &PodId, node: &NodeName) -> Result<(), StepError> {
        let is_there = |pod: Arc<Pod>| pod.metadata.deletion_timestamp.is_none();
        if !self.pod(pod).is_some_and(is_there) {
            return Ok(());
        }
        let Some(slurm) = &self.slurm else { return Ok(()) };
        match slurm.delete(node).await {
            Ok(()) => self.delete_pod(pod).await,
            Err(control::Error::Refused(why)) => {
                tracing::info!(%node, pod = pod.name, why, "Slurm keeps the node, keeping the pod");
                Ok(())
            }
            Err(source) => Err(StepError::Ask {
                node: node.clone(),
                source,
            }),
        }
    }

    async fn delete_pod(&self, id: &PodId) -> Result<(), StepError> {
        let Some(pod) = self.pod(id) else { return Ok(()) };
        match self.writer.delete(pod.as_ref()).await {
            Ok(true) => {
                let note = format!("deleted pod {}", id.name);
                self.context
                    .events
                    .normal(self.nodeset, event::SUCCESSFUL_DELETE, note);
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(source) => Err(StepError::Delete {
                pod: id.name.clone(),
                source,
            }),
        }
    }

    async fn create(&self, steps: &[Step]) -> Vec<Result<(), StepError>> {
        stream::iter(steps.to_vec())
            .map(|step| async move {
                match step {
                    Step::Create { ordinal, machine } => {
                        Some(self.create_ordinal(ordinal, machine.as_deref()).await)
                    }
                    Step::CreateOn { machine, hostname } => Some(self.create_on(&machine, &hostname).await),
                    _ => None,
                }
            })
            .buffer_unordered(AT_ONCE)
            .filter_map(futures::future::ready)
            .collect()
            .await
    }

    async fn create_ordinal(&self, ordinal: u32, machine: Option<&str>) -> Result<(), StepError> {
        let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let name = self.nodeset.pod_name(ordinal);
        let template = self.template(&name)?;
        self.ensure_claims(&self.nodeset.padded_ordinal(ordinal)).await?;
        let place = Place {
            revision: self.revision,
            machine,
        };
        self.create_pod(&name, &build_pod(self.nodeset, template, ordinal, place))
            .await
    }

    async fn create_on(&self, machine: &str, hostname: &str) -> Result<(), StepError> {
        let name = format!("{} on {machine}", self.nodeset.name_any());
        let template = self.template(&name)?;
        self.ensure_claims(hostname).await?;
        let pod = build_pod_on(self.nodeset, template, self.revision, machine, hostname);
        self.create_pod(&name, &pod).await
    }

    fn template(&self, pod: &str) -> Result<&Template, StepError> {
        self.template
            .as_ref()
            .copied()
            .map_err(|why| StepError::NoTemplate {
                pod: pod.to_owned(),
                why: why.clone(),
            })
    }

    async fn create_pod(&self, name: &str, desired: &Desired<Pod>) -> Result<(), StepError> {
        match self.writer.create(desired).await {
            Ok(pod) => {
                self.remember(pod);
                Ok(())
            }
            // The watch is behind, or its predecessor is still dying: the next look sees it.
            Err(error) if error.is_already_exists() => Ok(()),
            // A namespace on its way out takes no pods.
            Err(error)
                if error
                    .status()
                    .is_some_and(|status| status.message.contains("being terminated")) =>
            {
                Ok(())
            }
            Err(source) => {
                let note = format!(
                    "cannot create pod {name}: {}",
                    keelson_runtime::run::chain(&source)
                );
                self.context
                    .events
                    .warning(self.nodeset, event::FAILED_CREATE, note);
                Err(StepError::Create {
                    pod: name.to_owned(),
                    source,
                })
            }
        }
    }
}
