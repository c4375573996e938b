//! `pods/binding`: sets the topology of a worker to that of its node when it is scheduled, so that slurmd starts with it.
//!
//! The webhook adds the annotation to the Binding; the API server copies it to the pod in the same write that schedules
//! the pod. The webhook never prevents a pod from being scheduled.

use std::collections::BTreeMap;

use json_patch::{
    AddOperation, Patch, PatchOperation,
    jsonptr::{PointerBuf, Token},
};
use keelson_api::well_known::{annotation, app, label};
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    namespace_snapshot::Lookup,
    review::{Operation, Request, Verdict},
};

/// Name in metrics.
pub const KIND: &str = "binding";

/// Reviews one request.
pub async fn review(request: &Request, cluster: &Cluster) -> Verdict {
    let Some(Binding {
        pod,
        node,
        annotations,
    }) = Binding::of(request)
    else {
        return Verdict::default();
    };
    let labels = cluster.pod_labels(&request.namespace, pod).await;
    if !is_worker(&labels) {
        return Verdict::default();
    }
    Verdict {
        patch: topology(annotations, &cluster.node_annotations(node).await),
        ..Verdict::default()
    }
}

/// A request to bind a pod to a node.
#[derive(Debug, PartialEq)]
struct Binding<'a> {
    pod: &'a str,
    node: &'a str,
    annotations: Option<&'a Value>,
}

impl<'a> Binding<'a> {
    fn of(request: &'a Request) -> Option<Self> {
        if request.operation != Operation::Create {
            return None;
        }
        let object = request.object.as_ref()?;
        // A Binding has the name of its pod, both in the URL and in its metadata.
        let own = object.pointer("/metadata/name").and_then(Value::as_str);
        Some(Self {
            pod: own.unwrap_or(&request.name),
            node: object.pointer("/target/name")?.as_str()?,
            annotations: object.pointer("/metadata/annotations"),
        })
    }
}

fn is_worker(labels: &Lookup<BTreeMap<String, String>>) -> bool {
    matches!(labels, Lookup::Found(labels) if labels.get(label::APP).is_some_and(|name| name == app::SLURMD))
}

/// The patch that sets the topology to the node's. An empty value clears the topology of an earlier node.
fn topology(written: Option<&Value>, node: &Lookup<BTreeMap<String, String>>) -> Option<Patch> {
    let Lookup::Found(node) = node else { return None };
    let topology = node.get(annotation::TOPOLOGY_SPEC).map_or("", String::as_str);
    let add = |path: &[&str], value: Value| {
        let tokens = path.iter().map(|token| Token::new(*token));
        PatchOperation::Add(AddOperation {
            path: PointerBuf::from_tokens(tokens),
            value,
        })
    };
    let at = ["metadata", "annotations", annotation::TOPOLOGY_SPEC];
    let operation = if written.is_some_and(Value::is_object) {
        add(&at, json!(topology))
    } else {
        add(
            &["metadata", "annotations"],
            json!({ annotation::TOPOLOGY_SPEC: topology }),
        )
    };
    Some(Patch(vec![operation]))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn found(pairs: &[(&str, &str)]) -> Lookup<BTreeMap<String, String>> {
        Lookup::Found(
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    fn patched(mut binding: Value, node: &Lookup<BTreeMap<String, String>>) -> Value {
        let patch = topology(binding.pointer("/metadata/annotations"), node);
        if let Some(patch) = patch {
            json_patch::patch(&mut binding, &patch).unwrap();
        }
        binding
    }

    #[rstest]
    #[case::a_worker(found(&[("app.kubernetes.io/name", "slurmd")]), true)]
    #[case::another_pod(found(&[("app.kubernetes.io/name", "nginx")]), false)]
    #[case::no_labels(found(&[]), false)]
    #[case::no_such_pod(Lookup::Missing, false)]
    #[case::no_answer(Lookup::Unknown, false)]
    fn only_workers_are_touched(#[case] labels: Lookup<BTreeMap<String, String>>, #[case] expected: bool) {
        assert_eq!(is_worker(&labels), expected);
    }

    #[test]
    fn the_nodes_topology_is_put_on_the_binding() {
        let node = found(&[(annotation::TOPOLOGY_SPEC, "topo-switch:s2,topo-block:b2")]);
        let expected = json!({ "metadata": { "annotations": { annotation::TOPOLOGY_SPEC: "topo-switch:s2,topo-block:b2" } } });
        assert_eq!(patched(json!({ "metadata": {} }), &node), expected);
        assert_eq!(
            patched(json!({ "metadata": { "annotations": null } }), &node),
            expected
        );
        let kept = patched(json!({ "metadata": { "annotations": { "a/b": "c" } } }), &node);
        assert_eq!(kept["metadata"]["annotations"]["a/b"], "c");
        assert_eq!(
            kept["metadata"]["annotations"][annotation::TOPOLOGY_SPEC],
            "topo-switch:s2,topo-block:b2"
        );
    }

    #[test]
    fn a_node_without_topology_takes_away_an_earlier_one() {
        let binding = patched(json!({ "metadata": {} }), &found(&[]));
        assert_eq!(binding["metadata"]["annotations"][annotation::TOPOLOGY_SPEC], "");
    }

    #[rstest]
    #[case(Lookup::Missing)]
    #[case(Lookup::Unknown)]
    fn an_unknown_node_changes_nothing(#[case] node: Lookup<BTreeMap<String, String>>) {
        assert_eq!(topology(None, &node), None);
    }
}
