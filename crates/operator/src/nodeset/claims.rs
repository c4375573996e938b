//! The `PersistentVolumeClaim`s of workers, one per worker and template, and the owner that each is deleted with. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use keelson_api::{NodeSet, controller::ClaimPolicy, nodeset::ClaimRetentionPolicy};
use keelson_runtime::apply::Desired;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::{
    build::worker_labels,
    facts::{Cause, ClaimFacts, ClaimOwner, PodId},
};
use crate::children::metadata::owned_by;

/// Returns the owner of a worker's claims. Kubernetes deletes them with the NodeSet, or with a worker that is removed
/// for good, as the retention policy requires.
pub fn owner(retention: ClaimRetentionPolicy, leaves: Option<Cause>, pod: &PodId) -> ClaimOwner {
    let scaled = leaves.is_some_and(|cause| match cause {
        Cause::ScaleIn | Cause::ModeSwitch | Cause::Unplaced | Cause::Renamed => true,
        // The other worker on the Kubernetes node uses the same claims.
        Cause::Duplicate | Cause::Deletion | Cause::Rollout | Cause::Unregistered => false,
    });
    match (retention.when_deleted, retention.when_scaled) {
        (_, ClaimPolicy::Delete) if scaled => ClaimOwner::Pod(pod.clone()),
        (ClaimPolicy::Delete, _) => ClaimOwner::Set,
        (ClaimPolicy::Retain, _) => ClaimOwner::Nobody,
    }
}

fn templates(nodeset: &NodeSet) -> impl Iterator<Item = (&str, &Map<String, Value>)> {
    let templates = nodeset.spec.volume_claim_templates.as_deref().unwrap_or_default();
    templates.iter().filter_map(|template| {
        let name = template.pointer("/metadata/name")?.as_str()?;
        Some((name, &template.0))
    })
}

/// Returns the claim names of a worker. `identity` is its padded ordinal, or its host name in DaemonSet mode.
pub fn names(nodeset: &NodeSet, identity: &str) -> Vec<String> {
    templates(nodeset)
        .map(|(template, _)| nodeset.claim_name(template, identity))
        .collect()
}

pub fn build_claims(nodeset: &NodeSet, identity: &str) -> Vec<Desired<PersistentVolumeClaim>> {
    let namespace = nodeset.namespace().unwrap_or_default();
    let with_set = nodeset.spec.claim_retention().when_deleted == ClaimPolicy::Delete;
    templates(nodeset)
        .map(|(name, template)| {
            let user = template.get("metadata").cloned().unwrap_or_default();
            let mut labels = user
                .get("labels")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default();
            labels.extend(
                worker_labels(nodeset)
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), json!(value))),
            );
            let mut metadata = json!({
                "name": nodeset.claim_name(name, identity),
                "namespace": namespace,
                "labels": labels,
            });
            if let Value::Object(fields) = &mut metadata {
                if let Some(annotations) = user.get("annotations") {
                    fields.insert("annotations".into(), annotations.clone());
                }
                if with_set {
                    fields.insert("ownerReferences".into(), json!([owned_by(nodeset)]));
                }
            }
            Desired::new(json!({ "metadata": metadata, "spec": template.get("spec") }))
        })
        .collect()
}

/// Adds the worker's claims to its volumes, replacing volumes of the same name.
pub fn mount(nodeset: &NodeSet, identity: &str, pod_spec: &mut Value) {
    let Value::Object(fields) = pod_spec else { return };
    for (name, _) in templates(nodeset) {
        let volume = json!({
            "name": name,
            "persistentVolumeClaim": { "claimName": nodeset.claim_name(name, identity) },
        });
        let volumes = fields.entry("volumes").or_insert_with(|| json!([]));
        if let Value::Array(volumes) = volumes {
            volumes.retain(|known| known.get("name").and_then(Value::as_str) != Some(name));
            volumes.push(volume);
        }
    }
}

/// Returns the current owner of a claim, and whether it has a foreign controller; such a claim must not be changed.
pub fn facts(nodeset: &NodeSet, pod: &PodId, claim: &PersistentVolumeClaim) -> ClaimFacts {
    let ours = |uid: &str| Some(uid) == nodeset.metadata.uid.as_deref();
    let mut owner = ClaimOwner::Nobody;
    let mut foreign = false;
    for reference in claim.owner_references() {
        if reference.uid == pod.uid {
            owner = ClaimOwner::Pod(pod.clone());
        } else if ours(&reference.uid) {
            owner = ClaimOwner::Set;
        } else {
            foreign |= reference.controller == Some(true) && reference.kind != "Pod";
        }
    }
    ClaimFacts {
        name: claim.name_any(),
        owner,
        foreign,
    }
}

/// Returns the claim's owner references with `owner` instead of the NodeSet and the pod. Other references are kept.
pub fn owner_references(
    nodeset: &NodeSet,
    pod: &PodId,
    claim: &PersistentVolumeClaim,
    owner: &ClaimOwner,
) -> Vec<Value> {
    let mut references: Vec<Value> = claim
        .owner_references()
        .iter()
        .filter(|known| known.uid != pod.uid && Some(&known.uid) != nodeset.metadata.uid.as_ref())
        .map(|known| json!(known))
        .collect();
    match owner {
        ClaimOwner::Nobody => {}
        ClaimOwner::Set => references.push(owned_by(nodeset)),
        ClaimOwner::Pod(PodId { name, uid }) => references.push(json!({
            "apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid,
        })),
    }
    references
}

