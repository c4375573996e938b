//! The revision history of worker pods. Pure.
//!
//! A revision is one `ControllerRevision`, identified by its data: a rollback finds the earlier revision with its hash,
//! so pods that still have this hash are up to date again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::apps::v1::ControllerRevision;
use keelson_api::{
    NodeSet,
    well_known::{container, env, label},
};
use keelson_runtime::apply::{Desired, hash};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::build::worker_labels;
use crate::children::metadata::{Metadata, owned_by};

/// The data field of our revisions that contains the inputs of a worker. Slinky's revisions have `spec` instead.
const WORKER: &str = "worker";

/// Labels that identify the chart: a new chart version must not restart workers.
const COSMETIC: [&str; 4] = [
    label::CHART,
    label::APP_VERSION,
    label::MANAGED_BY,
    label::PART_OF,
];

/// The latest revision, and the writes that record it.
#[derive(Debug, Clone)]
pub struct History {
    /// Hash of the latest revision, as in the label of pods.
    pub newest: String,
    /// Hashes of Slinky revisions whose pods equal the latest in every field that Slinky records.
    pub equal: BTreeSet<String>,
    /// Hashes of revisions whose workers register with the same node configuration as the latest.
    pub same_node: BTreeSet<String>,
    pub collisions: i32,
    pub write: Option<Write>,
    /// Revisions beyond `revisionHistoryLimit`.
    pub expired: Vec<Arc<ControllerRevision>>,
}

#[derive(Debug, Clone)]
pub struct Write {
    /// The existing revision to replace, which is not the latest or not ours. The API server refuses patches of
    /// revisions because it compares the data byte by byte with its own encoding. Pods refer to a revision only by
    /// hash, so it can be deleted and created again.
    pub instead_of: Option<Arc<ControllerRevision>>,
    pub revision: Desired<ControllerRevision>,
}

/// Finds or builds the revision of these inputs. `known` are the NodeSet's revisions and those that occupy one of its
/// names.
pub fn settle(
    nodeset: &NodeSet,
    inputs: &Value,
    known: &[Arc<ControllerRevision>],
    in_use: &BTreeSet<String>,
) -> History {
    let data = json!({ WORKER: inputs });
    let is_it = |revision: &ControllerRevision| revision.data.as_ref().is_some_and(|found| found.0 == data);
    let top = known.iter().map(|revision| revision.revision).max().unwrap_or(0);
    let before = nodeset
        .status
        .as_ref()
        .and_then(|status| status.collision_count)
        .unwrap_or(0);
    let (collisions, newest, write) = if let Some(found) = known.iter().find(|revision| is_it(revision)) {
        let hash = hash_of(found);
        let renew = (found.revision < top || !is_of(nodeset, found)).then(|| Write {
            instead_of: Some(Arc::clone(found)),
            revision: build(nodeset, &hash, &data, top + 1),
        });
        (before, hash, renew)
    } else {
        let taken: BTreeSet<String> = known.iter().map(|revision| revision.name_any()).collect();
        let (collisions, hash) = (before..i32::MAX)
            .map(|collisions| (collisions, hash_with(inputs, collisions)))
            .find(|(_, hash)| !taken.contains(&name(nodeset, hash)))
            .unwrap_or((before, hash_with(inputs, before)));
        let create = Write {
            instead_of: None,
            revision: build(nodeset, &hash, &data, top + 1),
        };
        (collisions, hash, Some(create))
    };
    let registers_as = registration(inputs);
    let same_node = known
        .iter()
        .filter(|revision| {
            let data = revision.data.as_ref().and_then(|data| data.0.get(WORKER));
            data.is_some_and(|inputs| registration(inputs) == registers_as)
        })
        .map(|revision| hash_of(revision))
        .collect();
    let theirs = comparable(&peer_fields(nodeset));
    let equal = known
        .iter()
        .filter(|revision| {
            let data = revision.data.as_ref().map(|data| &data.0);
            let spec = data
                .filter(|data| data.get(WORKER).is_none())
                .and_then(|data| data.get("spec"));
            spec.is_some_and(|spec| comparable(spec) == theirs)
        })
        .map(|revision| hash_of(revision))
        .collect();
    History {
        expired: expired(nodeset, known, &newest, in_use),
        newest,
        equal,
        same_node,
        collisions,
        write,
    }
}

/// Returns true if a known revision has exactly these inputs.
pub fn is_known(inputs: &Value, known: &[Arc<ControllerRevision>]) -> bool {
    let of = |revision: &Arc<ControllerRevision>| {
        let data = revision.data.as_ref();
        data.is_some_and(|data| data.0.get(WORKER) == Some(inputs))
    };
    known.iter().any(of)
}

/// Returns the hashes of Secrets that known revisions record.
pub fn secret_names(known: &[Arc<ControllerRevision>]) -> Vec<String> {
    let inputs = known
        .iter()
        .filter_map(|revision| revision.data.as_ref()?.0.get(WORKER));
    inputs
        .flat_map(|inputs| [inputs.get("slurmKey"), inputs.get("sssd")])
        .filter_map(|name| Some(name?.as_str()?.to_owned()))
        .collect()
}

