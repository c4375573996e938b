//! An indexed cache of one kind, filled by a watch and by the responses to our own writes.
//!
//! kube's reflector store has no indexes, does not report objects that disappeared during a relist, and does not see our
//! own writes. This cache reports every change with the old and the new object, so that owners that an object no longer
//! belongs to are triggered too. Our own writes are reported when they are stored: the watch event that follows is not a
//! change any more.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use keelson_api::well_known::annotation::LAST_APPLIED_CONFIGURATION;
use kube::ResourceExt;
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::Key;

/// How long a deletion is remembered, so that a late response to one of our writes cannot bring the object back.
const TOMBSTONE_LIFETIME: Duration = Duration::from_mins(2);

/// Returns the values under which an index lists an object.
pub type IndexFn<K> = fn(&K) -> Vec<String>;

/// A change of one object.
#[derive(Debug)]
pub struct Change<K> {
    pub old: Option<Arc<K>>,
    pub new: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// Returns the old and the new object, as far as they exist.
    pub fn sides(&self) -> impl Iterator<Item = &Arc<K>> {
        self.old.iter().chain(self.new.iter())
    }
}

/// A callback for changes.
pub type OnChange<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

struct Index<K> {
    name: &'static str,
    values_of: IndexFn<K>,
    entries: HashMap<String, BTreeSet<Key>>,
}

struct Inner<K> {
    objects: HashMap<Key, Arc<K>>,
    indexes: Vec<Index<K>>,
    tombstones: HashMap<String, Instant>,
}

/// The objects of one kind; see the module documentation.
pub struct Cache<K> {
    inner: RwLock<Inner<K>>,
    pending_lists: watch::Sender<usize>,
    /// Removes fields that no code reads before an object is stored.
    prune: fn(&mut K),
    on_change: OnceLock<OnChange<K>>,
}

impl<K> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("objects", &self.inner.read().objects.len())
            .finish_non_exhaustive()
    }
}

