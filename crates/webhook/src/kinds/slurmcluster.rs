//! SlurmCluster: the rules of its children, as if they existed already.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use keelson_api::{
    Accounting, Controller, LoginSet, NodeSet, RestApi, SlurmCluster,
    slurmcluster::children::{Around, Children, children, database_name, workers_of},
    validate::{
        Path, Report,
        slurmcluster::{ChildKind, adopt},
    },
};
use keelson_runtime::ownership::is_marked;
use kube::{ResourceExt as _, api::ObjectMeta};

use crate::{
    conf,
    namespace_snapshot::{NamespaceSnapshot, listed},
    validate::{Rules, refuse, warn},
};

impl Rules for SlurmCluster {
    const KIND: &'static str = "slurmcluster";
    /// Its Controller has the same name.
    const NAME_MAX: Option<usize> = <Controller as Rules>::NAME_MAX;

    fn services(&self) -> Vec<String> {
        let mut all: Vec<String> = self
            .embedded_database()
            .map(|_| database_name(self))
            .into_iter()
            .collect();
        if let Ok(children) = children(self, &Around::default()) {
            all.extend(services::<Controller>(&children));
            all.extend(services::<Accounting>(&children));
            all.extend(services::<RestApi>(&children));
            all.extend(services::<LoginSet>(&children));
        }
        all
    }

    /// Children of a SlurmCluster of this name that was deleted without them.
    fn adopts(&self, kind: &str, object: &ObjectMeta) -> bool {
        let has_owner = object.owner_references.iter().flatten();
        let has_owner = has_owner.into_iter().any(|owner| owner.controller == Some(true));
        let Ok(children) = children(self, &Around::default()) else {
            return false;
        };
        let name = object.name.as_deref().unwrap_or_default();
        !has_owner
            && is_marked(object)
            && (is_among::<Controller>(&children, kind, name)
                || is_among::<Accounting>(&children, kind, name)
                || is_among::<RestApi>(&children, kind, name)
                || is_among::<LoginSet>(&children, kind, name))
    }

    fn beside(&self, snapshot: &NamespaceSnapshot, report: &mut Report) {
        let around = Around {
            other_nodesets: snapshot.known.then(|| other_nodesets(self, snapshot)),
            ..Around::default()
        };
        if let Err(problems) = children(self, &around) {
            // The field rules report the rest.
            let known = keelson_api::validate::validate(self);
            report.violations.extend(
                problems
                    .violations
                    .into_iter()
                    .filter(|violation| !known.violations.contains(violation)),
            );
            return;
        }
        let plain = without_partition_options(self);
        let Ok(children) = children(&plain, &around) else {
            return;
        };
        partition_options(self, snapshot, report);
        too_long::<LoginSet>(&children, report);
        too_long::<NodeSet>(&children, report);
        let with_children = with_children(self, &children, snapshot);
        let namespace = self.namespace().unwrap_or_default();
        beside::<Controller>(&children, &namespace, &with_children, report);
        beside::<Accounting>(&children, &namespace, &with_children, report);
        beside::<RestApi>(&children, &namespace, &with_children, report);
        beside::<LoginSet>(&children, &namespace, &with_children, report);
        beside::<NodeSet>(&children, &namespace, &with_children, report);
    }

    fn on_update(old: &Self, new: &Self, report: &mut Report) {
        let around = Around::default();
        let (Ok(before), Ok(after)) = (children(old, &around), children(new, &around)) else {
            return;
        };
        on_update::<Controller>(&before, &after, report);
        on_update::<Accounting>(&before, &after, report);
        on_update::<RestApi>(&before, &after, report);
        on_update::<LoginSet>(&before, &after, report);
        on_update::<NodeSet>(&before, &after, report);
        removed::<LoginSet>(&before, &after, report);
        removed::<NodeSet>(&before, &after, report);
    }

    fn on_delete(&self, snapshot: &NamespaceSnapshot) -> Vec<String> {
        let name = self.name_any();
        let mut notes = vec![format!(
            "SlurmCluster {name} will be deleted with all its workers and logins, after running jobs have ended"
        )];
        let others: Vec<_> = snapshot
            .nodesets
            .iter()
            .filter(|nodeset| belongs(self, nodeset) && !is_child(self, &nodeset.name_any()))
            .collect();
        if !others.is_empty() {
            notes.push(format!(
                "SlurmCluster {name} will not be gone until these NodeSets are deleted, which are not its own: {}",
                listed(&others)
            ));
        }
        notes
    }
}

fn belongs(cluster: &SlurmCluster, nodeset: &NodeSet) -> bool {
    nodeset.spec.controller_ref.name == cluster.name_any()
}

fn is_child(cluster: &SlurmCluster, nodeset: &str) -> bool {
    workers_of(cluster, nodeset).is_some_and(|key| cluster.spec.node_sets.contains_key(key))
}

/// The Slurm names of NodeSets that belong to the cluster, but not to this object.
fn other_nodesets(cluster: &SlurmCluster, snapshot: &NamespaceSnapshot) -> BTreeSet<String> {
    snapshot
        .nodesets
        .iter()
        .filter(|nodeset| belongs(cluster, nodeset) && !is_child(cluster, &nodeset.name_any()))
        .map(|nodeset| nodeset.slurm_name())
        .collect()
}

