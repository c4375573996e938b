//! Rules that need nothing but the object itself (and its former self, or its siblings): what the admission webhook goes
//! by. A webhook may be off: what must hold all the same, the writers of `slurm-conf` and the operator check themselves.
//!
//! Each refusal names the field, what is wrong and what to write instead. Updates are ratcheted: an object that was
//! already wrong may be changed as long as the change itself is right.

mod accounting;
mod annotations;
mod conflicts;
mod controller;
mod loginset;
mod nodeset;
mod path;
mod pods;
mod references;
mod report;
mod restapi;
mod service;
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

/// What is right and wrong with one kind.
pub trait Validate: Resource<DynamicType = ()> + Serialize {
    /// Rules on one object.
    fn check(&self, report: &mut Report);

    /// What may not change. Of no effect when the spec did not change.
    fn check_change(&self, _old: &Self, _report: &mut Report) {}
}

/// Judges a new object.
pub fn validate<K: Validate>(object: &K) -> Report {
    let mut report = Report::default();
    object.check(&mut report);
    report
}

/// Judges a change: refused is only what the change makes wrong. Metadata and finalizers may always change, and so may
/// everything of an object that is being deleted, because a refusal there would keep it from going.
pub fn validate_update<K: Validate>(old: &K, new: &K) -> Report {
    if new.meta().deletion_timestamp.is_some() {
        return Report::default();
    }
    let mut report = validate(new);
    let mut change = Report::default();
    new.check_change(old, &mut change);
    // Most changes are right; what was there before is looked at only where something is wrong.
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
