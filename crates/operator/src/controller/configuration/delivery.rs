//! Whether slurmctld has taken in the configuration that was published. Pure.
//!
//! The first process of our images tries a candidate, keeps the last good one, and tells on a port of its own. Whoever
//! does not answer there although its pod is ready is an image of Slinky's, which takes a configuration in by its
//! sidecar or by a restart.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use keelson_api::well_known::{condition, reason};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::conditions::{ConditionStatus, Finding};

/// What a person hears when it is so again.
pub const IN_USE: &str = "slurmctld runs with the newest configuration";

/// What the first process of a slurmctld pod says.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The key of tokens that slurmctld goes by, named under slurm.key; empty while it takes in another.
    #[serde(default)]
    jwt_key_mac: Option<String>,
    /// The same by its plain sha256, as images told it before.
    #[serde(default)]
    jwt_key: Option<String>,
    /// Absent from images of before.
    #[serde(default)]
    pub(in crate::controller) groups: GroupReport,
    config: ConfigReport,
}

/// The groups that partitions name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(in crate::controller) struct GroupReport {
    /// How many there are.
    #[serde(default)]
    pub(in crate::controller) named: usize,
    /// Those that slurmctld does not find, with the partitions that name them.
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
    /// The name of the configuration.
    pub config: String,
    /// The key of tokens; `None` where nobody can tell.
    pub jwt_key: Option<JwtKeyNames>,
}

/// The names under which a slurmctld pod speaks of the key of tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JwtKeyNames {
    /// sha256, by images of before.
    pub plain: String,
    /// Named under slurm.key.
    pub keyed: String,
}

impl JwtKeyNames {
    fn is_told(&self, report: &Report) -> bool {
        let is = |told: &Option<String>, name: &str| told.as_deref().is_none_or(|told| told == name);
        is(&report.jwt_key, &self.plain) && is(&report.jwt_key_mac, &self.keyed)
    }
}

/// What is known of one slurmctld pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Ours(Report),
    /// Ready, and nobody listens there.
    Foreign,
    /// Not up, or not reachable from here.
    Silent,
}

/// How far a configuration has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    Applied,
    /// slurmctld said no, in these words, and goes on with the last good one.
    Refused(String),
    /// On its way.
    Pending,
    /// The configuration is in use, another key of tokens is on its way.
    KeyPending,
    /// The image does not tell.
    Untold,
}

impl Delivery {
    /// What all slurmctlds of a Controller make of it. Only the one in charge tries a candidate; the others follow.
    /// Each of them reads keys by itself.
    pub fn of(answers: &[Answer], expected: &Expected) -> Self {
        let keyed =
            ours(answers).all(|report| expected.jwt_key.as_ref().is_none_or(|key| key.is_told(report)));
        match Self::of_config(answers, &expected.config) {
            Self::Applied if !keyed => Self::KeyPending,
            told => told,
        }
    }

    /// The same without the keys.
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

    /// The same, with more said of a refusal.
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
                let message = format!("slurmctld goes on with the last good configuration; it said: {words}");
                Finding::new(kind, false, reason::CONFIG_REFUSED, message)
            }
            Self::Pending => Finding::new(kind, false, reason::CONFIG_PENDING, "on its way to slurmctld"),
            Self::KeyPending => {
                let message = "another JWT key is on its way to slurmctld";
                Finding::new(kind, false, reason::CONFIG_PENDING, message)
            }
            Self::Untold => {
                let message = "this image does not tell whether slurmctld has taken it in";
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

/// Whether the image is ours; `None` while nobody can tell.
pub fn image_is_ours(answers: &[Answer]) -> Option<bool> {
    if answers.iter().any(|answer| matches!(answer, Answer::Ours(_))) {
        return Some(true);
    }
    answers.contains(&Answer::Foreign).then_some(false)
}

/// Whether a pod of ours has files mounted that its slurmctld does not run with: another start would try them.
pub fn has_other_candidate(answers: &[Answer]) -> bool {
    ours(answers).any(|report| {
        let ConfigReport {
            candidate, active, ..
        } = &report.config;
        candidate.is_some() && candidate != active
    })
}

/// The name of a configuration: over the files in the order of their names, each as its name, a zero byte, its length
/// in 8 bytes and its content. The first process of our images computes the same over what is mounted.
pub fn hash(files: &BTreeMap<String, Vec<u8>>) -> String {
    use std::fmt::Write as _;
    let mut hasher = Sha256::new();
    for (name, content) in files {
        hasher.update(name);
        hasher.update([0]);
        hasher.update(u64::try_from(content.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(content);
    }
    hasher.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
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

    #[test]
    fn the_hash_is_the_one_that_the_first_process_computes() {
        // sha256 of "a\0" + 1_u64 + "x" + "b\0" + 0_u64, from another implementation.
        let files = BTreeMap::from([("a".to_owned(), b"x".to_vec()), ("b".to_owned(), vec![])]);
        let bytes: Vec<u8> = [
            b"a\0".as_slice(),
            &1_u64.to_le_bytes(),
            b"x",
            b"b\0",
            &0_u64.to_le_bytes(),
        ]
        .concat();
        assert_eq!(hash(&files), crate::children::checksum::of_bytes(&bytes));
    }
}
