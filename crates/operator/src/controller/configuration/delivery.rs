//! Derives whether slurmctld has applied the published configuration. Pure.
//!
//! `init`, PID 1 of our images, tries a candidate, keeps the last good one, and reports on its own port. A ready pod
//! that does not answer there runs an image of Slinky's, which applies a configuration by its sidecar or by a restart.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use keelson_api::well_known::{condition, reason};
use serde::Deserialize;

use crate::conditions::{ConditionStatus, Finding};

/// Message once the latest configuration is applied.
pub const IN_USE: &str = "slurmctld runs with the latest configuration";

/// Report of the `init` in a slurmctld pod.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Slurm release of slurmctld; absent from reports of earlier images.
    #[serde(default)]
    version: String,
    /// The JWT key that slurmctld uses, as a fingerprint keyed with slurm.key; empty while slurmctld loads another.
    #[serde(default)]
    jwt_key_mac: Option<String>,
    /// The same key as a plain SHA-256, reported by earlier images.
    #[serde(default)]
    jwt_key: Option<String>,
    /// Absent from reports of earlier images.
    #[serde(default)]
    pub(in crate::controller) groups: GroupReport,
    config: ConfigReport,
}

/// Returns the Slurm release that slurmctld reports, if one answers.
pub fn slurm_version(answers: &[Answer]) -> Option<String> {
    let versions = answers.iter().filter_map(|answer| match answer {
        Answer::Ours(report) => Some(report.version.clone()),
        Answer::Foreign | Answer::Silent => None,
    });
    // With several slurmctlds of different releases, the oldest limits what Slurm can do.
    versions.filter(|version| !version.is_empty()).min()
}

/// The groups that partitions name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(in crate::controller) struct GroupReport {
    /// Number of these groups.
    #[serde(default)]
    pub(in crate::controller) named: usize,
    /// Groups that slurmctld does not find, with the partitions that name them.
    #[serde(default)]
    pub(in crate::controller) unknown: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfigReport {
    #[serde(default)]
    candidate: Option<String>,
    #[serde(default)]
    active: Option<String>,
    #[serde(default)]
    verdict: String,
    #[serde(default)]
    message: Option<String>,
}

/// What slurmctld should run with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// Fingerprint of the configuration.
    pub config: String,
    /// The JWT key; `None` if reports about it cannot be compared.
    pub jwt_key: Option<JwtKeyNames>,
}

/// The fingerprints by which a slurmctld pod reports the JWT key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JwtKeyNames {
    /// SHA-256, reported by earlier images.
    pub plain: String,
    /// Keyed with slurm.key.
    pub keyed: String,
}

impl JwtKeyNames {
    fn is_told(&self, report: &Report) -> bool {
        let is = |told: &Option<String>, name: &str| told.as_deref().is_none_or(|told| told == name);
        is(&report.jwt_key, &self.plain) && is(&report.jwt_key_mac, &self.keyed)
    }
}

/// Result of querying one slurmctld pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Ours(Report),
    /// Ready, but nothing listens on the status port.
    Foreign,
    /// Not running, or not reachable from here.
    Silent,
}

/// Progress of a configuration's delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    Applied,
    /// slurmctld refused it with this error and keeps running with the last good configuration.
    Refused(String),
    /// Not applied yet.
    Pending,
    /// The configuration is in use; another JWT key is not loaded yet.
    KeyPending,
    /// The image does not report it.
    Untold,
}

impl Delivery {
    /// Derives the progress from all slurmctlds of a Controller. Only the active one tries a candidate; the others
    /// follow. Each of them reads keys by itself.
    pub fn of(answers: &[Answer], expected: &Expected) -> Self {
        let keyed =
            ours(answers).all(|report| expected.jwt_key.as_ref().is_none_or(|key| key.is_told(report)));
        match Self::of_config(answers, &expected.config) {
            Self::Applied if !keyed => Self::KeyPending,
            told => told,
        }
    }

    /// Like [`Self::of`], without the keys.
    pub fn of_config(answers: &[Answer], name: &str) -> Self {
        let reports: Vec<&ConfigReport> = ours(answers).map(|report| &report.config).collect();
        let is = |hash: &Option<String>| {
            hash.as_deref()
                .is_some_and(|hash| !hash.is_empty() && hash == name)
        };
        if let Some(refused) = reports
            .iter()
            .find(|r| is(&r.candidate) && r.verdict == "refused")
        {
            return Self::Refused(refused.message.clone().unwrap_or_default());
        }
        if reports.iter().any(|report| is(&report.active)) {
            return Self::Applied;
        }
        if reports.is_empty() && answers.contains(&Answer::Foreign) {
            Self::Untold
        } else {
            Self::Pending
        }
    }

    /// Adds an explanation to a refusal.
    pub fn explained(self, explain: impl FnOnce(&str) -> String) -> Self {
        match self {
            Self::Refused(words) => Self::Refused(explain(&words)),
            other => other,
        }
    }

