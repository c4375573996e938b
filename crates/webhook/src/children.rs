//! Names of the child objects that the operator creates: they must be valid and not in use by another object. Checked
//! only on create, because names never change.

use std::collections::BTreeMap;
use std::sync::Arc;

use keelson_api::validate::{Path, Report};
use kube::ResourceExt as _;

use crate::{
    namespace_snapshot::NamespaceSnapshot,
    validate::{Rules, refuse},
};

/// Checks the names of a new object's children.
pub fn check<K: Rules>(object: &K, snapshot: &NamespaceSnapshot, report: &mut Report) {
    let name = object.name_any();
    // With generateName, the API server generates the name after admission.
    if name.is_empty() {
        return;
    }
    let path = Path::default().field("metadata").field("name");
    let Some(limit) = K::NAME_MAX else { return };
    if name.len() > limit {
        refuse(
            report,
            &path,
            format!(
                "{name:?} has {} characters, which is too long for the names of its pods and Services",
                name.len()
            ),
            format!("use at most {limit} characters"),
        );
    } else if !object.services().is_empty() && !is_service_name(&name) {
        refuse(
            report,
            &path,
            format!("{name:?} cannot be the prefix of a Service name"),
            "use lower-case letters, digits and '-', starting with a letter",
        );
    }
    let own = object.services();
    if own.is_empty() {
        return;
    }
    let taken = services(object, snapshot);
    for service in own {
        if let Some(owner) = taken.get(&service) {
            refuse(
                report,
                &path,
                format!("its Service {service:?} would conflict with the Service of {owner}"),
                "use another name",
            );
        }
    }
}

/// Unlike most names, a Service name starts with a letter and has no dots.
fn is_service_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// The Services of the Slurm objects in the namespace, with their owners, except those that `reviewed` adopts.
fn services<R: Rules>(reviewed: &R, snapshot: &NamespaceSnapshot) -> BTreeMap<String, String> {
    fn of<R: Rules, K: Rules>(reviewed: &R, objects: &[Arc<K>]) -> impl Iterator<Item = (String, String)> {
        let others = objects
            .iter()
            .filter(|object| !reviewed.adopts(&K::kind(&()), object.meta()));
        others.flat_map(|object| {
            let owner = format!("{} {}", K::kind(&()), object.name_any());
            object
                .services()
                .into_iter()
                .map(move |service| (service, owner.clone()))
        })
    }
    of(reviewed, &snapshot.controllers)
        .chain(of(reviewed, &snapshot.accountings))
        .chain(of(reviewed, &snapshot.restapis))
        .chain(of(reviewed, &snapshot.loginsets))
        .collect()
}
