//! Writes pod metadata: the intent before Slurm is called, and conditions that show the state of the Slurm node.

use std::collections::BTreeMap;

use keelson_api::well_known::{annotation, label};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::KubeWorkers;
use crate::{
    children::metadata::owned_by,
    nodeset::{
        act::{Mark, PodPatch, StepError},
        facts::PodId,
    },
};

impl KubeWorkers<'_> {
    pub(super) async fn patch_pod(&self, id: &PodId, patch: &PodPatch) -> Result<bool, StepError> {
        let Some(pod) = self.pod(id) else { return Ok(false) };
        let PodPatch {
            intent,
            deadline,
            topology,
            protected,
            adopt,
        } = patch;
        let mut annotations = Map::new();
        let mut mark = |name: &str, value: Mark<String>| match value {
            Mark::Unchanged => {}
            Mark::Set(text) => drop(annotations.insert(name.into(), json!(text))),
            Mark::Cleared => drop(annotations.insert(name.into(), Value::Null)),
        };
        mark(
            annotation::DRAIN_CAUSE,
            intent.map(|intent| intent.cause.word().to_owned()),
        );
        mark(
            annotation::DRAIN_SINCE,
            intent.map(|intent| intent.since.to_string()),
        );
        mark(annotation::POD_DEADLINE, deadline.map(ToString::to_string));
        mark(annotation::TOPOLOGY_SPEC, topology.clone());
        let mut metadata = Map::new();
        if *adopt {
            metadata.insert("ownerReferences".into(), self.owners(pod.as_ref()));
            metadata.insert("resourceVersion".into(), json!(pod.resource_version()));
        }
        if !annotations.is_empty() {
            metadata.insert("annotations".into(), Value::Object(annotations));
        }
        if let Some(protected) = protected {
            let value = protected.then_some("true");
            metadata.insert("labels".into(), json!({ label::POD_PROTECT: value }));
        }
        match self
            .writer
            .merge(pod.as_ref(), json!({ "metadata": metadata }))
            .await
        {
            Ok(written) => {
                self.remember(written);
                Ok(true)
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
            Err(source) => Err(StepError::Patch {
                pod: id.name.clone(),
                source,
            }),
        }
    }

    /// Returns the pod's owner references, including the NodeSet as controller and its anchor.
    fn owners(&self, pod: &impl ResourceExt) -> Value {
        let mut owners: Vec<Value> = pod.owner_references().iter().map(|owner| json!(owner)).collect();
        for ours in std::iter::once(owned_by(self.nodeset)).chain(self.anchor.cloned()) {
            let is_ours = |owner: &Value| owner.get("uid") == ours.get("uid");
            if !owners.iter().any(is_ours) {
                owners.push(ours);
            }
        }
        json!(owners)
    }

    /// Sets and removes our pod conditions by type, because pod conditions have several writers.
    pub(super) async fn show_conditions(
        &self,
        id: &PodId,
        set: &BTreeMap<String, String>,
        drop: &[String],
    ) -> Result<(), StepError> {
        let Some(pod) = self.pod(id) else { return Ok(()) };
        let now = crate::conditions::whole_seconds(self.context.clock.now()).to_string();
        let set = set.iter().map(
            |(kind, message)| json!({ "type": kind, "status": "True", "message": message, "lastTransitionTime": now }),
        );
        let drop = drop
            .iter()
            .map(|kind| json!({ "$patch": "delete", "type": kind }));
        let conditions: Vec<Value> = set.chain(drop).collect();
        let patch = json!({ "status": { "conditions": conditions } });
        match self.writer.patch_status(pod.as_ref(), patch).await {
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
}
