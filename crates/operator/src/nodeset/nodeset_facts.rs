//! Derives the facts of a NodeSet from its metadata, spec and status. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Pod};
use keelson_api::{
    NodeSet,
    nodeset::{NodeSetDeletionPolicy, ScalingMode},
    well_known::annotation,
};
use kube::ResourceExt;

use super::{
    facts::{Cause, Leaving, Paused},
    pod_facts::intent_of,
};
use crate::{anchor, slurm::facts::NodeName};

/// Returns how the NodeSet is paused, if it is.
pub fn paused(nodeset: &NodeSet) -> Option<Paused> {
    let annotation = nodeset.annotations().get(annotation::PAUSED);
    if nodeset.spec.paused() {
        Some(Paused::Spec)
    } else {
        annotation
            .filter(|value| *value == "true")
            .map(|_| Paused::Annotation)
    }
}

/// Returns what happens to the workers of a NodeSet that is being deleted.
pub fn leaving(nodeset: &NodeSet, revisions: &[Arc<ControllerRevision>]) -> Leaving {
    let forced = nodeset
        .annotations()
        .get(annotation::FORCE_DELETE)
        .is_some_and(|value| value == "true");
    if nodeset.metadata.deletion_timestamp.is_none() {
        Leaving::No
    } else if is_orphaning(nodeset, revisions) {
        Leaving::Orphan
    } else if forced {
        Leaving::Immediately
    } else {
        match nodeset.spec.deletion_policy() {
            NodeSetDeletionPolicy::Drain => Leaving::Drain,
            NodeSetDeletionPolicy::Immediate => Leaving::Immediately,
        }
    }
}

/// Returns true if the workers are orphaned when the NodeSet is deleted (`--cascade=orphan`). The garbage collector
/// removes its own finalizer once it has released the children. After that, only a released revision shows it:
/// revisions have no second owner, so every other deletion removes them.
pub fn is_orphaning(nodeset: &NodeSet, revisions: &[Arc<ControllerRevision>]) -> bool {
    let hash = nodeset
        .status
        .as_ref()
        .map_or("", |status| status.node_set_hash.as_str());
    let newest = format!("{}-{hash}", nodeset.name_any());
    let released = |revision: &ControllerRevision| {
        revision.name_any() == newest && !hash.is_empty() && revision.owner_references().is_empty()
    };
    nodeset.metadata.deletion_timestamp.is_some()
        && (anchor::is_orphaning(nodeset) || revisions.iter().any(|revision| released(revision)))
}

/// Returns true if a NodeSet is being deleted and it is not known yet whether its workers are drained or orphaned.
pub fn is_deletion_undecided(nodeset: &NodeSet, pods: &[Arc<Pod>]) -> bool {
    let drains = |pod: &Arc<Pod>| intent_of(pod).is_some_and(|intent| intent.cause == Cause::Deletion);
    nodeset.metadata.deletion_timestamp.is_some()
        && !anchor::is_orphaning(nodeset)
        && !pods.is_empty()
        && !pods.iter().any(drains)
}

/// Returns the outdated Slurm records that the status lists.
pub fn records(nodeset: &NodeSet) -> BTreeMap<NodeName, String> {
    let status = nodeset.status.as_ref();
    let noted = status.and_then(|status| status.outdated_nodes.as_ref());
    noted
        .into_iter()
        .flatten()
        .map(|(node, revision)| (NodeName(node.clone()), revision.clone()))
        .collect()
}

/// Returns the Kubernetes node that each ordinal is pinned to.
pub fn pins(nodeset: &NodeSet) -> BTreeMap<u32, String> {
    let spec = &nodeset.spec;
    if !spec.pin_to_node || spec.scaling_mode != ScalingMode::StatefulSet {
        return BTreeMap::new();
    }
    let known = nodeset
        .status
        .as_ref()
        .and_then(|status| status.ordinal_to_node.as_ref());
    known
        .into_iter()
        .flatten()
        .filter_map(|(ordinal, kube_node)| Some((ordinal.parse().ok()?, kube_node.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::collector_at_work(json!(["orphan"]), json!([{ "uid": "set" }]), true)]
    #[case::collector_done(json!([]), json!([]), true)]
    #[case::other_deletion(json!([]), json!([{ "uid": "set" }]), false)]
    #[case::foreground(json!(["foregroundDeletion"]), json!(null), false)]
    fn an_orphaned_nodeset_is_known_until_the_last_finalizer_goes(
        #[case] finalizers: Value,
        #[case] owners: Value,
        #[case] expected: bool,
    ) {
        let nodeset = |deleted: Value| -> NodeSet {
            let metadata = json!({ "name": "cpu", "finalizers": finalizers, "deletionTimestamp": deleted });
            serde_json::from_value(json!({
                "metadata": metadata,
                "spec": { "controllerRef": { "name": "slurm" } },
                "status": { "nodeSetHash": "abc" },
            }))
            .unwrap()
        };
        let revisions: Vec<Arc<ControllerRevision>> = owners
            .as_array()
            .map(|owners| {
                let owner =
                    |uid: &Value| json!({ "apiVersion": "v", "kind": "NodeSet", "name": "cpu", "uid": uid });
                let owners: Vec<Value> = owners.iter().map(|known| owner(&known["uid"])).collect();
                let metadata = json!({ "name": "cpu-abc", "ownerReferences": owners });
                Arc::new(serde_json::from_value(json!({ "metadata": metadata, "revision": 1 })).unwrap())
            })
            .into_iter()
            .collect();
        let deleted = nodeset(json!("2026-01-01T00:00:00Z"));
        assert_eq!(is_orphaning(&deleted, &revisions), expected);
        assert!(!is_orphaning(&nodeset(json!(null)), &revisions));

        let undecided = finalizers != json!(["orphan"]);
        let worker = Arc::new(Pod::default());
        assert_eq!(is_deletion_undecided(&deleted, &[Arc::clone(&worker)]), undecided);
        assert!(!is_deletion_undecided(&deleted, &[]));
        let mut drains = Pod::clone(&worker);
        let cause = Cause::Deletion.word().to_owned();
        drains
            .annotations_mut()
            .insert(annotation::DRAIN_CAUSE.to_owned(), cause);
        assert!(!is_deletion_undecided(&deleted, &[worker, Arc::new(drains)]));
    }
}
