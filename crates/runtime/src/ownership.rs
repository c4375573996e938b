//! Decides whether an existing object belongs to this operator. Pure.
//!
//! The names of child objects derive from their owner's name, so a user can pick a name that another application already
//! uses. A forced apply would take that object over, and deleting the owner would delete it. The operator writes only to
//! objects that it created, or that the previous operator created for the same owner.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use keelson_api::well_known::{annotation::APPLIED_HASH, label};
use serde_json::Value;

use crate::field_managers;

/// Labels that identify children of the previous operator. Its field manager alone does not: other programs have one of
/// the same name.
const FORMER_LABELS: [&str; 2] = [label::APP, label::CLUSTER];

/// Reports whether the object has our annotation. Needs no managed fields, which caches do not keep.
pub fn is_marked(live: &ObjectMeta) -> bool {
    live.annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(APPLIED_HASH))
}

/// Reports whether an owner of the object is in the API group of the desired object's owners.
pub fn has_our_owner(live: &ObjectMeta, desired: &Value) -> bool {
    let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
    let wanted: Vec<String> = desired
        .pointer("/metadata/ownerReferences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|owner| group(owner.get("apiVersion")?.as_str()?))
        .collect();
    let owners = live.owner_references.iter().flatten();
    owners
        .filter_map(|owner| group(&owner.api_version))
        .any(|owner| wanted.contains(&owner))
}

/// Reports whether `owner` is the controlling owner of the object. Compares UIDs: an owner that was deleted and created
/// again has the same name, but the children of its predecessor are not its own.
pub fn is_controlled_by(child: &ObjectMeta, owner: &ObjectMeta) -> bool {
    let owners = child.owner_references.iter().flatten();
    owners
        .filter(|reference| reference.controller == Some(true))
        .any(|reference| Some(&reference.uid) == owner.uid.as_ref())
}

/// Reports whether the operator may write to the object. `live` must include its managed fields.
pub fn is_ours(live: &ObjectMeta, desired: &Value, manager: &str) -> bool {
    let entries = live.managed_fields.as_deref().unwrap_or_default();
    is_marked(live)
        || has_our_owner(live, desired)
        || entries.iter().any(|entry| applied_by(entry, manager))
        || (entries.iter().any(field_managers::is_former) && has_former_label(live, desired))
}

fn applied_by(entry: &ManagedFieldsEntry, manager: &str) -> bool {
    entry.manager.as_deref() == Some(manager)
        && entry.operation.as_deref() == Some("Apply")
        && entry.subresource.as_deref().unwrap_or_default().is_empty()
}

fn has_former_label(live: &ObjectMeta, desired: &Value) -> bool {
    let live = |key: &str| live.labels.as_ref()?.get(key).cloned();
    let desired = |key: &str| {
        let labels = desired.pointer("/metadata/labels")?;
        labels.get(key)?.as_str().map(str::to_owned)
    };
    FORMER_LABELS
        .iter()
        .any(|key| live(key).is_some() && live(key) == desired(key))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const MANAGER: &str = "slurm-operator/loginset";

    fn desired() -> Value {
        json!({ "metadata": {
            "name": "grafana", "namespace": "ns",
            "labels": { "app.kubernetes.io/name": "login", "app.kubernetes.io/managed-by": "Helm" },
            "ownerReferences": [{ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "LoginSet", "name": "grafana", "uid": "u" }],
        } })
    }

    #[rstest]
    #[case::its_controller(json!([{ "uid": "u", "controller": true }]), true)]
    #[case::its_controller_beside_an_anchor(json!([{ "uid": "x" }, { "uid": "u", "controller": true }]), true)]
    #[case::an_owner_that_does_not_control(json!([{ "uid": "u" }]), false)]
    #[case::an_earlier_object_of_the_same_name(json!([{ "uid": "x", "controller": true }]), false)]
    #[case::no_owner(json!([]), false)]
    fn an_owner_is_compared_by_uid(#[case] mut owners: Value, #[case] expected: bool) {
        for owner in owners.as_array_mut().unwrap() {
            for (key, value) in [("apiVersion", "v1"), ("kind", "RestApi"), ("name", "slurm")] {
                owner[key] = json!(value);
            }
        }
        let child: ObjectMeta = serde_json::from_value(json!({ "ownerReferences": owners })).unwrap();
        let owner: ObjectMeta = serde_json::from_value(json!({ "name": "slurm", "uid": "u" })).unwrap();
        assert_eq!(is_controlled_by(&child, &owner), expected);
        assert!(!is_controlled_by(&child, &ObjectMeta::default()));
    }

    #[rstest]
    #[case::nobody_knows(json!({}), false)]
    #[case::another_program(json!({ "labels": { "app.kubernetes.io/name": "grafana", "app.kubernetes.io/managed-by": "Helm" },
        "managedFields": [{ "manager": "helm", "operation": "Update" }] }), false)]
    #[case::another_owner(json!({ "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "Deployment", "name": "g", "uid": "x" }] }), false)]
    #[case::another_operator_whose_program_has_the_same_name(json!({ "labels": { "app.kubernetes.io/name": "grafana" },
        "managedFields": [{ "manager": "manager", "operation": "Update" }] }), false)]
    #[case::our_status_writer(json!({ "managedFields": [{ "manager": MANAGER, "operation": "Apply", "subresource": "status" }] }), false)]
    #[case::our_mark(json!({ "annotations": { "keelson.dev/applied-hash": "x" } }), true)]
    #[case::our_owner(json!({ "ownerReferences": [
        { "apiVersion": "slinky.slurm.net/v1beta1", "kind": "LoginSet", "name": "grafana", "uid": "u" }] }), true)]
    #[case::an_owner_of_the_version_before(json!({ "ownerReferences": [
        { "apiVersion": "slinky.slurm.net/v1alpha1", "kind": "LoginSet", "name": "grafana", "uid": "u" }] }), true)]
    #[case::our_mark_was_removed(json!({ "managedFields": [{ "manager": MANAGER, "operation": "Apply" }] }), true)]
    #[case::the_former_operator(json!({ "labels": { "app.kubernetes.io/name": "login" },
        "managedFields": [{ "manager": "manager", "operation": "Update" }] }), true)]
    fn only_what_is_ours_or_the_former_operators_is_written_to(#[case] live: Value, #[case] ours: bool) {
        let live: ObjectMeta = serde_json::from_value(live).unwrap();
        assert_eq!(is_ours(&live, &desired(), MANAGER), ours);
    }
}