impl<K: ResourceExt> Default for Cache<K> {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl<K: ResourceExt> Cache<K> {
    pub fn new(indexes: &[(&'static str, IndexFn<K>)]) -> Self {
        let indexes = indexes
            .iter()
            .map(|&(name, values_of)| Index {
                name,
                values_of,
                entries: HashMap::new(),
            })
            .collect();
        Self {
            inner: RwLock::new(Inner {
                objects: HashMap::new(),
                indexes,
                tombstones: HashMap::new(),
            }),
            pending_lists: watch::Sender::new(0),
            prune: |_| {},
            on_change: OnceLock::new(),
        }
    }

    /// Applies `prune`, which removes fields that no code reads, before an object is stored.
    #[must_use]
    pub fn pruned(self, prune: fn(&mut K)) -> Self {
        Self { prune, ..self }
    }

    /// Sets the callback for changes. Only the first call takes effect.
    pub fn subscribe(&self, on_change: impl Fn(&Change<K>) + Send + Sync + 'static) {
        let _ = self.on_change.set(Box::new(on_change));
    }

    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.inner.read().objects.get(key).cloned()
    }

    /// Returns every object, sorted by key.
    pub fn all(&self) -> Vec<Arc<K>> {
        let inner = self.inner.read();
        let mut entries: Vec<_> = inner.objects.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries
            .into_iter()
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    /// Returns the objects that the index `name` lists under `value`, sorted by key; none for an unknown index.
    pub fn find(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        let inner = self.inner.read();
        let keys = inner
            .indexes
            .iter()
            .find(|index| index.name == name)
            .and_then(|index| index.entries.get(value));
        keys.into_iter()
            .flatten()
            .filter_map(|key| inner.objects.get(key))
            .cloned()
            .collect()
    }

    pub fn len(&self) -> usize {
        self.inner.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stores an object from a watch or from the response to a write, unless the cache has this version or a newer one.
    /// Returns whether the cache changed.
    pub fn upsert(&self, mut object: K) -> bool {
        object.managed_fields_mut().clear();
        object.annotations_mut().remove(LAST_APPLIED_CONFIGURATION);
        (self.prune)(&mut object);
        self.report(self.store(object).as_ref())
    }

    fn store(&self, object: K) -> Option<Change<K>> {
        let key = Key::of(&object);
        let mut inner = self.inner.write();
        if object
            .uid()
            .is_some_and(|uid| inner.tombstones.contains_key(&uid))
        {
            return None;
        }
        let old = inner.objects.get(&key).cloned();
        if old.as_deref().is_some_and(|old| !is_newer(&object, old)) {
            return None;
        }
        let new = Arc::new(object);
        inner.unindex(&key, old.as_deref());
        inner.index(&key, &new);
        inner.objects.insert(key, Arc::clone(&new));
        Some(Change { old, new: Some(new) })
    }

    /// Removes a deleted object. A successor with the same name stays.
    pub fn remove(&self, object: &K) -> bool {
        self.report(self.forget(object).as_ref())
    }

    fn forget(&self, object: &K) -> Option<Change<K>> {
        let key = Key::of(object);
        let mut inner = self.inner.write();
        if let Some(uid) = object.uid() {
            inner.bury(uid);
        }
        let old = inner
            .objects
            .get(&key)
            .filter(|old| old.uid() == object.uid())
            .cloned()?;
        inner.unindex(&key, Some(&old));
        inner.objects.remove(&key);
        Some(Change {
            old: Some(old),
            new: None,
        })
    }

    /// Drops every object of `namespace` (all when `None`) that a completed list did not contain.
    pub fn retain_listed(&self, namespace: Option<&str>, listed: &HashSet<Key>) {
        for change in self.forget_unlisted(namespace, listed) {
            self.report(Some(&change));
        }
    }

    fn forget_unlisted(&self, namespace: Option<&str>, listed: &HashSet<Key>) -> Vec<Change<K>> {
        let mut inner = self.inner.write();
        let gone: Vec<Key> = inner
            .objects
            .keys()
            .filter(|key| namespace.is_none_or(|ns| ns == key.namespace) && !listed.contains(*key))
            .cloned()
            .collect();
        gone.into_iter()
            .filter_map(|key| {
                let old = inner.objects.remove(&key)?;
                inner.unindex(&key, Some(&old));
                Some(Change {
                    old: Some(old),
                    new: None,
                })
            })
            .collect()
    }

    /// Calls the callback. The caller must not hold the lock, because the callback reads the cache.
    fn report(&self, change: Option<&Change<K>>) -> bool {
        if let (Some(change), Some(on_change)) = (change, self.on_change.get()) {
            on_change(change);
        }
        change.is_some()
    }

    /// Adds a list that must complete before [`Cache::synced`] resolves.
    pub(crate) fn expect_list(&self) {
        self.pending_lists.send_modify(|pending| *pending += 1);
    }

    pub(crate) fn list_completed(&self) {
        self.pending_lists
            .send_modify(|pending| *pending = pending.saturating_sub(1));
    }

    /// Cancels the expected lists, because their watches have ended.
    pub(crate) fn expect_no_list(&self) {
        self.pending_lists.send_replace(0);
    }

    /// Resolves when every watch of this kind has listed once.
    pub async fn synced(&self) {
        // The sender lives in self, so the wait can only end with the condition met.
        let _ = self
            .pending_lists
            .subscribe()
            .wait_for(|pending| *pending == 0)
            .await;
    }
}

impl<K> Inner<K> {
    fn index(&mut self, key: &Key, object: &K) {
        for index in &mut self.indexes {
            for value in (index.values_of)(object) {
                index.entries.entry(value).or_default().insert(key.clone());
            }
        }
    }

    fn unindex(&mut self, key: &Key, object: Option<&K>) {
        let Some(object) = object else { return };
        for index in &mut self.indexes {
            for value in (index.values_of)(object) {
                if let Some(keys) = index.entries.get_mut(&value) {
                    keys.remove(key);
                    if keys.is_empty() {
                        index.entries.remove(&value);
                    }
                }
            }
        }
    }

    fn bury(&mut self, uid: String) {
        let now = Instant::now();
        self.tombstones
            .retain(|_, at| now.duration_since(*at) < TOMBSTONE_LIFETIME);
        self.tombstones.insert(uid, now);
    }
}

/// Compares resource versions as numbers, which Kubernetes guarantees for one object of a built-in or custom kind.
fn is_newer<K: ResourceExt>(candidate: &K, known: &K) -> bool {
    let version = |object: &K| object.resource_version().and_then(|v| v.parse::<u64>().ok());
    match (version(candidate), version(known)) {
        (Some(candidate), Some(known)) => candidate > known,
        _ => candidate.resource_version() != known.resource_version(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use parking_lot::Mutex;

    use super::*;

    fn pod(name: &str, uid: &str, version: u64, node: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.name = Some(name.into());
        pod.metadata.uid = Some(uid.into());
        pod.metadata.resource_version = Some(version.to_string());
        pod.spec.get_or_insert_default().node_name = Some(node.into());
        pod
    }

    fn by_node(pod: &Pod) -> Vec<String> {
        pod.spec
            .iter()
            .filter_map(|spec| spec.node_name.clone())
            .collect()
    }

    fn cache() -> Cache<Pod> {
        Cache::new(&[("node", by_node)])
    }

    #[test]
    fn an_older_or_equal_version_changes_nothing() {
        let cache = cache();
        assert!(cache.upsert(pod("a", "1", 5, "n1")));
        assert!(!cache.upsert(pod("a", "1", 5, "n2")));
        assert!(!cache.upsert(pod("a", "1", 4, "n2")));
        assert_eq!(cache.find("node", "n1").len(), 1);
    }

    #[test]
    fn an_index_follows_the_object() {
        let cache = cache();
        cache.upsert(pod("a", "1", 5, "n1"));
        assert!(cache.upsert(pod("a", "1", 6, "n2")));
        assert!(cache.find("node", "n1").is_empty());
        assert_eq!(cache.find("node", "n2").len(), 1);
    }

    #[test]
    fn our_own_write_is_reported_once_and_before_the_watch_repeats_it() {
        let cache = Arc::new(cache().pruned(|pod| pod.spec = None));
        let reported: Arc<Mutex<Vec<(usize, bool)>>> = Arc::default();
        let (sink, seen) = (Arc::clone(&reported), Arc::downgrade(&cache));
        cache.subscribe(move |change| {
            // The callback finds the new object in the cache already, pruned.
            let known = seen.upgrade().unwrap().get(&Key::new("ns", "a")).unwrap();
            sink.lock().push((change.sides().count(), known.spec.is_none()));
        });
        let written = pod("a", "1", 5, "n1");
        assert!(cache.upsert(written.clone()));
        assert!(!cache.upsert(written));
        assert!(cache.upsert(pod("a", "1", 6, "n1")));
        assert_eq!(*reported.lock(), [(1, true), (2, true)]);
    }

    #[test]
    fn a_late_answer_does_not_revive_a_deleted_object() {
        let cache = cache();
        cache.upsert(pod("a", "1", 5, "n1"));
        assert!(cache.remove(&pod("a", "1", 7, "n1")));
        assert!(!cache.upsert(pod("a", "1", 6, "n1")));
        assert!(cache.is_empty());
    }

    #[test]
    fn deleting_the_predecessor_keeps_the_successor() {
        let cache = cache();
        cache.upsert(pod("a", "1", 5, "n1"));
        cache.upsert(pod("a", "2", 9, "n1"));
        assert!(!cache.remove(&pod("a", "1", 8, "n1")));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn what_a_list_no_longer_holds_is_reported_as_gone() {
        let cache = cache();
        cache.upsert(pod("a", "1", 5, "n1"));
        cache.upsert(pod("b", "2", 6, "n1"));
        let gone: Arc<Mutex<Vec<bool>>> = Arc::default();
        let sink = Arc::clone(&gone);
        cache.subscribe(move |change| sink.lock().push(change.new.is_none()));
        cache.retain_listed(Some("ns"), &HashSet::from([Key::new("ns", "b")]));
        assert_eq!(*gone.lock(), [true]);
        assert_eq!(cache.find("node", "n1").len(), 1);
    }

    #[tokio::test]
    async fn synced_waits_for_every_announced_list() {
        let cache = cache();
        cache.expect_list();
        cache.expect_list();
        cache.list_completed();
        assert!(
            tokio::time::timeout(Duration::from_millis(10), cache.synced())
                .await
                .is_err()
        );
        cache.list_completed();
        cache.synced().await;
    }
}
