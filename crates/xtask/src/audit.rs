//! What the API server refused to the operator and the webhook: a permission that the charts forgot to give.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testbed::layout::Layout;

/// Fails when a service account of ours was refused anything since the cluster began.
pub fn nothing_was_forbidden(layout: &Layout) -> Result<()> {
    let mut calls = BTreeMap::new();
    for file in std::fs::read_dir(layout.logs())?.flatten() {
        if file.file_name().to_string_lossy().starts_with("audit") {
            let text = std::fs::read_to_string(file.path())
                .with_context(|| format!("cannot read {}", file.path().display()))?;
            for call in forbidden(&text) {
                *calls.entry(call).or_insert(0_u32) += 1;
            }
        }
    }
    let told: Vec<String> = calls
        .iter()
        .map(|(call, times)| format!("  {times} × {call}"))
        .collect();
    ensure!(
        told.is_empty(),
        "the charts' roles lack what the programs asked for:\n{}",
        told.join("\n")
    );
    Ok(())
}

/// The refused calls in an audit log, as `account verb resource`. A refusal by an admission plug-in is none of them.
fn forbidden(log: &str) -> Vec<String> {
    log.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|entry| {
            let text = |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let account = text("/user/username").strip_prefix("system:serviceaccount:")?;
            let ours = account.contains("slurm-operator");
            let refused = text("/annotations/authorization.k8s.io~1decision") == "forbid";
            (ours && refused).then(|| {
                let (group, resource) = (text("/objectRef/apiGroup"), text("/objectRef/resource"));
                let subresource = text("/objectRef/subresource");
                format!("{account} {} {group}/{resource} {subresource}", text("/verb"))
                    .trim_end()
                    .to_owned()
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::forbidden;

    fn entry(user: &str, decision: &str) -> String {
        serde_json::json!({
            "user": { "username": user }, "verb": "list",
            "objectRef": { "resource": "pods", "apiGroup": "", "namespace": "slurm" },
            "annotations": { "authorization.k8s.io/decision": decision },
        })
        .to_string()
    }

    #[test]
    fn only_refusals_by_roles_and_only_ours_count() {
        let ours = "system:serviceaccount:slurm-operator:slurm-operator-webhook";
        let log = [
            entry(ours, "allow"),
            entry("system:serviceaccount:default:stranger", "forbid"),
            entry("admin", "forbid"),
            "half a line".to_owned(),
            entry(ours, "forbid"),
        ]
        .join("\n");
        assert_eq!(
            forbidden(&log),
            ["slurm-operator:slurm-operator-webhook list /pods"]
        );
    }
}
