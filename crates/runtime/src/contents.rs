//! Contents of Secrets and `ConfigMap`s, read only when an object references them.
//!
//! The watch carries metadata only, so that the operator does not hold every Secret of the cluster in memory. Contents are
//! read once per resource version: after the watch reports a change, the next read returns the new content.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use kube::{
    Api, Client, Resource, ResourceExt,
    core::{NamespaceResourceScope, PartialObjectMeta, PartialObjectMetaExt as _},
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use crate::{Cache, Key};

/// How long a read may take.
pub const CALL_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read {kind} {object}")]
    Read {
        kind: String,
        object: Key,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("timed out after {CALL_LIMIT:?} reading {kind} {object}")]
    Timeout { kind: String, object: Key },
}

/// Awaits a read from the API server, for [`CALL_LIMIT`] at most.
pub async fn limited<T>(
    kind: &str,
    object: &Key,
    read: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    let (kind, object) = (kind.to_owned(), object.clone());
    match tokio::time::timeout(CALL_LIMIT, read).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(Error::Read {
            kind,
            object,
            source: Box::new(source),
        }),
        Err(_) => Err(Error::Timeout { kind, object }),
    }
}

/// Reads objects of one kind and keeps what it has read.
pub struct Contents<K> {
    client: Client,
    known: Arc<Cache<PartialObjectMeta<K>>>,
    loaded: Mutex<HashMap<Key, Arc<K>>>,
}

impl<K> fmt::Debug for Contents<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").finish_non_exhaustive()
    }
}

impl<K> Contents<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + DeserializeOwned + fmt::Debug,
{
    pub fn new(client: Client, known: Arc<Cache<PartialObjectMeta<K>>>) -> Self {
        Self {
            client,
            known,
            loaded: Mutex::default(),
        }
    }

    /// Returns the object at the version that the watch last reported, or newer; `None` if it does not exist.
    pub async fn get(&self, key: &Key) -> Result<Option<Arc<K>>, Error> {
        let Some(known) = self.known.get(key) else {
            self.loaded.lock().remove(key);
            return Ok(None);
        };
        let loaded = self.loaded.lock().get(key).cloned();
        if let Some(loaded) = loaded.filter(|loaded| is_at_least(loaded.as_ref(), known.as_ref())) {
            return Ok(Some(loaded));
        }
        self.read(key).await
    }

    /// Reads the object from the API server, even if the watch has not reported it.
    pub async fn read(&self, key: &Key) -> Result<Option<Arc<K>>, Error> {
        let api = Api::<K>::namespaced(self.client.clone(), &key.namespace);
        let object = limited(&K::kind(&()), key, api.get_opt(&key.name)).await?;
        let Some(object) = object.map(Arc::new) else {
            return Ok(None);
        };
        self.loaded.lock().insert(key.clone(), Arc::clone(&object));
        Ok(Some(object))
    }

    /// Stores an object that we have just written.
    pub fn put(&self, object: &K) {
        let key = Key::of(object);
        self.known.upsert(object.meta().clone().into_response_partial());
        self.loaded.lock().insert(key, Arc::new(object.clone()));
    }

    /// Returns the object's metadata as the watch last reported it.
    pub fn metadata(&self, key: &Key) -> Option<Arc<PartialObjectMeta<K>>> {
        self.known.get(key)
    }
}

fn is_at_least<K: ResourceExt, M: ResourceExt>(loaded: &K, known: &M) -> bool {
    let number = |version: Option<String>| version.and_then(|v| v.parse::<u64>().ok());
    loaded.uid() == known.uid()
        && match (
            number(loaded.resource_version()),
            number(known.resource_version()),
        ) {
            (Some(loaded), Some(known)) => loaded >= known,
            _ => loaded.resource_version() == known.resource_version(),
        }
}
