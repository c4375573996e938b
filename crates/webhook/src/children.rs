//! Names of the objects that the operator makes from an object: they must be possible, and nobody else's. Only asked
//! when an object is created, because a name never changes.

use std::collections::BTreeMap;

use keelson_api::validate::{Path, Report};
use kube::ResourceExt as _;

use crate::{
    namespace_snapshot::NamespaceSnapshot,
    validate::{Rules, refuse},
};

/// Judges the names that a new object's children would have.
pub fn check<K: Rules>(object: &K, snapshot: &NamespaceSnapshot, report: &mut Report) {
    let name = object.name_any();
    // The API server makes up the name after it has asked us.
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
                "{name:?} has {} characters, too many for the names of its pods and Services",
                name.len()
            ),
            format!("write at most {limit}"),
        );
    } else if !object.services().is_empty() && !is_service_name(&name) {
        refuse(
            report,
            &path,
            format!("{name:?} cannot be the start of a Service's name"),
            "write lower-case letters, digits and '-', starting with a letter",
        );
    }
    let own = object.services();
    if own.is_empty() {
        return;
    }
    let taken = services(snapshot);
    for service in own {
        if let Some(owner) = taken.get(&service) {
            refuse(
                report,
                &path,
                format!("its Service would be called {service:?}, as that of {owner} is"),
                "give it another name",
            );
        }
    }
}

/// Other than most names, a Service's begins with a letter and has no dots.
fn is_service_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// The Services of the namespace that belong to objects of ours, and whose they are.
fn services(snapshot: &NamespaceSnapshot) -> BTreeMap<String, String> {
    fn of<K: Rules>(objects: &[std::sync::Arc<K>]) -> impl Iterator<Item = (String, String)> {
        objects.iter().flat_map(|object| {
            let owner = format!("{} {}", K::kind(&()), object.name_any());
            object
                .services()
                .into_iter()
                .map(move |service| (service, owner.clone()))
        })
    }
    of(&snapshot.controllers)
        .chain(of(&snapshot.accountings))
        .chain(of(&snapshot.restapis))
        .chain(of(&snapshot.loginsets))
        .collect()
}