/// The namespace with these children in it.
fn with_children(
    cluster: &SlurmCluster,
    children: &Children,
    snapshot: &NamespaceSnapshot,
) -> NamespaceSnapshot {
    fn put<K: ChildKind>(namespace: &str, children: &Children, objects: &mut Vec<Arc<K>>) {
        for child in K::among(children) {
            objects.retain(|object| object.name_any() != child.name);
            objects.extend(child.object(namespace).ok().map(Arc::new));
        }
    }
    let namespace = cluster.namespace().unwrap_or_default();
    let mut with = snapshot.clone();
    put::<Controller>(&namespace, children, &mut with.controllers);
    put::<Accounting>(&namespace, children, &mut with.accountings);
    put::<RestApi>(&namespace, children, &mut with.restapis);
    put::<LoginSet>(&namespace, children, &mut with.loginsets);
    put::<NodeSet>(&namespace, children, &mut with.nodesets);
    with
}

fn is_among<K: ChildKind>(children: &Children, kind: &str, name: &str) -> bool {
    K::kind(&()) == kind && K::among(children).into_iter().any(|child| child.name == name)
}

fn services<K: ChildKind + Rules>(children: &Children) -> Vec<String> {
    let objects = K::among(children)
        .into_iter()
        .filter_map(|child| child.object("").ok());
    objects.flat_map(|object: K| object.services()).collect()
}

/// The cluster for the check of slurm.conf: problems with options of partitions would be reported at `controller.extraConf`,
/// where the user did not write them.
fn without_partition_options(cluster: &SlurmCluster) -> SlurmCluster {
    let mut plain = cluster.clone();
    for part in plain.spec.partitions.iter_mut().flat_map(BTreeMap::values_mut) {
        part.config = None;
    }
    plain
}

fn partition_options(cluster: &SlurmCluster, snapshot: &NamespaceSnapshot, report: &mut Report) {
    for (name, part) in cluster.spec.partitions.iter().flatten() {
        let path = Path::spec().field("partitions").field(name).field("config");
        if let Some(config) = &part.config {
            conf::partition_config(&path, config, snapshot, report);
        }
    }
}

/// Checks that names can be derived from the names of children. The others have the name of the cluster.
fn too_long<K: ChildKind + Rules>(children: &Children, report: &mut Report) {
    for child in K::among(children) {
        if K::NAME_MAX.is_some_and(|limit| child.name.len() > limit) {
            refuse(
                report,
                &child.field,
                format!(
                    "its {} would be named {}, which is too long",
                    K::kind(&()),
                    child.name
                ),
                "use a shorter name",
            );
        }
    }
}

/// Checks a child's rules that involve other objects.
fn beside<K: ChildKind + Rules>(
    children: &Children,
    namespace: &str,
    snapshot: &NamespaceSnapshot,
    report: &mut Report,
) {
    for child in K::among(children) {
        // The field rules report a child that cannot be decoded.
        let Ok(object) = child.object(namespace) else {
            continue;
        };
        let mut of_child = Report::default();
        object.beside(snapshot, &mut of_child);
        adopt(of_child, child, report);
    }
}

fn on_update<K: ChildKind + Rules>(before: &Children, after: &Children, report: &mut Report) {
    for child in K::among(after) {
        if let (Some(before), Ok(after)) = (K::before(before, &child.name, ""), child.object("")) {
            let mut of_child = Report::default();
            K::on_update(&before, &after, &mut of_child);
            adopt(of_child, child, report);
        }
    }
}

/// Warns about children that the update removes, as about a deletion.
fn removed<K: ChildKind + Rules>(before: &Children, after: &Children, report: &mut Report) {
    let snapshot = NamespaceSnapshot::default();
    for child in K::among(before) {
        let stays = K::among(after).iter().any(|other| other.name == child.name);
        let Some(object) = child.object("").ok().filter(|_: &K| !stays) else {
            continue;
        };
        for note in object.on_delete(&snapshot) {
            warn(report, &child.field, note);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::its_child("Controller", json!({ "name": "slurm" }), true)]
    #[case::its_login("LoginSet", json!({ "name": "slurm-login-users" }), true)]
    #[case::another_kind("Accounting", json!({ "name": "slurm" }), false)]
    #[case::another_login("LoginSet", json!({ "name": "slurm-login-others" }), false)]
    #[case::of_somebody("Controller", json!({ "name": "slurm", "annotations": {} }), false)]
    #[case::of_another_owner("Controller", json!({ "name": "slurm", "ownerReferences": [{ "apiVersion": "keelson.dev/v1alpha1",
        "kind": "SlurmCluster", "name": "other", "uid": "u", "controller": true }] }), false)]
    fn only_children_without_an_owner_are_adopted(
        #[case] kind: &str,
        #[case] metadata: Value,
        #[case] expected: bool,
    ) {
        let cluster: SlurmCluster = serde_json::from_value(
            json!({ "metadata": { "name": "slurm" }, "spec": { "login": { "users": {} } } }),
        )
        .unwrap();
        let mut marked = json!({ "annotations": { "keelson.dev/applied-hash": "1" } });
        marked
            .as_object_mut()
            .unwrap()
            .extend(metadata.as_object().cloned().unwrap());
        let metadata: ObjectMeta = serde_json::from_value(marked).unwrap();
        assert_eq!(cluster.adopts(kind, &metadata), expected);
    }
}
