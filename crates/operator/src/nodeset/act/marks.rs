//! What is written on a pod: our intent before Slurm is called, and what Kubernetes shall know of the Slurm node.

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use keelson_api::well_known::{annotation, label};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::{AT_ONCE, Act, StepError};
use crate::{
    children::metadata::owned_by,
    nodeset::{
        facts::{PodId, Step},
        perceive::pod_facts,
    },
    slurm::facts::NodeName,
};

/// What is to be changed of a pod's metadata in one patch.
#[derive(Debug, Default)]
struct Patch {
    annotations: Map<String, Value>,
    labels: Map<String, Value>,
    /// We take charge of it.
    owner: bool,
}

impl Act<'_> {
    /// One patch per pod. Also tells which Slurm nodes must not be drained, because their intent could not be written.
    pub(super) async fn patch(&self, steps: &[Step]) -> (Vec<Result<(), StepError>>, Vec<NodeName>) {
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
            .map(|pod| pod_facts(&pod).node)
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

    /// Pod conditions are a list of everybody's: ours are set and dropped by their type.
    pub(super) async fn show_conditions(&self, steps: &[Step]) -> Vec<Result<(), StepError>> {
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
}
