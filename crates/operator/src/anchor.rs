//! A second owner for children that must not be deleted early.
//!
//! Foreground deletion (`kubectl delete --cascade=foreground`, Argo CD) makes the garbage collector delete all children
//! at once, whatever finalizers their owner has. A child with another owner that stays only loses its reference to the
//! deleted one. So each of our objects has an anchor: a ConfigMap without an owner that is deleted when the object may
//! be deleted. The object's children name both as owners.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use keelson_api::well_known::{annotation, label};
use keelson_runtime::{
    Key,
    apply::{Desired, Error, Writer},
};
use kube::{Resource, ResourceExt, core::PartialObjectMeta};
use serde_json::{Value, json};

use crate::{context::Context, keys::MANAGER};

/// Prefix of anchor names.
const PREFIX: &str = "keelson-anchor-";
/// Finalizers of the garbage collector while it deletes or orphans the children of an object.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// Returns the name of an object's anchor.
pub fn name<K: Resource<DynamicType = ()>>(object: &K) -> String {
    let kind = K::kind(&()).to_ascii_lowercase();
    format!("{PREFIX}{kind}-{}", object.name_any())
}

fn key<K: Resource<DynamicType = ()>>(object: &K) -> Key {
    Key::new(object.namespace().unwrap_or_default(), name(object))
}

/// Reports whether the object is deleted without its children (`--cascade=orphan`).
pub fn is_orphaning(object: &impl ResourceExt) -> bool {
    has_finalizer(object, ORPHAN)
}

/// Reports whether the garbage collector is about to remove the children's references to this object.
pub fn is_foreground(object: &impl ResourceExt) -> bool {
    has_finalizer(object, FOREGROUND)
}

fn has_finalizer(object: &impl ResourceExt, name: &str) -> bool {
    object.finalizers().iter().any(|known| known == name)
}

/// Reports whether an anchor is among a pod's owners.
pub fn is_held(pod: &Pod) -> bool {
    let anchor = |name: &str| name.starts_with(PREFIX);
    let owners = pod.owner_references().iter();
    owners
        .filter(|owner| owner.kind == "ConfigMap")
        .any(|owner| anchor(&owner.name))
}

/// Reports whether a ConfigMap is an anchor of this kind. A user's ConfigMap may have the same name: it is not used as
/// an owner, because its deletion would delete the children, and it is not deleted.
fn is_anchor<K: Resource<DynamicType = ()>>(map: &ObjectMeta) -> bool {
    let label = |key: &str| map.labels.as_ref()?.get(key);
    label(label::ANCHOR).is_some_and(|kind| *kind == K::kind(&()))
        && label(label::MANAGED_BY).is_some_and(|manager| manager == MANAGER)
}

/// Returns the owner reference to an object's anchor, if there is one.
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

/// Creates an object's anchor unless it exists or the object is being deleted, and returns the owner reference to it.
pub async fn hold<K>(context: &Context, writer: &Writer, object: &K) -> Result<Option<Value>, Error>
where
    K: Resource<DynamicType = ()>,
{
    let known = reference(context, object);
    let in_foreground = context.caches.foreground_deletions.has(object);
    if in_foreground && known.is_some() && !has_note(context, object) {
        return write(context, writer, object, true).await;
    }
    if known.is_some() || object.meta().deletion_timestamp.is_some() {
        return Ok(known);
    }
    write(context, writer, object, false).await
}

/// Reports whether the object is deleted in the foreground, even if the garbage collector has done its part.
pub fn is_deleted_in_foreground<K: Resource<DynamicType = ()>>(context: &Context, object: &K) -> bool {
    is_foreground(object)
        || context.caches.foreground_deletions.has(object)
        || object.meta().deletion_timestamp.is_some() && has_note(context, object)
}

fn has_note<K: Resource<DynamicType = ()>>(context: &Context, object: &K) -> bool {
    let anchor = context.caches.config_maps.get(&key(object));
    anchor.is_some_and(|anchor| {
        let note = anchor.annotations().get(annotation::FOREGROUND_DELETION);
        is_anchor::<K>(&anchor.metadata) && note == object.uid().as_ref()
    })
}

async fn write<K>(
    context: &Context,
    writer: &Writer,
    object: &K,
    in_foreground: bool,
) -> Result<Option<Value>, Error>
where
    K: Resource<DynamicType = ()>,
{
    let Key { namespace, name } = key(object);
    let why = format!(
        "Keeps the children of {} {} until it may be deleted.",
        K::kind(&()),
        object.name_any()
    );
    let labels = json!({ label::MANAGED_BY: MANAGER, label::ANCHOR: K::kind(&()) });
    let note = in_foreground.then(|| (annotation::FOREGROUND_DELETION, object.uid()));
    let annotations: BTreeMap<_, _> = note.into_iter().collect();
    let desired = Desired::<ConfigMap>::new(json!({
        "metadata": { "namespace": namespace, "name": name, "labels": labels, "annotations": annotations },
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

/// Deletes the object's anchor so that the children go with it.
pub async fn release<K>(context: &Context, writer: &Writer, object: &K) -> Result<(), Error>
where
    K: Resource<DynamicType = ()>,
{
    let anchor = context.caches.config_maps.get(&key(object));
    if let Some(anchor) = anchor.filter(|anchor| is_anchor::<K>(&anchor.metadata)) {
        // Delete it whatever else was written to it since.
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
