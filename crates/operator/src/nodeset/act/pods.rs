//! Pods that come and go.

use std::sync::Arc;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use keelson_api::well_known::event;
use keelson_runtime::{apply::Desired, run::chain};
use kube::ResourceExt;

use super::{AT_ONCE, Act, StepError, listed};
use crate::{
    nodeset::{
        build::{Place, Template, build_pod, build_pod_on},
        facts::{NextRecord, PodId, Step},
        perceive::pod_facts,
    },
    slurm::{
        control,
        facts::{NodeName, SlurmNode},
    },
};

impl Act<'_> {
    pub(super) async fn remove(&self, steps: &[Step], kept: &[PodId]) -> Vec<Result<(), StepError>> {
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
                    Step::Replace { pod, node, record } => Some(self.replace(&pod, &node, &record).await),
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
        let is_empty = |pod: Arc<Pod>| pod_facts(&pod).is_empty();
        if !self.pod(pod).is_some_and(is_empty) {
            return Ok(());
        }
        self.delete_pod(pod).await
    }

    /// The last look before the deletion: the plan's reading may be a second old.
    async fn replace(&self, pod: &PodId, node: &NodeName, record: &NextRecord) -> Result<(), StepError> {
        let Some(slurm) = &self.slurm else { return Ok(()) };
        let ask = |source| StepError::Ask {
            node: node.clone(),
            source,
        };
        let now = slurm.node(node).await.map_err(ask)?;
        let renews = *record == NextRecord::Renewed;
        let as_planned = |now: &SlurmNode| now.drained() && (now.reason_is_ours() || !renews);
        if now.as_ref().is_some_and(|now| !as_planned(now)) {
            tracing::info!(%node, pod = pod.name, "no longer drained, or by somebody else; keeping the pod");
            // What is noted of its record must not be taken back.
            return if renews {
                Err(StepError::NotRenewed { node: node.clone() })
            } else {
                Ok(())
            };
        }
        // Where the record has to stay nothing runs there all the same, and the update goes on.
        let kept_for = match record {
            NextRecord::Renewed if self.is_there(pod) && now.is_some() => match slurm.delete(node).await {
                Err(control::Error::Refused(why)) => Some(why),
                other => {
                    other.map_err(ask)?;
                    None
                }
            },
            NextRecord::Kept { why } => Some(format!("{why}; they are renewed when that is over")),
            NextRecord::Renewed | NextRecord::Stays => None,
        };
        if let Some(why) = kept_for {
            let text = format!(
                "node {node} keeps the resources and features that Slurm knows: {why}; to have them renewed at once, drain it and \
                 run `scontrol delete nodename={node}`, and it registers again by itself"
            );
            self.context
                .events
                .warning(self.nodeset, event::NODE_NOT_RENEWED, text);
        }
        self.delete_pod(pod).await
    }

    /// Slurm is the referee: a node on which a job runs cannot be deleted. The record of a pod that is gone already may be
    /// its successor's by now.
    async fn retire(&self, pod: &PodId, node: &NodeName) -> Result<(), StepError> {
        if !self.is_there(pod) {
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

    fn is_there(&self, pod: &PodId) -> bool {
        let pod = self.pod(pod);
        pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
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

    pub(super) async fn create(&self, steps: &[Step]) -> Vec<Result<(), StepError>> {
        let results: Vec<Result<Option<String>, StepError>> = stream::iter(steps.to_vec())
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
            .await;
        let mut created: Vec<&String> = results.iter().flatten().flatten().collect();
        created.sort();
        if !created.is_empty() {
            let note = format!("created pods {}", listed(&created));
            self.context
                .events
                .normal(self.nodeset, event::SUCCESSFUL_CREATE, note);
        }
        results.into_iter().map(|result| result.map(drop)).collect()
    }

    async fn create_ordinal(&self, ordinal: u32, machine: Option<&str>) -> Result<Option<String>, StepError> {
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

    async fn create_on(&self, machine: &str, hostname: &str) -> Result<Option<String>, StepError> {
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

    /// The name of the pod, if one was created.
    async fn create_pod(&self, name: &str, desired: &Desired<Pod>) -> Result<Option<String>, StepError> {
        match self.writer.create(desired).await {
            Ok(pod) => {
                let created = pod.name_any();
                self.remember(pod);
                Ok(Some(created))
            }
            // The watch is behind, or its predecessor is still dying: the next look sees it.
            Err(error) if error.is_already_exists() => Ok(None),
            // A namespace on its way out takes no pods.
            Err(error)
                if error
                    .status()
                    .is_some_and(|status| status.message.contains("being terminated")) =>
            {
                Ok(None)
            }
            Err(source) => {
                let note = format!("cannot create pod {name}: {}", chain(&source));
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
