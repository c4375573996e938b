//! Reports groups that partitions name and slurmctld does not find. Pure.
//!
//! slurmctld carries on without them, and then no one may use such a partition: jobs are refused or wait, and only its
//! log says why.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keelson_api::well_known::reason;

use super::configuration::delivery::{Answer, ours};
use crate::problem::Problem;

/// The fix may come without a change that the operator sees: users are files in pods, or entries of a directory.
const POLL_WHILE_UNKNOWN: Duration = Duration::from_secs(5);
/// A group may disappear in the same way.
const POLL_WHILE_NAMED: Duration = Duration::from_secs(30);

/// Returns a problem that names the groups that a slurmctld does not find.
pub fn unknown(answers: &[Answer]) -> Option<Problem> {
    let mut unknown: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (group, partitions) in ours(answers).flat_map(|report| &report.groups.unknown) {
        let named_by = unknown.entry(group).or_default();
        named_by.extend(partitions.iter().map(String::as_str));
    }
    if unknown.is_empty() {
        return None;
    }
    let named: Vec<String> = unknown
        .iter()
        .map(|(group, partitions)| {
            let partitions: Vec<&str> = partitions.iter().copied().collect();
            format!("{group} (AllowGroups of {})", partitions.join(", "))
        })
        .collect();
    let message = format!(
        "slurmctld does not know {}: members cannot use these partitions. Add the groups to the values of the slurm chart \
         (groups, users), or use a slurmctld image that looks them up",
        named.join("; ")
    );
    Some(Problem {
        reason: reason::GROUPS_UNKNOWN,
        message,
    })
}

/// Returns when to ask again if nothing changes until then.
pub fn requeue_after(answers: &[Answer]) -> Option<Duration> {
    let waits = ours(answers).filter_map(|report| {
        let groups = &report.groups;
        if groups.unknown.is_empty() {
            (groups.named > 0).then_some(POLL_WHILE_NAMED)
        } else {
            Some(POLL_WHILE_UNKNOWN)
        }
    });
    waits.min()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(groups: &Value) -> Answer {
        let report = json!({ "groups": groups, "config": {} });
        Answer::Ours(serde_json::from_value(report).unwrap())
    }

    #[test]
    fn all_groups_are_named_with_their_partitions() {
        let answers = [
            told(&json!({ "named": 2, "unknown": { "research": ["gpu"] } })),
            told(&json!({ "named": 2, "unknown": { "research": ["cpu", "gpu"], "staff": ["all"] } })),
            Answer::Silent,
        ];
        let problem = unknown(&answers).unwrap();
        assert_eq!(problem.reason, "GroupsUnknown");
        let wanted = "slurmctld does not know research (AllowGroups of cpu, gpu); staff (AllowGroups of all): members cannot";
        assert!(problem.message.starts_with(wanted), "{}", problem.message);
        assert_eq!(requeue_after(&answers), Some(POLL_WHILE_UNKNOWN));
    }

    #[test]
    fn groups_that_are_found_are_asked_for_now_and_then() {
        let answers = [told(&json!({ "named": 1, "unknown": {} }))];
        assert_eq!(
            (unknown(&answers), requeue_after(&answers)),
            (None, Some(POLL_WHILE_NAMED))
        );
    }

    #[test]
    fn an_image_that_does_not_tell_is_not_asked_again() {
        let before = Answer::Ours(serde_json::from_value(json!({ "config": {} })).unwrap());
        let answers = [before, Answer::Foreign];
        assert_eq!((unknown(&answers), requeue_after(&answers)), (None, None));
    }
}
