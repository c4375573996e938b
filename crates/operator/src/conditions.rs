//! Conditions by the conventions of Kubernetes: a transition time changes only with the status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use keelson_api::well_known::{condition, reason};

use crate::problem::Problem;

/// Maximum length of a message in characters.
const MESSAGE_MAX: usize = 32_768;

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionStatus {
    Yes,
    No,
    Unknown,
}

impl ConditionStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "True",
            Self::No => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

/// A condition to report, without its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub kind: &'static str,
    pub holds: ConditionStatus,
    pub reason: &'static str,
    pub message: String,
}

impl Finding {
    pub fn new(
        kind: &'static str,
        holds: impl Into<ConditionStatus>,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            holds: holds.into(),
            reason,
            message: message.into(),
        }
    }

    /// Returns Progressing=False.
    pub fn settled() -> Self {
        Self::new(condition::PROGRESSING, false, reason::AS_SPECIFIED, "")
    }

    /// Returns the Degraded condition: true if there is a problem.
    pub fn degraded(trouble: Option<Problem>) -> Self {
        match trouble {
            Some(Problem { reason, message }) => Self::new(condition::DEGRADED, true, reason, message),
            None => Self::new(condition::DEGRADED, false, reason::AS_SPECIFIED, ""),
        }
    }

    /// Returns the three conditions of every kind while a problem blocks all changes.
    pub fn blocked(problem: &Problem) -> Vec<Self> {
        let Problem { reason, message } = problem;
        let waiting = "no changes will be made until this is fixed";
        vec![
            Self::new(condition::READY, false, reason, message.clone()),
            Self::new(condition::PROGRESSING, false, reason, waiting),
            Self::degraded(Some(problem.clone())),
        ]
    }
}

/// Computes the conditions for these findings, in their order; times are kept where the status did not change.
/// Conditions of other types that someone else set are left alone.
///
/// Without a problem, Degraded has the reason of another condition, so that one column shows the most important reason.
pub fn compute(
    before: &[Condition],
    mut findings: Vec<Finding>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let headline_reason = headline_reason(&findings);
    for finding in &mut findings {
        if finding.kind == condition::DEGRADED && finding.holds == ConditionStatus::No {
            finding.reason = headline_reason.unwrap_or(finding.reason);
        }
    }
    findings
        .into_iter()
        .map(
            |Finding {
                 kind,
                 holds,
                 reason,
                 message,
             }| {
                let status = holds.as_str();
                let since = before
                    .iter()
                    .find(|known| known.type_ == kind && known.status == status)
                    .map_or_else(
                        || Time(whole_seconds(now)),
                        |known| known.last_transition_time.clone(),
                    );
                Condition {
                    type_: kind.to_owned(),
                    status: status.to_owned(),
                    reason: reason.to_owned(),
                    message: clipped(message),
                    observed_generation: generation,
                    last_transition_time: since,
                }
            },
        )
        .collect()
}

/// Truncates a message to what the CRD allows. The API server would reject the whole status without a visible reason.
fn clipped(message: String) -> String {
    const END: &str = " …";
    if message.chars().count() <= MESSAGE_MAX {
        return message;
    }
    let room = MESSAGE_MAX - END.chars().count();
    let kept: String = message.chars().take(room).collect();
    kept + END
}

/// Returns what a deleted object waits for, else why the object is not ready, else which change is in progress, if any.
fn headline_reason(findings: &[Finding]) -> Option<&'static str> {
    let of = |kind: &str| findings.iter().find(|finding| finding.kind == kind);
    if let Some(terminating) = of(condition::TERMINATING) {
        return Some(terminating.reason);
    }
    let ready = of(condition::READY)?;
    // Workers that are missing because they have left are not starting.
    let tells = |reason: &str| match reason {
        reason::AS_SPECIFIED => false,
        reason::DRAINING => ready.holds == ConditionStatus::Yes || ready.reason == reason::STARTING,
        _ => ready.holds == ConditionStatus::Yes,
    };
    let progress = of(condition::PROGRESSING)
        .map(|finding| finding.reason)
        .filter(|reason| tells(reason));
    Some(progress.unwrap_or(ready.reason))
}

/// Reports whether this problem is newly shown. The number of pods that have it changes all the time and is no news.
pub fn newly_degraded(before: &[Condition], now: &[Condition], reason: &str) -> bool {
    let shows = |conditions: &[Condition]| {
        conditions.iter().any(|known| {
            known.type_ == condition::DEGRADED && known.status == "True" && known.reason == reason
        })
    };
    shows(now) && !shows(before)
}