/// Returns the inputs that a worker registers with; Slurm creates the node record from them.
fn registration(inputs: &Value) -> Value {
    let containers = inputs.pointer("/spec/containers").and_then(Value::as_array);
    let is_slurmd = |found: &&Value| found.get("name").is_some_and(|name| name == container::SLURMD);
    let slurmd = containers.into_iter().flatten().find(is_slurmd);
    let env = slurmd
        .and_then(|slurmd| slurmd.get("env"))
        .and_then(Value::as_array);
    let limits: Vec<&Value> = env
        .into_iter()
        .flatten()
        .filter(|variable| {
            let name = variable.get("name").and_then(Value::as_str);
            name.is_some_and(|name| [env::POD_CPUS, env::POD_MEMORY].contains(&name))
        })
        .collect();
    json!({ "args": slurmd.and_then(|slurmd| slurmd.get("args")), "limits": limits })
}

fn name(nodeset: &NodeSet, hash: &str) -> String {
    format!("{}-{hash}", nodeset.name_any())
}

fn hash_with(inputs: &Value, collisions: i32) -> String {
    let full = if collisions == 0 {
        hash(inputs)
    } else {
        hash(&json!([inputs, collisions]))
    };
    full.chars().take(10).collect()
}

fn hash_of(revision: &ControllerRevision) -> String {
    let label = revision.labels().get(label::REVISION_HASH).cloned();
    label.unwrap_or_else(|| {
        revision
            .name_any()
            .rsplit('-')
            .next()
            .unwrap_or_default()
            .to_owned()
    })
}

fn build(nodeset: &NodeSet, hash: &str, data: &Value, number: i64) -> Desired<ControllerRevision> {
    let metadata = Metadata::default()
        .with_labels(worker_labels(nodeset))
        .with_labels([(label::REVISION_HASH, hash.to_owned())]);
    let namespace = nodeset.namespace().unwrap_or_default();
    Desired::new(json!({
        "metadata": metadata.of_object(&namespace, &name(nodeset, hash), &[owned_by(nodeset)]),
        "data": data,
        "revision": number,
    }))
}

fn is_of(nodeset: &NodeSet, revision: &ControllerRevision) -> bool {
    revision
        .owner_references()
        .iter()
        .any(|owner| Some(&owner.uid) == nodeset.metadata.uid.as_ref())
}

/// Returns old revisions beyond the limit, except those that pods or outdated Slurm records still use.
fn expired(
    nodeset: &NodeSet,
    known: &[Arc<ControllerRevision>],
    newest: &str,
    in_use: &BTreeSet<String>,
) -> Vec<Arc<ControllerRevision>> {
    let limit = usize::try_from(nodeset.spec.revision_history_limit).unwrap_or(0);
    let mut old: Vec<&Arc<ControllerRevision>> = known
        .iter()
        .filter(|revision| is_of(nodeset, revision))
        .filter(|revision| {
            let hash = hash_of(revision);
            hash != newest && !in_use.contains(&hash)
        })
        .collect();
    old.sort_by_key(|revision| std::cmp::Reverse((revision.revision, revision.name_any())));
    old.into_iter().skip(limit).cloned().collect()
}

/// Returns the fields that Slinky records in a revision.
fn peer_fields(nodeset: &NodeSet) -> Value {
    let spec = &nodeset.spec;
    json!({
        "template": spec.template,
        "ordinalPadding": spec.ordinal_padding,
        "oversubscribeNode": spec.oversubscribe_node,
        "slurmd": spec.slurmd,
        "extraConf": spec.extra_conf,
        "logfile": spec.logfile,
        "ssh": spec.ssh,
    })
}

/// Returns the part of a Slinky revision that affects pods.
fn comparable(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for map in ["/template/metadata/labels", "/template/metadata/annotations"] {
        if let Some(Value::Object(map)) = spec.pointer_mut(map) {
            map.retain(|key, _| !COSMETIC.contains(&key.as_str()));
        }
    }
    normalised(&spec)
}

