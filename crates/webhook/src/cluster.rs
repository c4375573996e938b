//! Reads from the API server: watches of our kinds, and, for the webhook on bindings, a pod's labels and a node's
//! annotations. Contains no policy.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use keelson_api::{Accounting, Controller, LoginSet, NodeSet, RestApi, Token};
use keelson_runtime::{Cache, clock::Clock, watch::Watches};
use kube::{Api, Client, ResourceExt, core::PartialObjectMeta};
use serde::de::DeserializeOwned;

use crate::namespace_snapshot::{Lookup, NamespaceSnapshot, is_object_name};

/// Index of the watched objects by namespace.
const NAMESPACE: &str = "namespace";
/// Timeout for reading one object. Short, because the API server is waiting for the review.
const READ: Duration = Duration::from_secs(2);

/// Watch caches of our kinds.
#[derive(Debug, Clone)]
pub struct Caches {
    pub accountings: Arc<Cache<Accounting>>,
    pub controllers: Arc<Cache<Controller>>,
    pub loginsets: Arc<Cache<LoginSet>>,
    pub nodesets: Arc<Cache<NodeSet>>,
    pub restapis: Arc<Cache<RestApi>>,
    pub tokens: Arc<Cache<Token>>,
}

impl Default for Caches {
    /// The rules read specs only, so statuses are dropped.
    fn default() -> Self {
        Self {
            accountings: by_namespace(|object| object.status = None),
            controllers: by_namespace(|object| object.status = None),
            loginsets: by_namespace(|object| object.status = None),
            nodesets: by_namespace(|object| object.status = None),
            restapis: by_namespace(|object| object.status = None),
            tokens: by_namespace(|object| object.status = None),
        }
    }
}

fn by_namespace<K: ResourceExt>(prune: fn(&mut K)) -> Arc<Cache<K>> {
    let namespace: fn(&K) -> Vec<String> = |object| object.namespace().into_iter().collect();
    Arc::new(Cache::new(&[(NAMESPACE, namespace)]).pruned(prune))
}

impl Caches {
    /// Whether every cache has synced.
    fn are_whole(&self) -> bool {
        self.accountings.synced().now_or_never().is_some()
            && self.controllers.synced().now_or_never().is_some()
            && self.loginsets.synced().now_or_never().is_some()
            && self.nodesets.synced().now_or_never().is_some()
            && self.restapis.synced().now_or_never().is_some()
            && self.tokens.synced().now_or_never().is_some()
    }

    /// Starts the watches that fill the caches.
    pub fn watch(&self, watches: &Watches) {
        watches.custom(&self.accountings);
        watches.custom(&self.controllers);
        watches.custom(&self.loginsets);
        watches.custom(&self.nodesets);
        watches.custom(&self.restapis);
        watches.custom(&self.tokens);
    }
}

/// Read access to the cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    caches: Caches,
    clock: Clock,
    strict: bool,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("caches", &self.caches)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    pub fn new(client: Client, caches: Caches, strict: bool) -> Self {
        Self {
            client,
            caches,
            clock: Clock::system(),
            strict,
        }
    }

    /// The objects of our kinds in this namespace.
    pub fn snapshot(&self, namespace: &str) -> NamespaceSnapshot {
        NamespaceSnapshot {
            now: Some(self.clock.now()),
            known: self.caches.are_whole(),
            strict: self.strict,
            accountings: self.caches.accountings.find(NAMESPACE, namespace),
            controllers: self.caches.controllers.find(NAMESPACE, namespace),
            loginsets: self.caches.loginsets.find(NAMESPACE, namespace),
            nodesets: self.caches.nodesets.find(NAMESPACE, namespace),
            restapis: self.caches.restapis.find(NAMESPACE, namespace),
            tokens: self.caches.tokens.find(NAMESPACE, namespace),
        }
    }

    /// Labels of a pod.
    pub async fn pod_labels(&self, namespace: &str, name: &str) -> Lookup<BTreeMap<String, String>> {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.client.clone(), namespace);
        read(&api, name, |pod| pod.metadata.labels.unwrap_or_default()).await
    }

    /// Annotations of a node.
    pub async fn node_annotations(&self, name: &str) -> Lookup<BTreeMap<String, String>> {
        let api: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        read(&api, name, |node| node.metadata.annotations.unwrap_or_default()).await
    }
}

async fn read<K, T>(api: &Api<K>, name: &str, take: fn(K) -> T) -> Lookup<T>
where
    K: Clone + DeserializeOwned + fmt::Debug,
{
    // The name becomes part of a URL path.
    if !is_object_name(name) {
        return Lookup::Impossible;
    }
    let error = match tokio::time::timeout(READ, api.get_opt(name)).await {
        Ok(Ok(Some(object))) => return Lookup::Found(take(object)),
        Ok(Ok(None)) => return Lookup::Missing,
        Ok(Err(error)) => keelson_runtime::run::chain(&error),
        Err(_) => format!("no response within {} s", READ.as_secs()),
    };
    tracing::warn!(name, error, "failed to read an object for a review");
    Lookup::Unknown
}
