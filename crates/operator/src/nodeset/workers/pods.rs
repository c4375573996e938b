//! Creates and deletes worker pods.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use keelson_api::well_known::event;
use keelson_runtime::{apply::Desired, run::chain};
use kube::ResourceExt;

use super::KubeWorkers;
use crate::nodeset::{
    act::{Spot, StepError},
    build::{Place, Template, build_pod, build_pod_on},
    facts::PodId,
};
use crate::slurm::facts::NodeName;

impl KubeWorkers<'_> {
    pub(super) async fn delete_pod(&self, id: &PodId, limit: Duration) -> Result<bool, StepError> {
        let Some(pod) = self.pod(id) else { return Ok(false) };
        let name = id.name.clone();
        match tokio::time::timeout(limit, self.writer.delete(pod.as_ref())).await {
            Ok(deleted) => deleted.map_err(|source| StepError::Delete { pod: name, source }),
            Err(_) => Err(StepError::DeleteLate { pod: name, limit }),
        }
    }

    pub(super) async fn create_worker(&self, spot: &Spot) -> Result<Option<String>, StepError> {
        let place = |hostname: &str| Place {
            revision: self.revision,
            anchor: self.anchor,
            registered_before: self.registered(hostname),
        };
        match spot {
            Spot::Ordinal { ordinal, kube_node } => {
                let ordinal = i32::try_from(*ordinal).unwrap_or(i32::MAX);
                let name = self.nodeset.pod_name(ordinal);
                let template = self.template(&name)?;
                self.ensure_claims(&self.nodeset.padded_ordinal(ordinal)).await?;
                let place = place(&self.nodeset.pod_hostname(ordinal));
                let pod = build_pod(self.nodeset, template, ordinal, kube_node.as_deref(), place);
                self.create_pod(&name, &pod).await
            }
            Spot::KubeNode { kube_node, hostname } => {
                let name = format!("{} on {kube_node}", self.nodeset.name_any());
                let template = self.template(&name)?;
                self.ensure_claims(hostname).await?;
                let pod = build_pod_on(self.nodeset, template, kube_node, hostname, place(hostname));
                self.create_pod(&name, &pod).await
            }
        }
    }

    /// Returns when the last slurmd of this node started.
    fn registered(&self, hostname: &str) -> Option<jiff::Timestamp> {
        self.slurm
            .node(&NodeName::from(hostname))
            .and_then(|node| node.registered)
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

    async fn create_pod(&self, name: &str, desired: &Desired<Pod>) -> Result<Option<String>, StepError> {
        match self.writer.create(desired).await {
            Ok(pod) => {
                let created = pod.name_any();
                self.remember(pod);
                Ok(Some(created))
            }
            // The watch is behind, or the previous pod is still terminating: the next reconcile handles it.
            Err(error) if error.is_already_exists() => Ok(None),
            // A terminating namespace accepts no pods.
            Err(error)
                if error
                    .status()
                    .is_some_and(|status| status.message.contains("being terminated")) =>
            {
                Ok(None)
            }
            Err(source) => {
                let note = format!("failed to create pod {name}: {}", chain(&source));
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
