//! Optional kinds, such as third-party CRDs: discovered at runtime and watched while installed.
//!
//! A watch of a missing kind would fail forever and keep the process not ready. The operator therefore polls API
//! discovery, which every account may read, so that a CRD installed later needs no restart.

use std::{collections::HashSet, fmt, fmt::Debug, sync::Arc, sync::OnceLock, time::Duration};

use kube::{Client, Resource, core::NamespaceResourceScope, runtime::watcher};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Cache, run::chain, watch::Watches};

/// Shorter than the time for which a failing watch is tolerated, so that the watch of a removed kind ends before it
/// makes the process not ready.
const ASK_EVERY: Duration = Duration::from_secs(10);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Whether the API server serves a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Installed {
    /// Discovery has not succeeded yet, or the objects have not been listed yet.
    #[default]
    Unknown,
    No,
    Yes,
}

/// The objects of a kind that may be missing, and whether it is installed.
pub struct Optional<K> {
    pub cache: Arc<Cache<K>>,
    installed: RwLock<Installed>,
    on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl<K: kube::ResourceExt> Default for Optional<K> {
    fn default() -> Self {
        Self {
            cache: Arc::default(),
            installed: RwLock::default(),
            on_change: OnceLock::new(),
        }
    }
}

impl<K> Debug for Optional<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Optional")
            .field("installed", &*self.installed.read())
            .finish_non_exhaustive()
    }
}

impl<K> Optional<K> {
    pub fn installed(&self) -> Installed {
        *self.installed.read()
    }

    /// Sets the callback for installation and removal of the kind. Only the first call takes effect.
    pub fn subscribe(&self, on_change: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_change.set(Box::new(on_change));
    }

    fn set(&self, installed: Installed) {
        let before = std::mem::replace(&mut *self.installed.write(), installed);
        if let (true, Some(on_change)) = (before != installed, self.on_change.get()) {
            on_change();
        }
    }
}

impl Watches {
    /// Watches a namespaced kind while it is installed.
    pub fn optional<K>(&self, config: &watcher::Config, kind: &Arc<Optional<K>>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let (watches, config, kind) = (self.clone(), config.clone(), Arc::clone(kind));
        self.tasks.spawn(async move {
            let mut running = None;
            loop {
                tokio::select! {
                    () = watches.stop.cancelled() => break,
                    served = is_served::<K>(&watches.client) => {
                        follow(&watches, &config, &kind, served, &mut running).await;
                    }
                }
                let listing = running.is_some() && kind.installed() != Installed::Yes;
                tokio::select! {
                    () = watches.stop.cancelled() => break,
                    () = tokio::time::sleep(ASK_EVERY) => {}
                    // Before the first list, existing objects are not in the cache and could not be removed.
                    () = kind.cache.synced(), if listing => kind.set(Installed::Yes),
                }
            }
            if let Some(running) = running {
                running.end().await;
            }
        });
    }
}

/// The running watch of an installed kind.
struct Running {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Running {
    async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Starts or stops the watch according to discovery. Does nothing if discovery failed.
async fn follow<K>(
    watches: &Watches,
    config: &watcher::Config,
    kind: &Arc<Optional<K>>,
    served: Option<bool>,
    running: &mut Option<Running>,
) where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    match served {
        Some(true) if running.is_none() => {
            let started = Running {
                tasks: TaskTracker::new(),
                stop: watches.stop.child_token(),
            };
            let within = Watches {
                tasks: started.tasks.clone(),
                stop: started.stop.clone(),
                ..watches.clone()
            };
            tracing::info!(kind = %K::kind(&()), "CRD installed, starting watch");
            within.tolerant(config, &kind.cache);
            *running = Some(started);
        }
        Some(false) => {
            if let Some(running) = running.take() {
                tracing::info!(kind = %K::kind(&()), "CRD removed, stopped watch");
                running.end().await;
                watches.health.forget(&K::kind(&()));
                kind.cache.expect_no_list();
                kind.cache.retain_listed(None, &HashSet::new());
            }
            kind.set(Installed::No);
        }
        _ => {}
    }
}

/// Returns whether the API server serves the kind, or `None` if discovery failed.
async fn is_served<K: Resource<DynamicType = ()>>(client: &Client) -> Option<bool> {
    let version = K::api_version(&());
    let asked = client.list_api_group_resources(&version);
    match tokio::time::timeout(ANSWER_LIMIT, asked).await {
        Ok(Ok(list)) => Some(
            list.resources
                .iter()
                .any(|resource| resource.name == K::plural(&())),
        ),
        // For an unknown group the API server sends plain text, not a Status with a reason: compare the code.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Some(false),
        Ok(Err(error)) => {
            tracing::warn!(group = %version, error = chain(&error), "failed to discover installed kinds");
            None
        }
        Err(_) => {
            tracing::warn!(group = %version, "timed out discovering installed kinds");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use axum::{body::Body, http};
    use k8s_openapi::api::apps::v1::Deployment;
    use serde_json::json;

    use super::*;
    use crate::{health::Health, metrics::Metrics, watch::Scope};

    /// A fake API server that serves Deployments while `served` is true.
    fn fake_server(served: &Arc<AtomicBool>) -> Client {
        let served = Arc::clone(served);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let is_there = served.load(Ordering::Relaxed);
            let watches = request
                .uri()
                .query()
                .is_some_and(|query| query.contains("watch="));
            let body = match (is_there, request.uri().path()) {
                (true, "/apis/apps/v1") => {
                    json!({ "kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [
                    { "name": "deployments", "singularName": "", "namespaced": true, "kind": "Deployment", "verbs": [] }] })
                }
                (true, _) => {
                    json!({ "kind": "DeploymentList", "apiVersion": "apps/v1", "metadata": { "resourceVersion": "1" },
                    "items": [{ "metadata": { "namespace": "ns", "name": "a", "uid": "u", "resourceVersion": "1" } }] })
                }
                (false, _) => {
                    json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound" })
                }
            };
            async move {
                if watches && is_there {
                    std::future::pending::<()>().await;
                }
                let response = http::Response::builder()
                    .status(if is_there { 200 } else { 404 })
                    .body(Body::from(body.to_string()));
                Ok::<_, std::convert::Infallible>(response.unwrap())
            }
        });
        Client::new(service, "ns")
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_found_when_it_comes_and_forgotten_when_it_goes() {
        let served = Arc::new(AtomicBool::new(false));
        let watches = Watches {
            client: fake_server(&served),
            scope: Scope::All,
            health: Health::default(),
            metrics: Metrics::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        let kind: Arc<Optional<Deployment>> = Arc::default();
        let changes = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&changes);
        kind.subscribe(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        watches.optional(&watcher::Config::default(), &kind);
        let turn = || tokio::time::sleep(ASK_EVERY * 2);
        turn().await;
        assert_eq!((kind.installed(), kind.cache.len()), (Installed::No, 0));
        assert!(watches.health.complaints().is_empty());

        served.store(true, Ordering::Relaxed);
        turn().await;
        assert_eq!((kind.installed(), kind.cache.len()), (Installed::Yes, 1));

        served.store(false, Ordering::Relaxed);
        turn().await;
        assert_eq!((kind.installed(), kind.cache.len()), (Installed::No, 0));
        assert!(watches.health.complaints().is_empty());

        served.store(true, Ordering::Relaxed);
        turn().await;
        assert_eq!((kind.installed(), kind.cache.len()), (Installed::Yes, 1), "again");
        assert_eq!(changes.load(Ordering::Relaxed), 4);
        watches.stop.cancel();
        watches.tasks.close();
        watches.tasks.wait().await;
    }
}
