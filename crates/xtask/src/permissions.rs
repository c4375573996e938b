//! The permissions that the charts grant to the operator and the webhook, and their use according to an audit log. Pure.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

/// A permission: account, resource and verb.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// `operator` or `webhook`.
    pub account: &'static str,
    /// Group and resource, with a subresource if any: `apps/deployments`, `/pods/status`.
    pub resource: String,
    pub verb: String,
}

impl std::fmt::Display for Permission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.account, self.verb, self.resource)
    }
}

/// Permissions that a test run does not have to use: account, resource, verbs and reason. A resource can end in `*`.
const NOT_SEEN: &[(&str, &str, &[&str], &str)] = &[
    (
        "operator",
        "slinky.slurm.net/*/finalizers",
        &["update"],
        "required by an admission plug-in, never called",
    ),
    (
        "operator",
        "keelson.dev/slurmclusters/finalizers",
        &["update"],
        "required by an admission plug-in, never called",
    ),
    (
        "operator",
        "apps/deployments",
        &["delete"],
        "required by an admission plug-in, never called",
    ),
    (
        "operator",
        "/persistentvolumeclaims",
        &["delete"],
        "required by an admission plug-in, never called",
    ),
    (
        "webhook",
        "/pods",
        &["get"],
        "with podsBinding, tested on separate clusters",
    ),
    (
        "webhook",
        "/nodes",
        &["get"],
        "with podsBinding, tested on separate clusters",
    ),
    (
        "webhook",
        "admissionregistration.k8s.io/mutatingwebhookconfigurations",
        &["patch"],
        "with podsBinding, tested on separate clusters",
    ),
    (
        "webhook",
        "/secrets",
        &["patch"],
        "certificate renewal, tested on separate clusters",
    ),
];

/// The permissions in all sections of a rules file.
pub fn granted(account: &'static str, rules: &str) -> Result<BTreeSet<Permission>> {
    let sections: BTreeMap<String, Vec<Value>> = serde_saphyr::from_str(rules)
        .with_context(|| format!("the rules of the {account} are not valid YAML"))?;
    let mut found = BTreeSet::new();
    for rule in sections.values().flatten() {
        for group in texts(rule, "apiGroups") {
            for resource in texts(rule, "resources") {
                found.extend(texts(rule, "verbs").map(|verb| Permission {
                    account,
                    resource: format!("{group}/{resource}"),
                    verb: verb.to_owned(),
                }));
            }
        }
    }
    Ok(found)
}

/// The permissions that our accounts used, according to an audit log.
pub fn used(log: &str) -> BTreeSet<Permission> {
    let ours = log.lines().filter(|line| line.contains("slurm-operator"));
    ours.filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .flat_map(|entry| used_by(&entry))
        .collect()
}

fn used_by(entry: &Value) -> Vec<Permission> {
    let text = |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let Some(name) = text("/user/username").strip_prefix("system:serviceaccount:") else {
        return Vec::new();
    };
    let allowed = text("/annotations/authorization.k8s.io~1decision") == "allow";
    if !allowed || !name.contains("slurm-operator") {
        return Vec::new();
    }
    let account = if name.ends_with("-webhook") {
        "webhook"
    } else {
        "operator"
    };
    let mut resource = format!("{}/{}", text("/objectRef/apiGroup"), text("/objectRef/resource"));
    if !text("/objectRef/subresource").is_empty() {
        resource = format!("{resource}/{}", text("/objectRef/subresource"));
    }
    let permission = |verb: &str| Permission {
        account,
        resource: resource.clone(),
        verb: verb.to_owned(),
    };
    let verb = text("/verb");
    let mut found = vec![permission(verb)];
    // An apply that created the object also required the create permission.
    let created = entry.pointer("/responseStatus/code") == Some(&Value::from(201));
    if verb == "patch" && created {
        found.push(permission("create"));
    }
    found
}

/// The granted permissions that were not used, except those that a run does not have to use.
pub fn unused(granted: &BTreeSet<Permission>, used: &BTreeSet<Permission>) -> Vec<Permission> {
    granted
        .difference(used)
        .filter(|permission| !need_not_be_seen(permission))
        .cloned()
        .collect()
}