    pub fn finding(&self) -> Finding {
        let kind = condition::CONFIG_APPLIED;
        match self {
            Self::Applied => Finding::new(kind, true, reason::AS_SPECIFIED, IN_USE),
            Self::Refused(words) => {
                let message =
                    format!("slurmctld keeps running with the last good configuration; its error: {words}");
                Finding::new(kind, false, reason::CONFIG_REFUSED, message)
            }
            Self::Pending => Finding::new(
                kind,
                false,
                reason::CONFIG_PENDING,
                "waiting for slurmctld to apply the configuration",
            ),
            Self::KeyPending => {
                let message = "waiting for slurmctld to load the new JWT key";
                Finding::new(kind, false, reason::CONFIG_PENDING, message)
            }
            Self::Untold => {
                let message = "this image does not report whether slurmctld has applied the configuration";
                Finding::new(kind, ConditionStatus::Unknown, reason::CONFIG_PENDING, message)
            }
        }
    }
}

pub(in crate::controller) fn ours(answers: &[Answer]) -> impl Iterator<Item = &Report> {
    answers.iter().filter_map(|answer| match answer {
        Answer::Ours(report) => Some(report),
        Answer::Foreign | Answer::Silent => None,
    })
}

/// Reports whether the image is ours; `None` while that is unknown.
pub fn image_is_ours(answers: &[Answer]) -> Option<bool> {
    if answers.iter().any(|answer| matches!(answer, Answer::Ours(_))) {
        return Some(true);
    }
    answers.contains(&Answer::Foreign).then_some(false)
}

/// Reports whether a pod of ours has files mounted that its slurmctld does not run with: a restart would try them.
pub fn has_other_candidate(answers: &[Answer]) -> bool {
    ours(answers).any(|report| {
        let ConfigReport {
            candidate, active, ..
        } = &report.config;
        candidate.is_some() && candidate != active
    })
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn ours(candidate: &str, active: &str, verdict: &str) -> Answer {
        with_key(candidate, active, verdict, Some("key"))
    }

    fn with_key(candidate: &str, active: &str, verdict: &str, key: Option<&str>) -> Answer {
        let report = json!({ "daemon": "slurmctld", "mainPid": 7, "jwtKey": key, "config": {
            "candidate": candidate, "active": active, "lastGood": active, "verdict": verdict,
            "message": if verdict == "refused" { Some("fatal: no") } else { None }, "at": "t" } });
        Answer::Ours(serde_json::from_value(report).unwrap())
    }

    fn with_mac(mac: &str) -> Answer {
        let report = json!({ "jwtKeyMac": mac, "config": { "candidate": "new", "active": "new", "verdict": "applied" } });
        Answer::Ours(serde_json::from_value(report).unwrap())
    }

    #[test]
    fn a_key_that_nobody_can_tell_is_waited_for_by_nobody() {
        let wanted = Expected {
            config: "new".into(),
            jwt_key: None,
        };
        assert_eq!(Delivery::of(&[with_mac("other")], &wanted), Delivery::Applied);
    }

    #[rstest]
    #[case::applied(vec![ours("new", "new", "applied")], Delivery::Applied)]
    #[case::refused(vec![ours("new", "old", "refused")], Delivery::Refused("fatal: no".into()))]
    #[case::an_older_refusal(vec![ours("bad", "old", "refused")], Delivery::Pending)]
    #[case::not_there_yet(vec![ours("old", "old", "applied")], Delivery::Pending)]
    #[case::the_standby_follows(vec![ours("new", "new", "applied"), ours("new", "old", "pending")], Delivery::Applied)]
    #[case::an_older_key(vec![with_key("new", "new", "applied", Some("old"))], Delivery::KeyPending)]
    #[case::between_keys(vec![with_key("new", "new", "applied", Some(""))], Delivery::KeyPending)]
    #[case::a_standby_with_an_older_key(vec![ours("new", "new", "applied"), with_key("new", "new", "applied", Some("old"))], Delivery::KeyPending)]
    #[case::says_nothing_of_keys(vec![with_key("new", "new", "applied", None)], Delivery::Applied)]
    #[case::by_its_keyed_name(vec![with_mac("mac")], Delivery::Applied)]
    #[case::by_another_keyed_name(vec![with_mac("other")], Delivery::KeyPending)]
    #[case::foreign(vec![Answer::Foreign], Delivery::Untold)]
    #[case::starting(vec![Answer::Silent], Delivery::Pending)]
    #[case::no_pods(vec![], Delivery::Pending)]
    fn what_the_pods_say_decides(#[case] answers: Vec<Answer>, #[case] expected: Delivery) {
        let wanted = Expected {
            config: "new".into(),
            jwt_key: Some(JwtKeyNames {
                plain: "key".into(),
                keyed: "mac".into(),
            }),
        };
        assert_eq!(Delivery::of(&answers, &wanted), expected);
    }
}
