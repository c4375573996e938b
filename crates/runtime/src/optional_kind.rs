//! A kind that need not be installed: found by discovery, and watched for as long as it is there.
//!
//! A watch of a kind that does not exist fails for ever and would make the process not ready. So the API server is asked
//! every few seconds whether it serves the kind: every account may ask that, and a CRD that is installed later needs no
//! restart.

use std::{collections::HashSet, fmt, fmt::Debug, sync::Arc, sync::OnceLock, time::Duration};

use kube::{Client, Resource, core::NamespaceResourceScope, runtime::watcher};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Cache, run::chain, watch::Watches};

/// Shorter than a failing watch is tolerated for: that of a kind that was removed ends before anybody complains of it.
const ASK_EVERY: Duration = Duration::from_secs(10);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Whether the API server serves a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Installed {
    /// Nobody has answered yet, or its objects have not been listed yet.
    #[default]
    Unknown,
    No,
    Yes,
}

/// The objects of a kind that may be missing, and whether it is.
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

    /// Names who hears that the kind was installed or removed. Only the first call counts.
    pub fn tell(&self, on_change: impl Fn() + Send + Sync + 'static) {
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
                    // Only with the list is it known what there is: an object could not be removed before.
                    () = kind.cache.synced(), if listing => kind.set(Installed::Yes),
                }
            }
            if let Some(running) = running {
                running.end().await;
            }
        });
    }
}

/// The watch of a kind that is there.
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

/// Starts or ends the watch by what was answered. Without an answer all stays as it is.
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
            tracing::info!(kind = %K::kind(&()), "the kind is installed, watching it");
            within.tolerant(config, &kind.cache);
            *running = Some(started);
        }
        Some(false) => {
            if let Some(running) = running.take() {
                tracing::info!(kind = %K::kind(&()), "the kind is not installed any more");
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

/// Whether the API server serves the kind; nothing when it does not say.
async fn is_served<K: Resource<DynamicType = ()>>(client: &Client) -> Option<bool> {
    let version = K::api_version(&());
    let asked = client.list_api_group_resources(&version);
    match tokio::time::timeout(ANSWER_LIMIT, asked).await {
        Ok(Ok(list)) => Some(
            list.resources
                .iter()
                .any(|resource| resource.name == K::plural(&())),
        ),
        // The API server answers for a group that it does not have with plain text, which is no Status with a reason.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Some(false),
        Ok(Err(error)) => {
            tracing::warn!(group = %version, error = chain(&error), "cannot tell which kinds are installed");
            None
        }
        Err(_) => {
            tracing::warn!(group = %version, "no answer to which kinds are installed");
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

    /// An API server (a fake one) that serves Deployments or does not.
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
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        kind.tell(move || {
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
        assert_eq!(told.load(Ordering::Relaxed), 4);
        watches.stop.cancel();
        watches.tasks.close();
        watches.tasks.wait().await;
    }
}
