//! Watches: one per kind and namespace for the lifetime of the process, each with its own backoff.
//!
//! A watch fills a [`Cache`], which triggers reconciles. An object that fails to decode is logged and keeps its last known
//! state in the cache: it must not stop the watch or look deleted.

use std::{
    collections::HashSet,
    fmt::{self, Debug},
    pin::pin,
    sync::Arc,
};

use futures::{Stream, StreamExt};
use kube::{
    Api, Client, Resource,
    core::{DeserializeGuard, NamespaceResourceScope},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Cache, Key,
    health::{Health, WatchHealth},
    metrics::{Metrics, WatchLabels},
    run::chain,
};

/// Cloud load balancers silently drop idle connections after 240 s; kube gives up on a silent watch 5 s after this.
const WATCH_TIMEOUT_SECONDS: u32 = 200;

/// The namespaces that this process watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    All,
    Namespaces(Vec<String>),
}

impl Scope {
    /// Returns the scope for the `--namespaces` flag, where an empty list means every namespace.
    pub fn from_list(namespaces: &[String]) -> Self {
        let mut names: Vec<String> = namespaces
            .iter()
            .map(|ns| ns.trim().to_owned())
            .filter(|ns| !ns.is_empty())
            .collect();
        names.sort();
        names.dedup();
        if names.is_empty() {
            Self::All
        } else {
            Self::Namespaces(names)
        }
    }

    fn apis<K>(&self, client: &Client) -> Vec<(Option<String>, Api<K>)>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match self {
            Self::All => vec![(None, Api::all(client.clone()))],
            Self::Namespaces(names) => names
                .iter()
                .map(|ns| (Some(ns.clone()), Api::namespaced(client.clone(), ns)))
                .collect(),
        }
    }
}

/// Starts watches that share a client, a scope and a stop token.
#[derive(Clone)]
pub struct Watches {
    pub client: Client,
    pub scope: Scope,
    pub health: Health,
    pub metrics: Metrics,
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
}

impl Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl Watches {
    /// Watches a built-in namespaced kind.
    pub fn namespaced<K>(&self, config: &watcher::Config, cache: &Arc<Cache<K>>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        self.in_namespaces(config, cache, Health::watch);
    }

    /// Watches a namespaced kind; the process may be ready before it has been listed.
    pub(crate) fn tolerant<K>(&self, config: &watcher::Config, cache: &Arc<Cache<K>>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        self.in_namespaces(config, cache, Health::dispensable);
    }

    fn in_namespaces<K>(&self, config: &watcher::Config, cache: &Arc<Cache<K>>, register: Register)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        for (namespace, api) in self.scope.apis::<K>(&self.client) {
            let stream = watcher(api, config.clone().timeout(WATCH_TIMEOUT_SECONDS));
            self.spawn(namespace, stream, Ok, cache, register);
        }
    }

    /// Watches a cluster-scoped kind.
    pub fn cluster<K>(&self, config: &watcher::Config, cache: &Arc<Cache<K>>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let api = Api::<K>::all(self.client.clone());
        self.spawn(
            None,
            watcher(api, config.clone().timeout(WATCH_TIMEOUT_SECONDS)),
            Ok,
            cache,
            Health::watch,
        );
    }

    /// Watches a custom kind, whose stored objects may be older than our types.
    pub fn custom<K>(&self, cache: &Arc<Cache<K>>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        for (namespace, api) in self.scope.apis::<DeserializeGuard<K>>(&self.client) {
            let stream = watcher(api, watcher::Config::default().timeout(WATCH_TIMEOUT_SECONDS));
            self.spawn(namespace, stream, unguard, cache, Health::watch);
        }
    }

    fn spawn<W, K>(
        &self,
        namespace: Option<String>,
        stream: impl Stream<Item = watcher::Result<Event<W>>> + Send + 'static,
        decode: fn(W) -> Result<K, Invalid>,
        cache: &Arc<Cache<K>>,
        register: Register,
    ) where
        W: Send + 'static,
        K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    {
        let kind = K::kind(&()).into_owned();
        let name = namespace
            .as_ref()
            .map_or_else(|| kind.clone(), |ns| format!("{kind} in {ns}"));
        cache.expect_list();
        let drive = Drive {
            kind,
            namespace,
            health: register(&self.health, name),
            metrics: self.metrics.clone(),
            cache: Arc::clone(cache),
            listed_once: false,
            listing: None,
        };
        let stop = self.stop.clone();
        let stream = stream.default_backoff();
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = drive.run(stream, decode) => {}
            }
        });
    }
}

/// Registers a watch of this name.
type Register = fn(&Health, String) -> WatchHealth;

/// An object that does not decode into our type.
struct Invalid {
    key: Key,
    error: String,
}

fn unguard<K>(guard: DeserializeGuard<K>) -> Result<K, Invalid> {
    guard.0.map_err(|invalid| Invalid {
        key: Key::new(
            invalid.metadata.namespace.unwrap_or_default(),
            invalid.metadata.name.unwrap_or_default(),
        ),
        error: invalid.error,
    })
}

struct Drive<K> {
    kind: String,
    namespace: Option<String>,
    health: WatchHealth,
    metrics: Metrics,
    cache: Arc<Cache<K>>,
    listed_once: bool,
    /// The keys seen so far in the current list.
    listing: Option<HashSet<Key>>,
}

