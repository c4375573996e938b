//! Tells how an object was deleted, also after the garbage collector has done its part: whether its children stay
//! (`--cascade=orphan`), or were to go first (`--cascade=foreground`).
//!
//! The garbage collector removes its finalizer from the object once it has released the children, which may be before
//! we look. In both modes, children have then lost their reference to the object. So the watch notes a foreground
//! deletion as soon as it reports it, and the anchor keeps the note if the operator restarts. Without a note, children
//! that have lost their owner were orphaned: when in doubt, they stay.

use std::collections::HashSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use keelson_runtime::{Change, ownership::is_marked};
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;

use crate::{anchor, context::Context};

/// The uids of objects that are deleted in the foreground, from the watch's first report until they are gone.
#[derive(Debug, Default)]
pub struct ForegroundDeletions(Mutex<HashSet<String>>);

impl ForegroundDeletions {
    pub fn note<K: ResourceExt>(&self, change: &Change<K>) {
        match (&change.old, &change.new) {
            (Some(old), None) => {
                if let Some(uid) = old.uid() {
                    self.0.lock().remove(&uid);
                }
            }
            (_, Some(new)) if anchor::is_foreground(new.as_ref()) => {
                self.0.lock().extend(new.uid());
            }
            _ => {}
        }
    }

    pub fn has(&self, object: &impl ResourceExt) -> bool {
        object.uid().is_some_and(|uid| self.0.lock().contains(&uid))
    }
}

/// Reports whether the object is deleted without its children. `child` is one that always exists while the object does.
pub fn is_orphaned<K>(context: &Context, object: &K, child: Option<&ObjectMeta>) -> bool
where
    K: Resource<DynamicType = ()>,
{
    anchor::is_orphaning(object)
        || object.meta().deletion_timestamp.is_some()
            && !anchor::is_deleted_in_foreground(context, object)
            && child.is_some_and(|child| has_lost(child, object.meta()))
}

/// Reports whether the object was the owner of this child, and is no longer.
fn has_lost(child: &ObjectMeta, object: &ObjectMeta) -> bool {
    let owners = child.owner_references.iter().flatten();
    let is_owner = |uid: &str| Some(uid) == object.uid.as_deref();
    child.deletion_timestamp.is_none()
        && is_marked(child)
        && !owners
            .into_iter()
            .any(|owner| is_owner(&owner.uid) || owner.controller == Some(true))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use keelson_api::{Controller, well_known::annotation};
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn metadata(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    #[rstest]
    #[case::anchored_alone(json!({ "ownerReferences": [owner("anchor", false)] }), true)]
    #[case::with_both_owners(json!({ "ownerReferences": [owner("anchor", false), owner("u", true)] }), false)]
    #[case::of_another_object(json!({ "ownerReferences": [owner("other", true)] }), false)]
    #[case::without_an_owner(json!({}), true)]
    #[case::also_deleted(json!({ "deletionTimestamp": "2026-11-15T00:00:00Z" }), false)]
    fn a_child_that_stays_has_lost_its_owner(#[case] mut child: Value, #[case] expected: bool) {
        let object = metadata(json!({ "name": "c", "uid": "u" }));
        child["annotations"] = json!({ annotation::APPLIED_HASH: "1" });
        assert_eq!(has_lost(&metadata(child.clone()), &object), expected);
        child["annotations"] = json!({});
        assert!(!has_lost(&metadata(child), &object), "not one of ours");
    }

    fn owner(uid: &str, controller: bool) -> Value {
        json!({ "apiVersion": "v1", "kind": "K", "name": "n", "uid": uid, "controller": controller })
    }

    #[test]
    fn a_foreground_deletion_is_remembered_until_the_object_is_gone() {
        let deletions = ForegroundDeletions::default();
        let object = |finalizers: Value| {
            let metadata =
                json!({ "uid": "u", "deletionTimestamp": "2026-11-15T00:00:00Z", "finalizers": finalizers });
            let metadata = serde_json::from_value(metadata).unwrap();
            Arc::new(Controller {
                metadata,
                ..Controller::default()
            })
        };
        let change = |old: Option<&Arc<Controller>>, new: Option<&Arc<Controller>>| Change {
            old: old.cloned(),
            new: new.cloned(),
        };
        let (before, after) = (
            object(json!(["foregroundDeletion", "ours"])),
            object(json!(["ours"])),
        );
        deletions.note(&change(None, Some(&after)));
        assert!(!deletions.has(after.as_ref()));
        deletions.note(&change(None, Some(&before)));
        deletions.note(&change(Some(&before), Some(&after)));
        assert!(deletions.has(after.as_ref()));
        deletions.note(&change(Some(&after), None));
        assert!(!deletions.has(after.as_ref()));
    }
}
