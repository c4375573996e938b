//! Rules on the window of a scheduled update, which becomes a Slurm reservation of the workers by name.

use std::time::Duration;

use jiff::Timestamp;

use crate::nodeset::{NodeSet, ScheduledUpdate, UpdateStrategyType};
use crate::validate::path::Path;
use crate::validate::report::Report;
use crate::validate::text;

/// A window may begin at once although its time has passed.
const FORCE_START: &str = "FORCE_START";
const TIME_FLOAT: &str = "TIME_FLOAT";

/// Flags that a reservation of named nodes is made with; Slurm lets one of the recurring ones stand.
const RECURRING: [&str; 5] = ["HOURLY", "DAILY", "WEEKLY", "WEEKDAY", "WEEKEND"];
const OTHERS: [&str; 12] = [
    "MAINT",
    "IGNORE_JOBS",
    FORCE_START,
    TIME_FLOAT,
    "FLEX",
    "OVERLAP",
    "STATIC",
    "ANY_NODES",
    "PURGE_COMP",
    "NO_HOLD_JOBS_AFTER_END",
    "MAGNETIC",
    "USER_DELETE",
];

/// Flags of Slurm's that no such reservation can be made with, and why.
const IMPOSSIBLE: [(&str, &str); 7] = [
    (
        "REPLACE",
        "goes with a number of nodes, and this window has its workers by name",
    ),
    (
        "REPLACE_DOWN",
        "goes with a number of nodes, and this window has its workers by name",
    ),
    (
        "PART_NODES",
        "goes with a partition, and this window has its workers by name",
    ),
    ("SPEC_NODES", "is set by Slurm itself"),
    ("ALL_NODES", "is set by Slurm itself"),
    (
        "DURATION_PLUS",
        "changes a reservation that is there, and makes none",
    ),
    (
        "DURATION_MINUS",
        "changes a reservation that is there, and makes none",
    ),
];

pub(crate) fn check(path: &Path, scheduled: &ScheduledUpdate, report: &mut Report) {
    text::duration(
        &path.field("duration"),
        &scheduled.duration,
        Duration::from_mins(1),
        report,
    );
    if let Some(time) = scheduled.start_time.as_ref().filter(|time| time.parse().is_err()) {
        report.refuse(
            &path.field("startTime"),
            format!("{:?} is not a time", time.0),
            "write RFC 3339, such as 2026-11-15T22:00:00Z",
        );
    }
    let flags = flags(scheduled);
    for (index, flag) in flags.iter().enumerate() {
        one(&path.field("flags").index(index), flag, report);
    }
    let recurring: Vec<&str> = RECURRING
        .into_iter()
        .filter(|flag| flags.iter().any(|written| written == flag))
        .collect();
    let both = |problem: String, report: &mut Report| {
        report.refuse(&path.field("flags"), problem, "leave all but one of them out");
    };
    if recurring.len() > 1 {
        both(
            format!("Slurm takes one of {} and no more", recurring.join(", ")),
            report,
        );
    }
    if let Some(recurring) = recurring.first()
        && flags.iter().any(|flag| flag == TIME_FLOAT)
    {
        both(
            format!("Slurm takes {TIME_FLOAT} or {recurring}, but not both"),
            report,
        );
    }
}

/// As Slurm gets them.
fn flags(scheduled: &ScheduledUpdate) -> Vec<String> {
    let flags = scheduled.flags.iter().flatten();
    flags.map(|flag| flag.to_uppercase()).collect()
}

fn one(path: &Path, flag: &str, report: &mut Report) {
    let works = RECURRING.contains(&flag) || OTHERS.contains(&flag);
    let impossible = IMPOSSIBLE.iter().find(|(name, _)| *name == flag);
    let why = match impossible {
        Some((_, why)) => Some(*why),
        None if flag.starts_with("NO_") && !works => Some("takes a flag from a reservation that has it"),
        None => None,
    };
    if flag.is_empty() || !flag.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        report.refuse(
            path,
            format!("{flag:?} is not a reservation flag"),
            "write a flag of Slurm's, such as FLEX",
        );
    } else if let Some(why) = why {
        report.refuse(path, format!("{flag} {why}"), "leave it out");
    } else if flag == TIME_FLOAT {
        report.warn(
            path,
            "a window that moves with the clock never opens; leave TIME_FLOAT out",
        );
    } else if !works {
        // A newer Slurm may know it.
        report.warn(
            path,
            format!("{flag} is no reservation flag that is known here: check its spelling; Slurm makes no reservation with a flag that it does not know, and no worker is updated"),
        );
    }
}

/// Whether the window of a NodeSet that is updated in one is over before there is a reservation: one that is made anew
/// would never open. It is told and not refused, as a manifest that is kept for years says the same every time.
pub fn is_over(nodeset: &NodeSet, now: Timestamp) -> Report {
    let mut report = Report::default();
    let Some(strategy) = &nodeset.spec.update_strategy else {
        return report;
    };
    let Some(scheduled) = strategy
        .scheduled_update
        .as_ref()
        .filter(|_| strategy.kind == UpdateStrategyType::ScheduledUpdate)
    else {
        return report;
    };
    let forced = flags(scheduled).iter().any(|flag| flag == FORCE_START);
    let start = scheduled.start_time.as_ref().and_then(|time| time.parse().ok());
    if !forced && start.is_some_and(|start| start <= now) {
        let path = Path::spec().field("updateStrategy").field("scheduledUpdate");
        report.warn(
            &path.field("startTime"),
            "has passed: without a reservation that is there already no window opens, and no worker is updated; write a later time",
        );
    }
    report
}