impl<K: Resource<DynamicType = ()> + Clone> Drive<K> {
    async fn run<W>(
        mut self,
        stream: impl Stream<Item = watcher::Result<Event<W>>>,
        decode: fn(W) -> Result<K, Invalid>,
    ) {
        let mut stream = pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => self.take(event, decode),
                Err(error) => {
                    let message = chain(&error);
                    tracing::warn!(kind = self.kind, error = message, "watch failed, retrying");
                    self.metrics
                        .watch_errors
                        .get_or_create(&WatchLabels {
                            kind: self.kind.clone(),
                        })
                        .inc();
                    self.health.failed(message);
                }
            }
        }
    }

    fn take<W>(&mut self, event: Event<W>, decode: fn(W) -> Result<K, Invalid>) {
        self.health.alive();
        match event {
            Event::Init => self.listing = Some(HashSet::new()),
            Event::Apply(object) | Event::InitApply(object) => match decode(object) {
                Ok(object) => self.upsert(object),
                Err(Invalid { key, error }) => {
                    tracing::error!(kind = self.kind, object = %key, error, "failed to decode an object, keeping its last known state");
                    if let Some(listing) = &mut self.listing {
                        listing.insert(key);
                    }
                }
            },
            Event::Delete(object) => match decode(object) {
                Ok(object) => {
                    self.cache.remove(&object);
                }
                Err(Invalid { key, error }) => {
                    tracing::error!(kind = self.kind, object = %key, error, "failed to decode a deleted object");
                }
            },
            Event::InitDone => {
                if let Some(listed) = self.listing.take() {
                    self.cache.retain_listed(self.namespace.as_deref(), &listed);
                }
                self.health.listed();
                if !self.listed_once {
                    self.listed_once = true;
                    self.cache.list_completed();
                }
            }
        }
    }

    fn upsert(&mut self, object: K) {
        if let Some(listing) = &mut self.listing {
            listing.insert(Key::of(&object));
        }
        self.cache.upsert(object);
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use parking_lot::Mutex;

    use super::*;

    fn object(name: &str, version: u64) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.namespace = Some("ns".into());
        map.metadata.name = Some(name.into());
        map.metadata.uid = Some(format!("uid-{name}"));
        map.metadata.resource_version = Some(version.to_string());
        map
    }

    type Seen = Arc<Mutex<Vec<(Option<String>, Option<String>)>>>;

    /// Runs the events through a watch and returns the reported changes: versions before and after.
    async fn drive(cache: &Arc<Cache<ConfigMap>>, events: Vec<Event<ConfigMap>>) -> Seen {
        let seen: Seen = Arc::default();
        let sink = Arc::clone(&seen);
        let version = |side: &Option<Arc<ConfigMap>>| side.as_ref().and_then(|o| o.resource_version());
        cache.subscribe(move |change| sink.lock().push((version(&change.old), version(&change.new))));
        let drive = Drive {
            kind: "ConfigMap".into(),
            namespace: None,
            health: Health::default().watch("ConfigMap"),
            metrics: Metrics::default(),
            cache: Arc::clone(cache),
            listed_once: false,
            listing: None,
        };
        drive.run(stream::iter(events.into_iter().map(Ok)), Ok).await;
        seen
    }

    fn pair(old: Option<&str>, new: Option<&str>) -> (Option<String>, Option<String>) {
        (old.map(str::to_owned), new.map(str::to_owned))
    }

    #[tokio::test]
    async fn deletes_are_reported_also_when_they_happened_between_two_lists() {
        let cache = Arc::new(Cache::default());
        let seen = drive(
            &cache,
            vec![
                Event::Init,
                Event::InitApply(object("a", 1)),
                Event::InitApply(object("b", 2)),
                Event::InitDone,
                Event::Apply(object("c", 3)),
                Event::Delete(object("c", 4)),
                Event::Init,
                Event::InitApply(object("b", 2)),
                Event::InitDone,
            ],
        )
        .await;
        assert_eq!(
            *seen.lock(),
            [
                pair(None, Some("1")),
                pair(None, Some("2")),
                pair(None, Some("3")),
                pair(Some("3"), None),
                pair(Some("1"), None),
            ]
        );
        assert_eq!(cache.len(), 1);
    }

    #[tokio::test]
    async fn an_unreadable_object_stays_as_it_was_known() {
        let cache = Arc::new(Cache::default());
        cache.upsert(object("a", 1));
        let guard = |ok: bool| {
            let mut broken = object("a", 2);
            broken.metadata.labels = Some([("broken".into(), "yes".into())].into());
            if ok { object("b", 3) } else { broken }
        };
        let drive = Drive {
            kind: "ConfigMap".into(),
            namespace: None,
            health: Health::default().watch("ConfigMap"),
            metrics: Metrics::default(),
            cache: Arc::clone(&cache),
            listed_once: false,
            listing: None,
        };
        let events = vec![
            Event::Init,
            Event::InitApply(guard(false)),
            Event::InitApply(guard(true)),
            Event::InitDone,
        ];
        drive
            .run(stream::iter(events.into_iter().map(Ok)), |map: ConfigMap| {
                if map.metadata.labels.is_some() {
                    Err(Invalid {
                        key: Key::of(&map),
                        error: "bad".into(),
                    })
                } else {
                    Ok(map)
                }
            })
            .await;
        let a = cache.get(&Key::new("ns", "a")).unwrap();
        assert_eq!(a.metadata.resource_version.as_deref(), Some("1"));
        assert_eq!(cache.len(), 2);
    }
}
