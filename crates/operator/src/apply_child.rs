//! Applying children so that the next look at the caches already sees them.

use std::{fmt::Debug, sync::Arc};

use keelson_runtime::{
    Cache,
    apply::{Desired, Error, Writer},
};
use kube::{Resource, core::NamespaceResourceScope};
use serde::{Serialize, de::DeserializeOwned};

/// Brings one child to the desired form; true when that took a write.
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
