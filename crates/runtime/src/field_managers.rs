//! Migration of managed fields from the previous operator. Pure.
//!
//! Server-side apply removes a field only if the same manager applied it before. Fields that the previous operator wrote
//! by update, such as a selector, would therefore stay forever. This module moves its entries to our field manager.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::Value;

/// The field manager of the previous operator.
const FORMER: &str = "manager";
const APPLY: &str = "Apply";

/// Reports whether the previous operator wrote this entry by update, to the object itself and not to a subresource.
pub fn is_former(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(FORMER)
        && entry.operation.as_deref() != Some(APPLY)
        && entry.subresource.as_deref().unwrap_or_default().is_empty()
}

/// Returns the entries with the previous operator's fields moved to `manager`, or `None` if it has no entries.
pub fn migrated(entries: &[ManagedFieldsEntry], manager: &str) -> Option<Vec<ManagedFieldsEntry>> {
    let (former, mut rest): (Vec<_>, Vec<_>) = entries.iter().cloned().partition(is_former);
    let newest = former.last()?.clone();
    let is_ours = |entry: &ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(manager)
            && entry.operation.as_deref() == Some(APPLY)
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    let at = rest.iter().position(is_ours).unwrap_or_else(|| {
        rest.push(ManagedFieldsEntry {
            manager: Some(manager.to_owned()),
            operation: Some(APPLY.to_owned()),
            fields_v1: None,
            ..newest
        });
        rest.len() - 1
    });
    let ours = rest.get_mut(at)?;
    for entry in former {
        let fields = ours.fields_v1.take().map_or(Value::Null, |fields| fields.0);
        let more = entry.fields_v1.map_or(Value::Null, |fields| fields.0);
        ours.fields_v1 = Some(FieldsV1(united(fields, more)));
    }
    Some(rest)
}

/// Merges two sets of fields: trees of objects in which only the keys matter.
fn united(left: Value, right: Value) -> Value {
    match (left, right) {
        (Value::Object(mut left), Value::Object(right)) => {
            for (key, value) in right {
                let both = united(left.remove(&key).unwrap_or(Value::Null), value);
                left.insert(key, both);
            }
            Value::Object(left)
        }
        (Value::Null, right) => right,
        (left, _) => left,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OURS: &str = "slurm-operator/controller";

    fn entries(value: Value) -> Vec<ManagedFieldsEntry> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_the_former_operator_wrote_becomes_ours_and_the_rest_stays() {
        let before = entries(json!([
            { "manager": "manager", "operation": "Update", "apiVersion": "v1",
              "fieldsV1": { "f:spec": { "f:selector": { "f:active": {} } } } },
            { "manager": "manager", "operation": "Update", "apiVersion": "v1", "subresource": "status",
              "fieldsV1": { "f:status": {} } },
            { "manager": "kubectl-edit", "operation": "Update", "apiVersion": "v1",
              "fieldsV1": { "f:metadata": { "f:labels": { "f:mine": {} } } } },
        ]));
        let after = entries(json!([
            { "manager": "manager", "operation": "Update", "apiVersion": "v1", "subresource": "status",
              "fieldsV1": { "f:status": {} } },
            { "manager": "kubectl-edit", "operation": "Update", "apiVersion": "v1",
              "fieldsV1": { "f:metadata": { "f:labels": { "f:mine": {} } } } },
            { "manager": OURS, "operation": "Apply", "apiVersion": "v1",
              "fieldsV1": { "f:spec": { "f:selector": { "f:active": {} } } } },
        ]));
        assert_eq!(migrated(&before, OURS), Some(after.clone()));
        assert_eq!(migrated(&after, OURS), None, "once is enough");
    }

    #[test]
    fn an_entry_of_ours_gains_the_former_ones_fields() {
        let before = entries(json!([
            { "manager": OURS, "operation": "Apply", "apiVersion": "v1", "fieldsV1": { "f:a": { "f:x": {} } } },
            { "manager": "manager", "operation": "Update", "apiVersion": "v1", "fieldsV1": { "f:a": { "f:y": {} } } },
            { "manager": "manager", "operation": "Update", "apiVersion": "v2", "fieldsV1": { "f:b": {} } },
        ]));
        let after = entries(json!([
            { "manager": OURS, "operation": "Apply", "apiVersion": "v1",
              "fieldsV1": { "f:a": { "f:x": {}, "f:y": {} }, "f:b": {} } },
        ]));
        assert_eq!(migrated(&before, OURS), Some(after));
    }

    #[test]
    fn nothing_is_written_where_nobody_was_before() {
        assert_eq!(migrated(&[], OURS), None);
    }
}
