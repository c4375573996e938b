//! Validation rules of the admission webhook that need only the object itself, its previous version or its siblings. The
//! webhook may be disabled, so `slurm-conf` and the operator also check what must always hold.
//!
//! Each error names the field, the problem and what to write instead. Updates are ratcheted: an invalid object may be
//! updated if the update itself is valid.

mod accounting;
mod annotations;
mod conflicts;
mod controller;
mod loginset;
mod nodeset;
mod path;
pub(crate) mod pods;
pub(crate) mod references;
mod report;
mod restapi;
mod service;
pub mod slurmcluster;
mod text;
mod token;
mod window;

use kube_core::Resource;
use serde::Serialize;
use serde_json::Value;

pub use annotations::{changed_annotations, validate_annotations};
pub use conflicts::conflicts;
pub use path::Path;
pub use report::{Report, Violation, Warning};
pub use window::is_over;

/// The rules of one kind.
pub trait Validate: Resource<DynamicType = ()> + Serialize {
    /// Checks one object.
    fn check(&self, report: &mut Report);

    /// Checks an update for changes to immutable fields. Not called for an unchanged spec.
    fn check_change(&self, _old: &Self, _report: &mut Report) {}
}

/// Validates a new object.
pub fn validate<K: Validate>(object: &K) -> Report {
    let mut report = Report::default();
    object.check(&mut report);
    report
}

/// Validates an update: only errors that the update introduces count. Metadata and finalizers may always change. So may an
/// object that is being deleted, because a rejected update would block its deletion.
pub fn validate_update<K: Validate>(old: &K, new: &K) -> Report {
    if new.meta().deletion_timestamp.is_some() {
        return Report::default();
    }
    let mut report = validate(new);
    let mut change = Report::default();
    new.check_change(old, &mut change);
    // Most updates are valid; the old object is checked only if there is an error.
    if report == Report::default() && change == Report::default() {
        return report;
    }
    let (Ok(old_json), Ok(new_json)) = (serde_json::to_value(old), serde_json::to_value(new)) else {
        return report;
    };
    if old_json.get("spec") == new_json.get("spec") {
        return Report::default();
    }
    let before = validate(old);
    report
        .violations
        .retain(|violation| is_new(violation, &before, &old_json, &new_json));
    report.extend(change);
    report
}

fn is_new(violation: &Violation, before: &Report, old: &Value, new: &Value) -> bool {
    !before.violations.contains(violation) || violation.path.find(old) != violation.path.find(new)
}
