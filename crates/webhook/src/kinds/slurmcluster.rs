//! SlurmCluster: the rules of its children, as if they existed already.

use std::collections::BTreeSet;
use std::sync::Arc;

use keelson_api::{
    Accounting, Controller, LoginSet, NodeSet, RestApi, SlurmCluster,
    slurmcluster::children::{Around, Children, children, database_name},
    validate::{
        Report,
        slurmcluster::{ChildKind, adopt},
    },
};
use kube::ResourceExt as _;

use crate::{
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

    fn beside(&self, snapshot: &NamespaceSnapshot, report: &mut Report) {
        let around = Around {
            other_nodesets: snapshot.known.then(|| other_nodesets(self, snapshot)),
            ..Around::default()
        };
        let children = match children(self, &around) {
            Ok(children) => children,
            Err(problems) => {
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
        };
        let with_children = with_children(self, &children, snapshot);
        beside::<Controller>(&children, &with_children, report);
        beside::<Accounting>(&children, &with_children, report);
        beside::<RestApi>(&children, &with_children, report);
        beside::<LoginSet>(&children, &with_children, report);
        beside::<NodeSet>(&children, &with_children, report);
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
    let prefix = format!("{}-worker-", cluster.name_any());
    nodeset
        .strip_prefix(&prefix)
        .is_some_and(|key| cluster.spec.node_sets.contains_key(key))
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

fn services<K: ChildKind + Rules>(children: &Children) -> Vec<String> {
    let objects = K::among(children)
        .into_iter()
        .filter_map(|child| child.object("").ok());
    objects.flat_map(|object: K| object.services()).collect()
}

/// Checks a child's rules that involve other objects, and that names can be derived from its name.
fn beside<K: ChildKind + Rules>(children: &Children, snapshot: &NamespaceSnapshot, report: &mut Report) {
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
        // The field rules report a child that cannot be decoded.
        let Ok(object) = child.object("") else { continue };
        let mut of_child = Report::default();
        object.beside(snapshot, &mut of_child);
        adopt(of_child, &child.field, report);
    }
}

fn on_update<K: ChildKind + Rules>(before: &Children, after: &Children, report: &mut Report) {
    for child in K::among(after) {
        if let (Some(before), Ok(after)) = (K::before(before, &child.name, ""), child.object("")) {
            let mut of_child = Report::default();
            K::on_update(&before, &after, &mut of_child);
            adopt(of_child, &child.field, report);
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
