//! Checks of the permissions in the charts against the audit log: calls of the operator and the webhook that the API server denied,
//! and permissions that no call used.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testbed::layout::Layout;

use crate::permissions::{self, Permission};
use crate::workspace;

/// All requests to the API server of a cluster since its start.
pub fn log(layout: &Layout) -> Result<String> {
    let mut log = String::new();
    for file in std::fs::read_dir(layout.logs())?.flatten() {
        if file.file_name().to_string_lossy().starts_with("audit") {
            log += &std::fs::read_to_string(file.path())
                .with_context(|| format!("failed to read {}", file.path().display()))?;
        }
    }
    Ok(log)
}

/// Fails if the charts grant a permission that no call used. This is meaningful only after a run of all tests.
pub fn everything_was_used(used: &BTreeSet<Permission>) -> Result<()> {
    let files = workspace::root()?.join("charts/slurm-operator/files");
    let mut granted = BTreeSet::new();
    for (account, file) in [
        ("operator", "operator-rules.yaml"),
        ("webhook", "webhook-rules.yaml"),
    ] {
        let path = files.join(file);
        let rules =
            std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        granted.extend(permissions::granted(account, &rules)?);
    }
    let told: Vec<String> = permissions::unused(&granted, used)
        .iter()
        .map(|permission| format!("  {permission}"))
        .collect();
    ensure!(
        told.is_empty(),
        "the roles in the charts grant permissions that no test used; remove them from {}, or add an exception with a reason to crates/xtask/src/permissions.rs:\n{}",
        files.display(),
        told.join("\n")
    );
    Ok(())
}

/// Fails if a call of one of our service accounts was denied.
pub fn nothing_was_forbidden(log: &str) -> Result<()> {
    let told: Vec<String> = forbidden(log)
        .iter()
        .map(|(call, times)| format!("  {times} × {call}"))
        .collect();
    ensure!(
        told.is_empty(),
        "the roles in the charts lack permissions that the programs require:\n{}",
        told.join("\n")
    );
    Ok(())
}

/// The denied calls in an audit log, as `account verb resource`, with their count. This excludes denials by admission plug-ins and
/// denials after the roles of the account were deleted or replaced by those of another version, because programs that are removed
/// or replaced exit a little later than their roles.
fn forbidden(log: &str) -> BTreeMap<String, u32> {
    let entries: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let mut calls = BTreeMap::new();
    for entry in &entries {
        let Some(account) = text(entry, "/user/username").strip_prefix("system:serviceaccount:") else {
            continue;
        };
        let refused = text(entry, "/annotations/authorization.k8s.io~1decision") == "forbid";
        if !refused
            || !account.contains("slurm-operator")
            || was_removed(account, entry, &entries)
            || was_replaced(account, entry, &entries)
        {
            continue;
        }
        let (group, resource) = (
            text(entry, "/objectRef/apiGroup"),
            text(entry, "/objectRef/resource"),
        );
        let subresource = text(entry, "/objectRef/subresource");
        let call = format!(
            "{account} {} {group}/{resource} {subresource}",
            text(entry, "/verb")
        );
        *calls.entry(call.trim_end().to_owned()).or_insert(0) += 1;
    }
    calls
}

/// Whether a binding of this account, which has its name, was deleted before this call.
fn was_removed(account: &str, call: &Value, entries: &[Value]) -> bool {
    let (namespace, name) = account.split_once(':').unwrap_or((account, ""));
    let when = text(call, "/requestReceivedTimestamp");
    entries.iter().any(|entry| {
        let deleted = text(entry, "/objectRef/name");
        let here = text(entry, "/objectRef/namespace") == namespace;
        let binding = match (text(entry, "/verb"), text(entry, "/objectRef/resource")) {
            ("delete", "clusterrolebindings") => deleted == name,
            ("delete", "rolebindings") => here && deleted.strip_suffix("-home").unwrap_or(deleted) == name,
            ("deletecollection", "rolebindings") => here,
            _ => false,
        };
        // The timestamp format sorts chronologically.
        binding && text(entry, "/requestReceivedTimestamp") <= when
    })
}

/// Whether the calling pod was running before a role of its account was updated (the role has the name of the account), and was
/// deleted afterwards: the update is for the program that replaces it.
fn was_replaced(account: &str, call: &Value, entries: &[Value]) -> bool {
    let (namespace, name) = account.split_once(':').unwrap_or((account, ""));
    let pod = text(call, POD);
    let when = |entry| text(entry, "/requestReceivedTimestamp");
    let written = entries.iter().filter(|entry| {
        let role = text(entry, "/objectRef/name");
        let changed = matches!(text(entry, "/verb"), "patch" | "update")
            && entry.pointer("/responseStatus/code") == Some(&Value::from(200));
        let ours = match text(entry, "/objectRef/resource") {
            "clusterroles" => role == name,
            "roles" => {
                text(entry, "/objectRef/namespace") == namespace
                    && role.strip_suffix("-home").unwrap_or(role) == name
            }
            _ => false,
        };
        changed && ours && when(entry) <= when(call)
    });
    // The last update counts: a pod that started after an earlier update must work with it.
    let Some(written) = written.map(when).max() else {
        return false;
    };
    let begun = entries
        .iter()
        .filter(|entry| text(entry, POD) == pod)
        .map(when)
        .min();
    let deleted = entries.iter().any(|entry| {
        (text(entry, "/verb"), text(entry, "/objectRef/resource")) == ("delete", "pods")
            && text(entry, "/objectRef/name") == pod
            && when(entry) >= written
    });
    !pod.is_empty() && deleted && begun.is_some_and(|begun| begun < written)
}