/// Removes empty values and patch directives: Slinky writes empty objects, nulls, zeros and `$patch`.
fn normalised(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .filter(|(key, _)| *key != "$patch")
                .map(|(key, value)| (key.clone(), normalised(value)))
                .filter(|(_, value)| !says_nothing(value))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(normalised).collect()),
        other => other.clone(),
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(yes) => !yes,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Returns the user's labels and annotations that affect pods, without those that identify the chart.
pub fn shaping(map: Option<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let map = map.unwrap_or_default().into_iter();
    map.filter(|(key, _)| !COSMETIC.contains(&key.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    fn nodeset() -> NodeSet {
        serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1",
            "kind": "NodeSet",
            "metadata": { "name": "cpu", "namespace": "slurm", "uid": "set" },
            "spec": {
                "controllerRef": { "name": "slurm" },
                "revisionHistoryLimit": 1,
                "template": { "metadata": { "labels": { "a": "b" } }, "spec": { "hostname": "cpu-" } },
                "slurmd": { "image": "slurmd:1" },
            },
        }))
        .unwrap()
    }

    fn stored(write: Option<Write>) -> Arc<ControllerRevision> {
        Arc::new(serde_json::from_value(write.unwrap().revision.value).unwrap())
    }

    fn none() -> BTreeSet<String> {
        BTreeSet::new()
    }

    #[test]
    fn going_back_gives_the_old_hash_back_and_makes_it_the_newest() {
        let set = nodeset();
        let (one, two) = (json!({ "image": "1" }), json!({ "image": "2" }));
        let first = settle(&set, &one, &[], &none());
        let first_stored = stored(first.write);
        assert_eq!((first_stored.revision, first.collisions), (1, 0));
        assert_eq!(first_stored.name_any(), format!("cpu-{}", first.newest));

        let second = settle(&set, &two, &[Arc::clone(&first_stored)], &none());
        let second_stored = stored(second.write);
        assert_eq!(second_stored.revision, 2);
        assert!(second.newest != first.newest);

        let known = [first_stored, second_stored];
        let back = settle(&set, &one, &known, &none());
        assert_eq!(back.newest, first.newest);
        assert_eq!(stored(back.write).revision, 3);
        assert!(settle(&set, &two, &known, &none()).write.is_none(), "nothing new");
    }

    #[test]
    fn a_name_that_another_revision_has_is_not_taken_twice() {
        let set = nodeset();
        let first = settle(&set, &json!(1), &[], &none());
        let mut other = ControllerRevision::clone(&stored(first.write));
        other.data = Some(k8s_openapi::apimachinery::pkg::runtime::RawExtension(
            json!({ "worker": 9 }),
        ));
        let again = settle(&set, &json!(1), &[Arc::new(other)], &none());
        assert_eq!(again.collisions, 1);
        assert!(again.newest != first.newest);
    }

    #[test]
    fn history_is_kept_to_its_limit_and_as_long_as_pods_have_it() {
        let set = nodeset();
        let mut known: Vec<Arc<ControllerRevision>> = vec![];
        for i in 0..5 {
            known.push(stored(settle(&set, &json!({ "i": i }), &known, &none()).write));
        }
        let used = hash_of(&known[0]);
        let now = settle(&set, &json!({ "i": 4 }), &known, &BTreeSet::from([used]));
        // Of 0 to 4: 4 is the newest, 0 is in use, 3 is within the limit.
        let gone: Vec<i64> = now.expired.iter().map(|revision| revision.revision).collect();
        assert_eq!(gone, [3, 2]);
    }

    #[test]
    fn an_orphaned_revision_is_taken_over() {
        let set = nodeset();
        let mut orphan = ControllerRevision::clone(&stored(settle(&set, &json!(1), &[], &none()).write));
        orphan.metadata.owner_references = None;
        let write = settle(&set, &json!(1), &[Arc::new(orphan)], &none()).write;
        assert!(write.as_ref().unwrap().instead_of.is_some());
        assert_eq!(stored(write).owner_references()[0].uid, "set");
    }

    /// Returns a revision as Slinky stores it, with patch directives, empty objects and zeros.
    fn of_the_peer(image: &str) -> Arc<ControllerRevision> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {
                    "name": "cpu-5d8f7b9c4", "namespace": "slurm",
                    "labels": { "a": "b", "controller.kubernetes.io/hash": "5d8f7b9c4" },
                    "ownerReferences": [{ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
                        "name": "cpu", "uid": "set", "controller": true }],
                },
                "data": { "spec": {
                    "template": { "$patch": "replace",
                        "metadata": { "labels": { "a": "b", "helm.sh/chart": "slurm-1.3.0" } },
                        "spec": { "hostname": "cpu-", "containers": null } },
                    "ordinalPadding": 0, "oversubscribeNode": false,
                    "slurmd": { "$patch": "replace", "image": image, "resources": {} },
                    "logfile": { "$patch": "replace", "name": "", "resources": {} },
                    "ssh": { "$patch": "replace", "enabled": false, "sssdConfRef": { "key": "" } },
                } },
                "revision": 3,
            }))
            .unwrap(),
        )
    }

    #[test]
    fn pods_of_the_peer_are_current_when_its_revision_says_the_same() {
        let set = nodeset();
        let history = settle(
            &set,
            &json!({ "image": "1" }),
            &[of_the_peer("slurmd:1")],
            &none(),
        );
        assert_eq!(history.equal, BTreeSet::from(["5d8f7b9c4".to_owned()]));
        assert_eq!(stored(history.write).revision, 4);
        let other = settle(
            &set,
            &json!({ "image": "1" }),
            &[of_the_peer("slurmd:0")],
            &none(),
        );
        assert_eq!(other.equal, none());
    }
}
