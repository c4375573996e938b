//! Rules for the maintenance window of a scheduled update, for which the operator creates a Slurm reservation of the workers
//! by name.

use std::time::Duration;

use jiff::Timestamp;

use crate::nodeset::{NodeSet, ScheduledUpdate, UpdateStrategyType};
use crate::validate::path::Path;
use crate::validate::report::Report;
use crate::validate::text;

/// Slurm starts the reservation at once even if its start time has passed.
const FORCE_START: &str = "FORCE_START";
const TIME_FLOAT: &str = "TIME_FLOAT";

/// Valid flags of a reservation of named nodes. Slurm accepts at most one of the recurring ones.
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

/// Slurm flags that cannot be used for such a reservation, and why.
const IMPOSSIBLE: [(&str, &str); 7] = [
    (
        "REPLACE",
        "requires a node count, but the reservation names its nodes",
    ),
    (
        "REPLACE_DOWN",
        "requires a node count, but the reservation names its nodes",
    ),
    (
        "PART_NODES",
        "requires a partition, but the reservation names its nodes",
    ),
    ("SPEC_NODES", "is set by Slurm itself"),
    ("ALL_NODES", "is set by Slurm itself"),
    ("DURATION_PLUS", "only changes an existing reservation"),
    ("DURATION_MINUS", "only changes an existing reservation"),
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
            format!("{:?} is not a valid time", time.0),
            "use RFC 3339, such as 2026-11-15T22:00:00Z",
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
        report.refuse(&path.field("flags"), problem, "use only one of them");
    };
    if recurring.len() > 1 {
        both(
            format!("Slurm accepts only one of {}", recurring.join(", ")),
            report,
        );
    }
    if let Some(recurring) = recurring.first()
        && flags.iter().any(|flag| flag == TIME_FLOAT)
    {
        both(
            format!("Slurm accepts {TIME_FLOAT} or {recurring}, but not both"),
            report,
        );
    }
}

/// The flags as sent to Slurm.
fn flags(scheduled: &ScheduledUpdate) -> Vec<String> {
    let flags = scheduled.flags.iter().flatten();
    flags.map(|flag| flag.to_uppercase()).collect()
}

fn one(path: &Path, flag: &str, report: &mut Report) {
    let works = RECURRING.contains(&flag) || OTHERS.contains(&flag);
    let impossible = IMPOSSIBLE.iter().find(|(name, _)| *name == flag);
    let why = match impossible {
        Some((_, why)) => Some(*why),
        None if flag.starts_with("NO_") && !works => Some("only removes a flag from an existing reservation"),
        None => None,
    };
    if flag.is_empty() || !flag.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        report.refuse(
            path,
            format!("{flag:?} is not a valid reservation flag"),
            "use a Slurm reservation flag, such as FLEX",
        );
    } else if let Some(why) = why {
        report.refuse(path, format!("{flag} {why}"), "leave it out");
    } else if flag == TIME_FLOAT {
        report.warn(
            path,
            "the start time would move with the clock, and the window never opens; remove TIME_FLOAT",
        );
    } else if !works {
        // A newer Slurm may support it.
        report.warn(
            path,
            format!("unknown reservation flag {flag}; check the spelling. If Slurm does not know the flag, it creates no reservation, and the operator updates no worker"),
        );
    }
}

/// Warns if the start time of a scheduled update has passed: Slurm would never open a reservation that is created now. Not an
/// error, because a manifest may be applied again long after the update.
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
            "is in the past: unless the reservation already exists, the window never opens and the operator updates no worker; set a later time",
        );
    }
    report
}
