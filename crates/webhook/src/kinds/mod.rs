//! The rules of each kind that involve other objects, one file per kind.

mod accounting;
mod controller;
mod loginset;
mod nodeset;
mod restapi;
mod slurmcluster;
mod token;

use keelson_api::validate::{Path, Report};

use crate::{
    namespace_snapshot::{NamespaceSnapshot, is_object_name},
    validate::warn,
};

/// Warns if the Controller does not exist. It may be created later, so this is not an error.
fn controller_exists(name: &str, snapshot: &NamespaceSnapshot, report: &mut Report) {
    let path = Path::spec().field("controllerRef").field("name");
    // An invalid name is rejected elsewhere.
    if !is_object_name(name) {
        return;
    }
    match snapshot.controller(name) {
        None if !snapshot.known => {}
        None => warn(
            report,
            &path,
            format!("Controller {name:?} not found in this namespace; the operator waits until it exists"),
        ),
        Some(controller) if controller.metadata.deletion_timestamp.is_some() => {
            warn(report, &path, format!("Controller {name:?} is being deleted"));
        }
        Some(_) => {}
    }
}
