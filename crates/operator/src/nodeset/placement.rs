//! Decides whether a Kubernetes node is eligible for a worker, by the rules of the scheduler. Pure.
//!
//! Checks what a DaemonSet controller checks: node selector, required node affinity and taints.

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use serde_json::Value;

use super::facts::Fit;

/// Taints of a Kubernetes node that does not respond. It may come back with its jobs still running, so they do not
/// evict a worker, as with DaemonSets.
pub const SILENT: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Checks a Kubernetes node against the spec of a worker pod.
pub fn fit(pod_spec: &Value, node: &Node) -> Fit {
    if !selected(pod_spec, node) || !affine(pod_spec, node) {
        return Fit::No;
    }
    let tolerations = pod_spec
        .get("tolerations")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut fit = Fit::Run;
    for taint in taints.filter(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint))) {
        match taint.effect.as_str() {
            "NoExecute" if !SILENT.contains(&taint.key.as_str()) => return Fit::No,
            "NoExecute" | "NoSchedule" => fit = Fit::Stay,
            _ => {}
        }
    }
    fit
}

fn selected(pod_spec: &Value, node: &Node) -> bool {
    let selector = pod_spec.get("nodeSelector").and_then(Value::as_object);
    selector
        .into_iter()
        .flatten()
        .all(|(key, value)| node.labels().get(key).map(String::as_str) == value.as_str())
}

fn affine(pod_spec: &Value, node: &Node) -> bool {
    let required = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let Some(terms) = pod_spec.pointer(required).and_then(Value::as_array) else {
        return true;
    };
    terms.iter().any(|term| term_matches(term, node))
}

fn term_matches(term: &Value, node: &Node) -> bool {
    let list = |field: &str| {
        term.get(field)
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice)
    };
    let (expressions, fields) = (list("matchExpressions"), list("matchFields"));
    // An empty term matches no node.
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let name = node.name_any();
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    expressions
        .iter()
        .all(|requirement| requirement_holds(requirement, label))
        && fields.iter().all(|requirement| {
            requirement_holds(requirement, |key| {
                (key == "metadata.name").then_some(name.as_str())
            })
        })
}

fn requirement_holds<'a>(requirement: &Value, value_of: impl Fn(&str) -> Option<&'a str>) -> bool {
    let text = |field: &str| requirement.get(field).and_then(Value::as_str).unwrap_or_default();
    let values: Vec<&str> = requirement
        .get("values")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let value = value_of(text("key"));
    let compared = |holds: fn(i64, i64) -> bool| {
        let bound = values.first().and_then(|bound| bound.parse::<i64>().ok());
        value
            .and_then(|value| value.parse().ok())
            .zip(bound)
            .is_some_and(|(value, bound)| holds(value, bound))
    };
    match text("operator") {
        "In" => value.is_some_and(|value| values.contains(&value)),
        "NotIn" => value.is_none_or(|value| !values.contains(&value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(|value, bound| value > bound),
        "Lt" => compared(|value, bound| value < bound),
        _ => false,
    }
}

fn tolerates(toleration: &Value, taint: &Taint) -> bool {
    let text = |field: &str| toleration.get(field).and_then(Value::as_str).unwrap_or_default();
    let (key, effect, operator) = (text("key"), text("effect"), text("operator"));
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match operator {
        "Exists" => true,
        "" | "Equal" => !key.is_empty() && text("value") == taint.value.as_deref().unwrap_or_default(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn node(taints: &Value) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "n1", "labels": { "gpu": "yes", "count": "8" } },
            "spec": { "taints": taints },
        }))
        .unwrap()
    }

    #[rstest]
    #[case::nothing_asked(json!({}), Fit::Run)]
    #[case::selected(json!({ "nodeSelector": { "gpu": "yes" } }), Fit::Run)]
    #[case::not_selected(json!({ "nodeSelector": { "gpu": "no" } }), Fit::No)]
    fn the_node_selector_decides(#[case] spec: Value, #[case] expected: Fit) {
        assert_eq!(fit(&spec, &node(&json!([]))), expected);
    }

    #[rstest]
    #[case(json!({ "matchExpressions": [{ "key": "gpu", "operator": "In", "values": ["yes"] }] }), Fit::Run)]
    #[case(json!({ "matchExpressions": [{ "key": "gpu", "operator": "NotIn", "values": ["yes"] }] }), Fit::No)]
    #[case(json!({ "matchExpressions": [{ "key": "x", "operator": "DoesNotExist" }] }), Fit::Run)]
    #[case(json!({ "matchExpressions": [{ "key": "count", "operator": "Gt", "values": ["4"] }] }), Fit::Run)]
    #[case(json!({ "matchExpressions": [{ "key": "count", "operator": "Lt", "values": ["4"] }] }), Fit::No)]
    #[case(json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] }), Fit::Run)]
    #[case(json!({}), Fit::No)]
    fn required_node_affinity_decides(#[case] term: Value, #[case] expected: Fit) {
        let spec = json!({ "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] },
        } } });
        assert_eq!(fit(&spec, &node(&json!([]))), expected);
    }

    #[test]
    fn a_machine_that_does_not_answer_keeps_its_worker() {
        let taints = json!([{ "key": SILENT[1], "effect": "NoExecute" }]);
        assert_eq!(fit(&json!({}), &node(&taints)), Fit::Stay);
    }

    #[rstest]
    #[case::cordoned("NoSchedule", json!([]), Fit::Stay)]
    #[case::evicting("NoExecute", json!([]), Fit::No)]
    #[case::preference("PreferNoSchedule", json!([]), Fit::Run)]
    #[case::tolerated("NoSchedule", json!([{ "key": "k", "operator": "Exists" }]), Fit::Run)]
    #[case::tolerated_by_value("NoExecute", json!([{ "key": "k", "value": "v", "effect": "NoExecute" }]), Fit::Run)]
    #[case::other_value("NoExecute", json!([{ "key": "k", "value": "w" }]), Fit::No)]
    #[case::other_effect("NoExecute", json!([{ "key": "k", "operator": "Exists", "effect": "NoSchedule" }]), Fit::No)]
    #[case::everything("NoExecute", json!([{ "operator": "Exists" }]), Fit::Run)]
    fn taints_decide(#[case] effect: &str, #[case] tolerations: Value, #[case] expected: Fit) {
        let taints = json!([{ "key": "k", "value": "v", "effect": effect }]);
        assert_eq!(
            fit(&json!({ "tolerations": tolerations }), &node(&taints)),
            expected
        );
    }
}
