//! Dependencies that all controllers share.

use std::{fmt, sync::Arc};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use keelson_api::{Controller, well_known::object};
use keelson_runtime::{
    Cache, Clock, Key,
    apply::{Desired, Writer},
    contents::Contents,
    events::Events,
    metrics::Metrics,
    run::chain,
};
use kube::{
    Client, Resource, ResourceExt,
    core::{NamespaceResourceScope, object::HasStatus},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    caches::Caches,
    conditions,
    error::Error,
    fingerprints::{self, HashKey},
    keys,
    problem::Problem,
    slurm::mirrors::Mirrors,
    triggers::Triggers,
};

/// Settings that come from flags.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Node condition types whose reason and message become the reason of a drain.
    pub propagated_node_conditions: Vec<String>,
    /// The DNS domain of the Kubernetes cluster, such as `cluster.local`.
    pub cluster_domain: String,
    /// Maximum size of a list read from slurmrestd, in bytes.
    pub slurm_max_answer: usize,
}

pub struct Context {
    pub client: Client,
    /// For requests that go directly to pods, without the Kubernetes API.
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
    /// Returns a writer with the field manager of one controller.
    pub fn writer(&self, manager: &'static str) -> Writer {
        Writer::new(self.client.clone(), manager, self.metrics.clone())
    }

    /// Returns the Secret of this name, with its content.
    pub async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Secret>>, keelson_runtime::contents::Error> {
        self.secrets.get(&Key::new(namespace, name)).await
    }

    /// Returns the fingerprint of the slurm.key that slurmctld runs with, if we run slurmctld.
    pub fn slurm_key_in_use(&self, controller: &Controller) -> Option<String> {
        let namespace = controller.namespace().unwrap_or_default();
        let workload = Key::new(namespace, controller.controller_name());
        keys::slurm_key_in_use(self.caches.stateful_sets.get(&workload).as_deref())
    }

    /// Returns the key for fingerprints of Secrets in the namespace of this object; `None` if there is none and it
    /// cannot be created. None is created for an object that is being deleted: nothing is built for it any more, and
    /// its namespace may be going too.
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
            // Another controller was faster; the watch has not reported it yet.
            Err(error) if error.is_already_exists() => {
                let secret = self.secrets.read(&Key::new(namespace, object::HASH_KEY)).await?;
                Ok(secret.and_then(|secret| HashKey::read(&secret)))
            }
            Err(error) => {
                tracing::warn!(namespace, error = chain(&error), "failed to create the hash key");
                Ok(None)
            }
        }
    }

    /// Writes the status of an object unless it is unchanged, and updates the cache, so that the next reconcile sees it.
    pub async fn write_status<K>(
        &self,
        writer: &Writer,
        cache: &Cache<K>,
        object: &K,
        status: &K::Status,
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + HasStatus,
        K: Clone + DeserializeOwned + fmt::Debug,
        K::Status: Serialize,
    {
        let written = writer
            .apply_status(object, &json!(object.status()), &json!(status))
            .await
            .map_err(Error::Status)?;
        if let Some(written) = written {
            cache.upsert(written);
        }
        Ok(())
    }

    /// Emits an event for a problem that the conditions did not report before.
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

    /// Emits an event for a problem that the conditions show from now on.
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

    /// Returns the ConfigMap of this name, with its content.
    pub async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<ConfigMap>>, keelson_runtime::contents::Error> {
        self.config_maps.get(&Key::new(namespace, name)).await
    }
}