fn need_not_be_seen(permission: &Permission) -> bool {
    NOT_SEEN.iter().any(|(account, resource, verbs, _)| {
        let same = match resource.split_once('*') {
            Some((begin, end)) => {
                permission.resource.starts_with(begin) && permission.resource.ends_with(end)
            }
            None => permission.resource == *resource,
        };
        same && permission.account == *account && verbs.contains(&permission.verb.as_str())
    })
}

fn texts<'a>(rule: &'a Value, field: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let list = rule.get(field).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RULES: &str = "\
watched:
  - { apiGroups: [''], resources: [pods, pods/status], verbs: [patch] }
home:
  - { apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [x], verbs: [create, get] }
";

    fn call(
        account: &str,
        verb: &str,
        resource: &str,
        subresource: &str,
        code: u16,
        decision: &str,
    ) -> String {
        json!({
            "user": { "username": format!("system:serviceaccount:here:{account}") },
            "verb": verb,
            "objectRef": { "resource": resource, "subresource": subresource },
            "responseStatus": { "code": code },
            "annotations": { "authorization.k8s.io/decision": decision },
        })
        .to_string()
    }

    fn told(permissions: impl IntoIterator<Item = Permission>) -> Vec<String> {
        permissions
            .into_iter()
            .map(|permission| permission.to_string())
            .collect()
    }

    #[test]
    fn rules_are_taken_apart_into_single_permissions() {
        assert_eq!(
            told(granted("operator", RULES).unwrap()),
            [
                "operator patch /pods",
                "operator patch /pods/status",
                "operator create coordination.k8s.io/leases",
                "operator get coordination.k8s.io/leases",
            ]
        );
    }

    #[test]
    fn a_verb_that_nobody_used_is_told() {
        let log = [
            call("slurm-operator", "patch", "pods", "", 200, "allow"),
            call("slurm-operator", "patch", "pods", "status", 403, "forbid"),
            call("stranger", "patch", "pods", "status", 200, "allow"),
            call("slurm-operator-webhook", "patch", "pods", "status", 200, "allow"),
            "half a line of slurm-operator".to_owned(),
        ];
        let granted = granted("operator", RULES).unwrap();
        assert_eq!(
            told(unused(&granted, &used(&log.join("\n")))),
            [
                "operator patch /pods/status",
                "operator create coordination.k8s.io/leases",
                "operator get coordination.k8s.io/leases",
            ]
        );
    }

    #[test]
    fn an_apply_that_makes_an_object_uses_create() {
        let log = call("slurm-operator", "patch", "services", "", 201, "allow");
        assert_eq!(
            told(used(&log)),
            ["operator create /services", "operator patch /services"]
        );
    }

    /// Every exception refers to a granted permission: an outdated exception would hide a new unused permission.
    #[test]
    fn every_exception_is_granted() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/slurm-operator/files");
        let read = |file: &str| std::fs::read_to_string(format!("{root}/{file}")).unwrap();
        let mut all = granted("operator", &read("operator-rules.yaml")).unwrap();
        all.extend(granted("webhook", &read("webhook-rules.yaml")).unwrap());
        for (account, resource, verbs, _) in NOT_SEEN {
            for verb in *verbs {
                let resource = resource.replace('*', "nodesets");
                let wanted = Permission {
                    account,
                    resource,
                    verb: (*verb).to_owned(),
                };
                assert!(all.contains(&wanted), "{wanted} is not granted");
            }
        }
    }

    /// Determined by reading the code: no run can show that a verb is missing.
    #[test]
    fn what_no_code_does_is_not_granted() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/slurm-operator/files");
        let rules = std::fs::read_to_string(format!("{root}/operator-rules.yaml")).unwrap();
        let all = told(granted("operator", &rules).unwrap());
        // Required to change the owners of a claim if OwnerReferencesPermissionEnforcement is enabled.
        for needed in ["operator patch", "operator delete"] {
            let needed = format!("{needed} /persistentvolumeclaims");
            assert!(all.contains(&needed), "{needed} is not granted");
        }
        for refused in [
            "operator patch apps/controllerrevisions",
            "operator patch coordination.k8s.io/leases",
            "operator get slinky.slurm.net/nodesets/status",
            "operator get /pods/status",
            "operator get /pods",
            "operator get /nodes",
            "operator create keelson.dev/slurmclusters",
            "operator delete keelson.dev/slurmclusters",
            "operator create slinky.slurm.net/tokens",
            "operator delete slinky.slurm.net/tokens",
        ] {
            assert!(!all.contains(&refused.to_owned()), "{refused} is granted");
        }
    }
}
