//! Creates the `PersistentVolumeClaim`s of workers and changes their owners.

use kube::ResourceExt;
use serde_json::json;

use super::KubeWorkers;
use crate::nodeset::{
    act::StepError,
    claims,
    facts::{ClaimOwner, PodId},
};

impl KubeWorkers<'_> {
    pub(super) async fn change_owner(
        &self,
        pod: &PodId,
        name: &str,
        owner: &ClaimOwner,
    ) -> Result<(), StepError> {
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

    /// Creates missing claims of a worker, and fails if an existing one is being deleted.
    pub(super) async fn ensure_claims(&self, identity: &str) -> Result<(), StepError> {
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
}
