//! The rules of each kind that need more than the object itself, a file per kind.

mod accounting;
mod controller;
mod loginset;
mod nodeset;
mod restapi;
mod token;

use keelson_api::validate::{Path, Report};

use crate::{
    namespace_snapshot::{NamespaceSnapshot, is_object_name},
    validate::warn,
};

/// The Controller that an object belongs to may come later; until then nothing happens.
fn controller_exists(name: &str, snapshot: &NamespaceSnapshot, report: &mut Report) {
    let path = Path::spec().field("controllerRef").field("name");
    // A name that none can have is refused by itself.
    if !is_object_name(name) {
        return;
    }
    match snapshot.controller(name) {
        None if !snapshot.known => {}
        None => warn(
            report,
            &path,
            format!("there is no Controller {name:?} in this namespace; nothing happens until there is"),
        ),
        Some(controller) if controller.metadata.deletion_timestamp.is_some() => {
            warn(report, &path, format!("Controller {name:?} is being deleted"));
        }
        Some(_) => {}
    }
}