/// Returns true if all owners of the claim are pods that no longer exist.
pub fn is_orphan_of_a_pod(claim: &PersistentVolumeClaim, is_there: impl Fn(&str) -> bool) -> bool {
    let owners = claim.owner_references();
    !owners.is_empty()
        && owners
            .iter()
            .all(|owner| owner.kind == "Pod" && !is_there(&owner.uid))
}

#[cfg(test)]
mod tests {
    use ClaimPolicy::{Delete, Retain};
    use pretty_assertions::assert_eq;
    use rstest::rstest;

    use super::*;

    fn pod() -> PodId {
        PodId {
            name: "cpu-0".into(),
            uid: "pod".into(),
        }
    }

    fn nodeset(when_deleted: &str) -> NodeSet {
        serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1",
            "kind": "NodeSet",
            "metadata": { "name": "cpu", "namespace": "slurm", "uid": "set" },
            "spec": {
                "controllerRef": { "name": "slurm" },
                "persistentVolumeClaimRetentionPolicy": { "whenDeleted": when_deleted },
                "volumeClaimTemplates": [{
                    "metadata": { "name": "scratch", "labels": { "tier": "fast" } },
                    "spec": { "accessModes": ["ReadWriteOnce"] },
                }],
            },
        }))
        .unwrap()
    }

    #[rstest]
    #[case(Retain, Retain, None, ClaimOwner::Nobody)]
    #[case(Retain, Retain, Some(Cause::ScaleIn), ClaimOwner::Nobody)]
    #[case(Delete, Retain, None, ClaimOwner::Set)]
    #[case(Delete, Retain, Some(Cause::ScaleIn), ClaimOwner::Set)]
    #[case(Retain, Delete, None, ClaimOwner::Nobody)]
    #[case(Retain, Delete, Some(Cause::ScaleIn), ClaimOwner::Pod(pod()))]
    #[case(Retain, Delete, Some(Cause::Unplaced), ClaimOwner::Pod(pod()))]
    #[case::an_update_is_no_scaling(Retain, Delete, Some(Cause::Rollout), ClaimOwner::Nobody)]
    #[case::nor_is_deletion(Retain, Delete, Some(Cause::Deletion), ClaimOwner::Nobody)]
    #[case::the_other_worker_needs_it(Retain, Delete, Some(Cause::Duplicate), ClaimOwner::Nobody)]
    #[case(Delete, Delete, None, ClaimOwner::Set)]
    #[case(Delete, Delete, Some(Cause::ScaleIn), ClaimOwner::Pod(pod()))]
    #[case(Delete, Delete, Some(Cause::Deletion), ClaimOwner::Set)]
    fn the_retention_matrix(
        #[case] when_deleted: ClaimPolicy,
        #[case] when_scaled: ClaimPolicy,
        #[case] leaves: Option<Cause>,
        #[case] expected: ClaimOwner,
    ) {
        let retention = ClaimRetentionPolicy {
            when_deleted,
            when_scaled,
        };
        assert_eq!(owner(retention, leaves, &pod()), expected);
    }

    #[test]
    fn a_claim_is_made_from_its_template() {
        let claims = build_claims(&nodeset("Delete"), "0");
        assert_eq!(claims.len(), 1);
        let claim = &claims[0].value;
        assert_eq!(claim["metadata"]["name"], "scratch-cpu-0");
        assert_eq!(claim["metadata"]["labels"]["tier"], "fast");
        assert_eq!(claim["metadata"]["labels"]["app.kubernetes.io/instance"], "cpu");
        assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], "set");
        assert_eq!(claim["spec"]["accessModes"], json!(["ReadWriteOnce"]));
        assert!(
            build_claims(&nodeset("Retain"), "0")[0].value["metadata"]
                .get("ownerReferences")
                .is_none()
        );
    }

    #[test]
    fn the_claim_takes_the_place_of_a_volume_of_its_name() {
        let mut spec = json!({ "volumes": [{ "name": "scratch", "emptyDir": {} }, { "name": "x" }] });
        mount(&nodeset("Retain"), "node-1", &mut spec);
        assert_eq!(
            spec["volumes"],
            json!([{ "name": "x" },
                { "name": "scratch", "persistentVolumeClaim": { "claimName": "scratch-cpu-node-1" } }])
        );
    }

    #[test]
    fn what_others_wrote_on_a_claim_stays() {
        let set = nodeset("Retain");
        let theirs = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "other", "controller": true });
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({ "metadata": {
            "name": "scratch-cpu-0",
            "ownerReferences": [theirs, owned_by(&set)],
        } }))
        .unwrap();
        let facts = facts(&set, &pod(), &claim);
        assert_eq!((facts.owner, facts.foreign), (ClaimOwner::Set, true));
        let after = owner_references(&set, &pod(), &claim, &ClaimOwner::Pod(pod()));
        let uids: Vec<&Value> = after.iter().map(|reference| &reference["uid"]).collect();
        assert_eq!(uids, ["other", "pod"]);
    }

    #[test]
    fn a_claim_of_a_pod_that_is_gone_is_on_its_way_out() {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({ "metadata": {
            "name": "scratch-cpu-0",
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "cpu-0", "uid": "old" }],
        } }))
        .unwrap();
        assert!(is_orphan_of_a_pod(&claim, |uid| uid == "new"));
        assert!(!is_orphan_of_a_pod(&claim, |uid| uid == "old"));
    }
}