/// Reports whether a condition says this already. The number of jobs that a change waits for changes all the time and
/// is no news.
pub fn already_reported(conditions: &[Condition], reason: &str, message: &str) -> bool {
    conditions.iter().any(|known| {
        known.reason == reason && (known.message == message || known.type_ == condition::PROGRESSING)
    })
}

/// Truncates to the whole seconds that the API server stores, so that times can be compared with stored ones.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
pub mod tests {
    use rstest::rstest;

    use super::*;

    /// Returns the status, reason and message of a condition.
    pub fn shown<'a>(conditions: &'a [Condition], kind: &str) -> [&'a str; 3] {
        let found = conditions.iter().find(|known| known.type_ == kind).unwrap();
        [&found.status, &found.reason, &found.message].map(String::as_str)
    }

    #[rstest]
    #[case::trouble(false, "Starting", "Draining", true, "Why")]
    #[case::not_ready(false, "Starting", "RollingOut", false, "Starting")]
    #[case::left(false, "Starting", "Draining", false, "Draining")]
    #[case::cannot_be_built(false, "ReferenceMissing", "Draining", false, "ReferenceMissing")]
    #[case::being_changed(true, "AsSpecified", "Draining", false, "Draining")]
    #[case::paused(true, "AsSpecified", "Paused", false, "Paused")]
    #[case::at_rest(true, "External", "AsSpecified", false, "External")]
    fn the_reason_of_degraded_says_what_there_is_to_know(
        #[case] is_ready: bool,
        #[case] ready: &'static str,
        #[case] progressing: &'static str,
        #[case] degraded: bool,
        #[case] expected: &str,
    ) {
        let findings = vec![
            Finding::new(condition::READY, is_ready, ready, ""),
            Finding::new(condition::PROGRESSING, true, progressing, ""),
            Finding::new(condition::DEGRADED, degraded, "Why", ""),
        ];
        let found = compute(&[], findings, None, Timestamp::UNIX_EPOCH);
        assert_eq!(found[2].reason, expected);
        assert_eq!(found[0].reason, ready, "Ready speaks for itself");
    }

    #[test]
    fn what_is_deleted_says_what_it_waits_for() {
        let findings = vec![
            Finding::new(condition::READY, true, reason::AS_SPECIFIED, ""),
            Finding::new(condition::DEGRADED, false, reason::AS_SPECIFIED, ""),
            Finding::new(condition::TERMINATING, true, reason::IN_USE, ""),
        ];
        let found = compute(&[], findings, None, Timestamp::UNIX_EPOCH);
        assert_eq!(shown(&found, condition::DEGRADED)[..2], ["False", reason::IN_USE]);
    }

    #[test]
    fn a_message_fits_into_the_crd() {
        let message_of = |message: String| {
            let findings = vec![Finding::new("Ready", false, "R", message)];
            compute(&[], findings, None, Timestamp::UNIX_EPOCH)[0]
                .message
                .clone()
        };
        let fits = "ü".repeat(MESSAGE_MAX);
        assert_eq!(message_of(fits.clone()), fits);
        let clipped = message_of(format!("{fits}x"));
        assert_eq!(clipped.chars().count(), MESSAGE_MAX);
        assert!(clipped.ends_with("ü …"));
    }

    #[test]
    fn trouble_is_news_once() {
        let with = |reason, message: &str| {
            let trouble = Problem {
                reason,
                message: message.to_owned(),
            };
            let degraded = vec![Finding::degraded(Some(trouble))];
            compute(&[], degraded, None, Timestamp::UNIX_EPOCH)
        };
        let held = with(reason::POD_HELD, "one pod");
        assert!(newly_degraded(&[], &held, reason::POD_HELD));
        assert!(!newly_degraded(
            &held,
            &with(reason::POD_HELD, "two pods"),
            reason::POD_HELD
        ));
        assert!(newly_degraded(
            &held,
            &with(reason::DAEMON_ENDED, ""),
            reason::DAEMON_ENDED
        ));
        assert!(!newly_degraded(&held, &[], reason::POD_HELD), "it is over");
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let ready = |holds: bool, message: &str| vec![Finding::new("Ready", holds, "R", message)];
        let first = compute(&[], ready(false, "a"), Some(1), at(10));
        let same = compute(&first, ready(false, "b"), Some(2), at(20));
        assert_eq!(same[0].last_transition_time.0, at(10));
        assert_eq!(
            (same[0].message.as_str(), same[0].observed_generation),
            ("b", Some(2))
        );
        let changed = compute(&same, ready(true, "c"), Some(2), at(30));
        assert_eq!(changed[0].last_transition_time.0, at(30));
    }
}