/// The name of the pod whose token was used for a call.
const POD: &str = "/user/extra/authentication.kubernetes.io~1pod-name/0";

fn text<'a>(entry: &'a Value, pointer: &str) -> &'a str {
    entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::forbidden;

    const OURS: &str = "system:serviceaccount:here:slurm-operator-webhook";

    fn entry(second: u8, user: &str, decision: &str) -> String {
        serde_json::json!({
            "requestReceivedTimestamp": format!("2026-11-15T22:00:{second:02}.000000Z"),
            "user": { "username": user }, "verb": "list",
            "objectRef": { "resource": "pods", "apiGroup": "", "namespace": "slurm" },
            "annotations": { "authorization.k8s.io/decision": decision },
        })
        .to_string()
    }

    fn deletion(second: u8, kind: &str, name: &str) -> String {
        serde_json::json!({
            "requestReceivedTimestamp": format!("2026-11-15T22:00:{second:02}.000000Z"),
            "user": { "username": "admin" }, "verb": "delete",
            "objectRef": { "resource": kind, "namespace": "here", "name": name },
            "annotations": { "authorization.k8s.io/decision": "allow" },
        })
        .to_string()
    }

    /// A call by one of our pods.
    fn by(second: u8, pod: &str, decision: &str) -> String {
        let mut call: serde_json::Value = serde_json::from_str(&entry(second, OURS, decision)).unwrap();
        call["user"]["extra"] = serde_json::json!({ "authentication.kubernetes.io/pod-name": [pod] });
        call.to_string()
    }

    fn written(second: u8, kind: &str, name: &str) -> String {
        let mut write: serde_json::Value = serde_json::from_str(&deletion(second, kind, name)).unwrap();
        write["verb"] = "patch".into();
        write["responseStatus"] = serde_json::json!({ "code": 200 });
        write.to_string()
    }

    fn told(log: &[String]) -> Vec<(String, u32)> {
        forbidden(&log.join("\n")).into_iter().collect()
    }

    #[test]
    fn only_refusals_by_roles_and_only_ours_count() {
        let log = [
            entry(1, OURS, "allow"),
            entry(2, "system:serviceaccount:default:stranger", "forbid"),
            entry(3, "admin", "forbid"),
            "half a line".to_owned(),
            entry(4, OURS, "forbid"),
            entry(5, OURS, "forbid"),
        ];
        assert_eq!(
            told(&log),
            [("here:slurm-operator-webhook list /pods".to_owned(), 2)]
        );
    }

    #[test]
    fn a_program_that_outlives_its_roles_is_no_fault_of_theirs() {
        let after = [
            deletion(1, "rolebindings", "slurm-operator-webhook-home"),
            entry(2, OURS, "forbid"),
        ];
        assert_eq!(told(&after), []);
        let before = [
            entry(1, OURS, "forbid"),
            deletion(2, "clusterrolebindings", "slurm-operator-webhook"),
        ];
        assert_eq!(told(&before).len(), 1);
        let other = [
            deletion(1, "clusterrolebindings", "slurm-operator"),
            entry(2, OURS, "forbid"),
        ];
        assert_eq!(told(&other).len(), 1);
    }

    #[test]
    fn a_program_that_outlives_the_exchange_of_its_roles_is_no_fault_of_theirs() {
        let role = "slurm-operator-webhook";
        let upgrade = |refused: String| {
            [
                by(1, "old", "allow"),
                written(2, "clusterroles", role),
                refused,
                deletion(5, "pods", "old"),
            ]
        };
        assert_eq!(told(&upgrade(by(3, "old", "forbid"))), []);
        assert_eq!(
            told(&upgrade(by(3, "new", "forbid"))).len(),
            1,
            "began afterwards"
        );
        let stays = [
            by(1, "old", "allow"),
            written(2, "roles", role),
            by(3, "old", "forbid"),
        ];
        assert_eq!(told(&stays).len(), 1, "was not replaced");
        let others = [
            by(1, "old", "allow"),
            written(2, "clusterroles", "slurm-operator"),
            by(3, "old", "forbid"),
            deletion(5, "pods", "old"),
        ];
        assert_eq!(told(&others).len(), 1, "the role of another");
    }
}
