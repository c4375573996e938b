//! Applies children and updates the caches, so that the next reconcile already sees the result.

use std::{fmt::Debug, sync::Arc};

use keelson_runtime::{
    Cache,
    apply::{Desired, Error, Writer},
};
use kube::{Resource, core::NamespaceResourceScope};
use serde::{Serialize, de::DeserializeOwned};

/// Applies one child and returns whether that took a write.
pub async fn apply_child<K>(
    writer: &Writer,
    cache: Option<&Cache<K>>,
    desired: &Desired<K>,
    live: Option<&Arc<K>>,
) -> Result<bool, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let written = writer.apply(desired, live.map(AsRef::as_ref)).await?.written();
    let changed = written.is_some();
    if let (Some(cache), Some(written)) = (cache, written) {
        cache.upsert(written);
    }
    Ok(changed)
}
