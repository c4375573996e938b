//! A second owner for everything that must not go before its time.
//!
//! Who deletes an object in the foreground (`kubectl delete --cascade=foreground`, Argo CD) has the garbage collector delete
//! all its children at once, whatever finalizers the object has. A child with another owner that stays only loses its
//! reference to the first. So each of our objects has an anchor, a ConfigMap that nobody owns and that is deleted when the
//! object may go; its children name both as owners.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use keelson_api::well_known::label;
use keelson_runtime::{
    Key,
    apply::{Desired, Error, Writer},
};
use kube::{Resource, ResourceExt, core::PartialObjectMeta};
use serde_json::{Value, json};

use crate::{context::Context, keys::MANAGER};

/// Begins the names of anchors.
const PREFIX: &str = "keelson-anchor-";
/// The garbage collector's finalizers while it deletes or releases the children of an object.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// The name of an object's anchor.
pub fn name<K: Resource<DynamicType = ()>>(object: &K) -> String {
    let kind = K::kind(&()).to_ascii_lowercase();
    format!("{PREFIX}{kind}-{}", object.name_any())
}

fn key<K: Resource<DynamicType = ()>>(object: &K) -> Key {
    Key::new(object.namespace().unwrap_or_default(), name(object))
}

/// Whether a person deletes this object so that its children stay.
pub fn is_orphaning(object: &impl ResourceExt) -> bool {
    has_finalizer(object, ORPHAN)
}

/// Whether the garbage collector is about to take the children's references to this object away.
pub fn is_foreground(object: &impl ResourceExt) -> bool {
    has_finalizer(object, FOREGROUND)
}

fn has_finalizer(object: &impl ResourceExt, name: &str) -> bool {
    object.finalizers().iter().any(|known| known == name)
}

/// Whether a pod has an anchor among its owners.
pub fn is_held(pod: &Pod) -> bool {
    let anchor = |name: &str| name.starts_with(PREFIX);
    let owners = pod.owner_references().iter();
    owners
        .filter(|owner| owner.kind == "ConfigMap")
        .any(|owner| anchor(&owner.name))
}

/// Whether a ConfigMap is an anchor of this kind. Somebody may have one of that name: it is neither taken as an owner, which
/// would take the children along with it, nor deleted.
fn is_anchor<K: Resource<DynamicType = ()>>(map: &ObjectMeta) -> bool {
    let label = |key: &str| map.labels.as_ref()?.get(key);
    label(label::ANCHOR).is_some_and(|kind| *kind == K::kind(&()))
        && label(label::MANAGED_BY).is_some_and(|manager| manager == MANAGER)
}

/// The owner reference to an object's anchor, where there is one.
pub fn reference<K: Resource<DynamicType = ()>>(context: &Context, object: &K) -> Option<Value> {
    let anchor = context.caches.config_maps.get(&key(object))?;
    if !is_anchor::<K>(&anchor.metadata) {
        return None;
    }
    Some(owner(&anchor.name_any(), &anchor.uid()?))
}

fn owner(name: &str, uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": false })
}

/// Makes an object's anchor unless it is there or the object is on its way out, and tells the owner reference to it.
pub async fn hold<K>(context: &Context, writer: &Writer, object: &K) -> Result<Option<Value>, Error>
where
    K: Resource<DynamicType = ()>,
{
    let known = reference(context, object);
    if known.is_some() || object.meta().deletion_timestamp.is_some() {
        return Ok(known);
    }
    let Key { namespace, name } = key(object);
    let why = format!(
        "Keeps the children of {} {} until it may go.",
        K::kind(&()),
        object.name_any()
    );
    let labels = json!({ label::MANAGED_BY: MANAGER, label::ANCHOR: K::kind(&()) });
    let desired = Desired::<ConfigMap>::new(json!({
        "metadata": { "namespace": namespace, "name": name, "labels": labels },
        "data": { "why": why },
    }));
    let written = writer.apply(&desired, None).await?.written();
    let uid = written.as_ref().and_then(ResourceExt::uid).unwrap_or_default();
    if let Some(written) = written {
        let types = None;
        let meta = PartialObjectMeta {
            types,
            metadata: written.metadata,
            _phantom: std::marker::PhantomData,
        };
        context.caches.config_maps.upsert(meta);
    }
    Ok(Some(owner(&name, &uid)))
}

/// Lets the object's children go with it.
pub async fn release<K>(context: &Context, writer: &Writer, object: &K) -> Result<(), Error>
where
    K: Resource<DynamicType = ()>,
{
    if is_orphaning(object) {
        return Ok(());
    }
    let anchor = context.caches.config_maps.get(&key(object));
    if let Some(anchor) = anchor.filter(|anchor| is_anchor::<K>(&anchor.metadata)) {
        // Whatever else was written on it since: it goes.
        let metadata = ObjectMeta {
            resource_version: None,
            ..anchor.metadata.clone()
        };
        let anchor = ConfigMap {
            metadata,
            ..ConfigMap::default()
        };
        writer.delete(&anchor).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use keelson_api::{Controller, NodeSet};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ours(json!({ label::MANAGED_BY: MANAGER, label::ANCHOR: "Controller" }), true)]
    #[case::of_another_kind(json!({ label::MANAGED_BY: MANAGER, label::ANCHOR: "NodeSet" }), false)]
    #[case::somebody_elses(json!({ label::MANAGED_BY: "Helm", label::ANCHOR: "Controller" }), false)]
    #[case::without_a_mark(json!({}), false)]
    fn a_config_map_is_an_anchor_by_its_labels(#[case] labels: Value, #[case] expected: bool) {
        let name = name(&Controller::default());
        let map: ObjectMeta = serde_json::from_value(json!({ "name": name, "labels": labels })).unwrap();
        assert_eq!(is_anchor::<Controller>(&map), expected);
        assert!(!is_anchor::<NodeSet>(&map) || labels[label::ANCHOR] == "NodeSet");
    }
}
