//! What every controller is given to do its work.

use std::{fmt, sync::Arc};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use keelson_api::{Controller, well_known::object};
use keelson_runtime::{
    Clock, Key,
    apply::{Desired, Writer},
    contents::Contents,
    events::Events,
    metrics::Metrics,
    run::chain,
};
use kube::{Client, Resource, ResourceExt};

use crate::{
    caches::Caches,
    conditions,
    fingerprints::{self, HashKey},
    keys,
    problem::Problem,
    slurm::mirrors::Mirrors,
    triggers::Triggers,
};

/// Settings that come from flags.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Node condition types whose text becomes the reason of a drain.
    pub propagated_node_conditions: Vec<String>,
    /// The DNS domain of the Kubernetes cluster, such as `cluster.local`.
    pub cluster_domain: String,
    /// The longest list that is read from slurmrestd, in bytes.
    pub slurm_max_answer: usize,
}

pub struct Context {
    pub client: Client,
    /// For what answers inside the cluster without Kubernetes in between.
    pub http: reqwest::Client,
    pub caches: Arc<Caches>,
    pub triggers: Triggers,
    pub secrets: Contents<Secret>,
    pub config_maps: Contents<ConfigMap>,
    pub events: Events,
    pub mirrors: Mirrors,
    pub clock: Clock,
    pub metrics: Metrics,
    pub settings: Settings,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Writes as the field manager of one controller.
    pub fn writer(&self, manager: &'static str) -> Writer {
        Writer::new(self.client.clone(), manager, self.metrics.clone())
    }

    /// The Secret of this name, with its content.
    pub async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Secret>>, keelson_runtime::contents::Error> {
        self.secrets.get(&Key::new(namespace, name)).await
    }

    /// Checksum of the slurm.key that slurmctld runs with, where it is ours.
    pub fn slurm_key_in_use(&self, controller: &Controller) -> Option<String> {
        let namespace = controller.namespace().unwrap_or_default();
        let workload = Key::new(namespace, controller.controller_name());
        keys::slurm_key_in_use(self.caches.stateful_sets.get(&workload).as_deref())
    }

    /// The key for the names of Secrets' contents in the namespace of this object; `None` when there is none and it cannot be
    /// made. For what is being deleted none is made: nothing is built for it any more, and its namespace may be going too.
    pub async fn hash_key<K: ResourceExt>(
        &self,
        owner: &K,
    ) -> Result<Option<HashKey>, keelson_runtime::contents::Error> {
        let namespace = &owner.namespace().unwrap_or_default();
        if let Some(secret) = self.secret(namespace, object::HASH_KEY).await? {
            return Ok(HashKey::read(&secret));
        }
        if owner.meta().deletion_timestamp.is_some() {
            return Ok(None);
        }
        let desired = Desired::<Secret>::new(fingerprints::build_secret(namespace, rand::random()));
        match self.writer(keys::MANAGER).create(&desired).await {
            Ok(made) => {
                self.secrets.put(&made);
                Ok(HashKey::read(&made))
            }
            // Another controller was faster; the watch has not told of it yet.
            Err(error) if error.is_already_exists() => {
                let secret = self.secrets.read(&Key::new(namespace, object::HASH_KEY)).await?;
                Ok(secret.and_then(|secret| HashKey::read(&secret)))
            }
            Err(error) => {
                tracing::warn!(namespace, error = chain(&error), "cannot make the hash key");
                Ok(None)
            }
        }
    }

    /// An event for a problem that the conditions did not tell before.
    pub fn report_problem<K: Resource<DynamicType = ()>>(
        &self,
        about: &K,
        Problem { reason, message }: Problem,
        before: &[Condition],
    ) {
        if !conditions::already_reported(before, reason, &message) {
            self.events.warning(about, reason, message);
        }
    }

    /// An event for trouble that the conditions show from now on.
    pub fn report_pod_problem<K: Resource<DynamicType = ()>>(
        &self,
        about: &K,
        trouble: Option<Problem>,
        before: &[Condition],
        now: &[Condition],
    ) {
        if let Some(Problem { reason, message }) = trouble
            && conditions::newly_degraded(before, now, reason)
        {
            self.events.warning(about, reason, message);
        }
    }

    /// The ConfigMap of this name, with its content.
    pub async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<ConfigMap>>, keelson_runtime::contents::Error> {
        self.config_maps.get(&Key::new(namespace, name)).await
    }
}
