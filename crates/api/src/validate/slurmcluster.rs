//! Rules for SlurmClusters: those of the cluster as a whole, and those of each child, reported at the field that the user
//! wrote.

use kube_core::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::slurmcluster::SlurmCluster;
use crate::slurmcluster::children::{Around, Child, Children, children, file_field};
use crate::validate::path::Path;
use crate::validate::report::Report;
use crate::validate::{Validate, references, validate};
use crate::{Accounting, Controller, LoginSet, NodeSet, RestApi};

impl Validate for SlurmCluster {
    fn check(&self, report: &mut Report) {
        for (path, file) in &self.spec.files {
            if let Some(reference) = &file.config_map_key_ref {
                let field = file_field(path).field("configMapKeyRef");
                references::config_map_key(&field, reference, report);
            }
        }
        let children = match children(self, &Around::default()) {
            Ok(children) => children,
            Err(problems) => return report.extend(problems),
        };
        let namespace = self.namespace().unwrap_or_default();
        check::<Controller>(&children, &namespace, report);
        check::<Accounting>(&children, &namespace, report);
        check::<RestApi>(&children, &namespace, report);
        check::<LoginSet>(&children, &namespace, report);
        check::<NodeSet>(&children, &namespace, report);
    }

    fn check_change(&self, old: &Self, report: &mut Report) {
        let around = Around::default();
        // `check` reports a cluster with errors.
        let (Ok(new), Ok(old)) = (children(self, &around), children(old, &around)) else {
            return;
        };
        let namespace = self.namespace().unwrap_or_default();
        check_change::<Controller>(&old, &new, &namespace, report);
        check_change::<Accounting>(&old, &new, &namespace, report);
        check_change::<RestApi>(&old, &new, &namespace, report);
        check_change::<LoginSet>(&old, &new, &namespace, report);
        check_change::<NodeSet>(&old, &new, &namespace, report);
    }
}

/// A kind that SlurmClusters have as children.
pub trait ChildKind: Validate + Resource<DynamicType = ()> + DeserializeOwned + Clone {
    /// The children of this kind.
    fn among(children: &Children) -> Vec<&Child<Self>>;

    /// The child of this name, as it was before.
    fn before(old: &Children, name: &str, namespace: &str) -> Option<Self> {
        let child = Self::among(old).into_iter().find(|child| child.name == name)?;
        child.object(namespace).ok()
    }
}

impl ChildKind for Controller {
    fn among(children: &Children) -> Vec<&Child<Self>> {
        vec![&children.controller]
    }
}

impl ChildKind for Accounting {
    fn among(children: &Children) -> Vec<&Child<Self>> {
        children.accounting.iter().collect()
    }
}

impl ChildKind for RestApi {
    fn among(children: &Children) -> Vec<&Child<Self>> {
        vec![&children.restapi]
    }
}

impl ChildKind for LoginSet {
    fn among(children: &Children) -> Vec<&Child<Self>> {
        children.loginsets.iter().collect()
    }
}

impl ChildKind for NodeSet {
    fn among(children: &Children) -> Vec<&Child<Self>> {
        children.nodesets.iter().collect()
    }
}

fn check<K: ChildKind>(children: &Children, namespace: &str, report: &mut Report) {
    for child in K::among(children) {
        match child.object(namespace) {
            Ok(object) => adopt(validate(&object), child, report),
            Err(error) => report.refuse(
                &child.origin(&Path::default().join_serde(error.path())),
                format!("cannot be parsed: {}", error.into_inner()),
                "check the API reference",
            ),
        }
    }
}

fn check_change<K: ChildKind>(old: &Children, new: &Children, namespace: &str, report: &mut Report) {
    for child in K::among(new) {
        if let (Some(before), Ok(after)) = (K::before(old, &child.name, namespace), child.object(namespace)) {
            let mut change = Report::default();
            after.check_change(&before, &mut change);
            adopt(change, child, report);
        }
    }
}

/// Adds a child's report, with the paths of the SlurmCluster. What several children inherit is reported once.
pub fn adopt<K: ChildKind>(of_child: Report, child: &Child<K>, report: &mut Report) {
    for mut violation in of_child.violations {
        violation.path = child.origin(&violation.path);
        if !report.violations.contains(&violation) {
            report.violations.push(violation);
        }
    }
    for mut warning in of_child.warnings {
        warning.path = child.origin(&warning.path);
        if !report.warnings.contains(&warning) {
            report.warnings.push(warning);
        }
    }
}
