//! Whose an object is that exists under the name of one of ours. Pure.
//!
//! Names of children follow from the names of their owners, so that a user may pick one under which something else runs
//! already. An apply with force would take that over, and its owner's end would delete it. Only what is ours, or was made
//! for our object by the operator that ran here before, is written to.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use serde_json::Value;

use crate::{apply::APPLIED_HASH, field_managers};

/// Labels by which the former operator's children are told from those of other programs: its field manager has a name
/// that many have.
const FORMER_LABELS: [&str; 2] = ["app.kubernetes.io/name", "slinky.slurm.net/cluster"];

/// What is known without asking for managed fields, which caches do not keep.
pub fn is_marked(live: &ObjectMeta) -> bool {
    live.annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(APPLIED_HASH))
}

/// Whether an owner of the object is of the kinds that own the desired one.
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

/// Whether the object may be written to. `live` has its managed fields.
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
