//! The configurations that a change is compared with: what slurmctld has, or may have.
//!
//! slurmctld may not run with what was published last: it may have refused it or not seen it yet. Running jobs depend
//! on what it accepted last, so that is stored beside what is published until something newer is accepted.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use keelson_api::well_known::{annotation, file};
use kube::ResourceExt;
use slurm_conf::{catalogue::File, fingerprint, syntax};

use super::{change::Step, delivery::Delivery};
use crate::controller::{build::Configuration, observe::Live};
use crate::workload::Workload;

/// What slurmctld did with the published configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Accepted,
    /// slurmctld runs with the previous one.
    Refused,
    /// slurmctld may run with either.
    Unknown,
}

impl Standing {
    fn of(delivery: &Delivery, live: &Live) -> Self {
        match delivery {
            Delivery::Applied | Delivery::KeyPending => Self::Accepted,
            Delivery::Refused(_) => Self::Refused,
            // No pod reports it, but slurmctld runs.
            Delivery::Untold if Workload::from(live.stateful_set.as_deref()).is_settled() => Self::Accepted,
            Delivery::Untold | Delivery::Pending => Self::Unknown,
        }
    }
}

/// The configurations that a change may start from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baseline {
    pub published: Configuration,
    /// The configuration that slurmctld accepted last, if known.
    pub in_use: Option<Configuration>,
    pub standing: Standing,
}

impl Baseline {
    /// Returns `None` while nothing is published. `user_files` are the current ones.
    pub fn of(live: &Live, user_files: &BTreeMap<String, Vec<u8>>) -> Option<Self> {
        // The published ConfigMap may have been deleted; slurmctld still runs with what it accepted.
        let published = live.config.as_ref().or(live.config_in_use.as_ref())?;
        let published = Configuration::complete(published, user_files);
        let in_use = live
            .config_in_use
            .as_ref()
            .map(|config| Configuration::complete(config, user_files));
        // Files that were edited by hand are not what slurmctld accepted under that name.
        let original = in_use.as_ref().filter(|in_use| {
            !published.is_as_named() && in_use.is_as_named() && in_use.name == published.name
        });
        let published = original.cloned().unwrap_or(published);
        // The JWT key plays no part here.
        let delivery = Delivery::of_config(&live.answers, published.name.as_deref().unwrap_or_default());
        Some(Self {
            standing: Standing::of(&delivery, live),
            published,
            in_use,
        })
    }

    /// Returns the configurations that slurmctld may run with, the likeliest first.
    pub fn possible(&self) -> Vec<&Configuration> {
        match (self.standing, &self.in_use) {
            (Standing::Accepted, _) | (_, None) => vec![&self.published],
            (Standing::Refused, Some(in_use)) => vec![in_use],
            (Standing::Unknown, Some(in_use)) => vec![in_use, &self.published],
        }
    }

    /// Returns the step to the candidate from each configuration that slurmctld may have, the likeliest first; empty if
    /// the candidate is published and not refused.
    pub fn steps(&self, candidate: &Configuration) -> Vec<Option<Step>> {
        if self.is_under_way(candidate) {
            return vec![];
        }
        let bases = self.possible().into_iter();
        bases.map(|base| Step::between(base, candidate)).collect()
    }

    fn is_under_way(&self, candidate: &Configuration) -> bool {
        self.standing != Standing::Refused && self.published.files == candidate.files
    }

    /// Returns the restart hash of the change's starting point.
    pub fn restart_hash(&self, candidate: &Configuration) -> Option<String> {
        let base = if self.is_under_way(candidate) {
            &self.published
        } else {
            self.possible().first().copied()?
        };
        base.restart_hash.clone()
    }

    /// Returns what stays published while a change waits. A refused configuration does not: a restarted slurmctld would
    /// try it again.
    pub fn stays(&self) -> &Configuration {
        match (self.standing, &self.in_use) {
            (Standing::Refused, Some(in_use)) => in_use,
            _ => &self.published,
        }
    }

    /// Returns the configuration to store as in use.
    pub fn to_keep(&self) -> Option<&Configuration> {
        match self.standing {
            Standing::Accepted => Some(&self.published),
            Standing::Refused | Standing::Unknown => self.in_use.as_ref(),
        }
    }
}

impl Configuration {
    /// Reads a published configuration. Earlier operators mounted the user's files without publishing them.
    fn complete(config: &Arc<ConfigMap>, user_files: &BTreeMap<String, Vec<u8>>) -> Self {
        let texts = config.data.iter().flatten();
        let bytes = config.binary_data.iter().flatten();
        let mut files: BTreeMap<String, Vec<u8>> = texts
            .map(|(name, text)| (name.clone(), text.clone().into_bytes()))
            .chain(bytes.map(|(name, bytes)| (name.clone(), bytes.0.clone())))
            .collect();
        let mark = |key: &str| config.annotations().get(key).cloned();
        let name = mark(annotation::CONFIG_NAME);
        if name.as_ref() != Some(&fingerprint::of_files(&files)) {
            for (name, content) in user_files {
                files.entry(name.clone()).or_insert_with(|| content.clone());
            }
        }
        Self {
            files,
            restart_hash: mark(annotation::SLURM_CONFIG_HASH),
            name,
        }
    }

    /// Reports whether these are the files that were published under its name.
    fn is_as_named(&self) -> bool {
        self.name.as_ref() == Some(&fingerprint::of_files(&self.files))
    }

    pub fn slurm_conf(&self) -> Option<&str> {
        std::str::from_utf8(self.files.get(file::SLURM_CONF)?).ok()
    }

    /// Returns a parameter of slurm.conf.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let text = String::from_utf8_lossy(self.files.get(file::SLURM_CONF)?);
        let (document, _) = syntax::read(File::Slurm, &text, &self.texts());
        document.get(name).map(str::to_owned)
    }

    /// Returns the files that `Include` may name. Slurm reads bytes, so a file in another encoding counts as well.
    pub fn texts(&self) -> BTreeMap<String, String> {
        self.files
            .iter()
            .map(|(name, bytes)| (name.clone(), String::from_utf8_lossy(bytes).into_owned()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::configuration::delivery::Answer;

    fn published(files: &Value, name: Option<&str>) -> Arc<ConfigMap> {
        let annotations = name.map(|name| json!({ annotation::CONFIG_NAME: name }));
        let map = json!({ "metadata": { "annotations": annotations }, "data": files });
        Arc::new(serde_json::from_value(map).unwrap())
    }

    fn conf(text: &str) -> Configuration {
        Configuration {
            files: BTreeMap::from([("slurm.conf".to_owned(), text.as_bytes().to_vec())]),
            ..Configuration::default()
        }
    }

    /// Returns a baseline with a newest configuration and the previous one in use.
    fn baseline(active: &str, verdict: &str) -> Baseline {
        let new = json!({ "slurm.conf": "MinJobAge=2" });
        let name = fingerprint::of_files(&conf("MinJobAge=2").files);
        let report = json!({ "config": { "candidate": name, "active": active.replace("NEW", &name), "verdict": verdict } });
        let live = Live {
            config: Some(published(&new, Some(&name))),
            config_in_use: Some(published(&json!({ "slurm.conf": "MinJobAge=1" }), Some("old"))),
            answers: vec![Answer::Ours(serde_json::from_value(report).unwrap())],
            ..Live::default()
        };
        Baseline::of(&live, &BTreeMap::new()).unwrap()
    }

    #[rstest]
    #[case::accepted("NEW", "applied", &["2"], "2", "2")]
    #[case::refused("old", "refused", &["1"], "1", "1")]
    #[case::not_seen_yet("old", "pending", &["1", "2"], "2", "1")]
    fn a_change_begins_from_what_slurmctld_may_have(
        #[case] active: &str,
        #[case] verdict: &str,
        #[case] possible: &[&str],
        #[case] stays: &str,
        #[case] keeps: &str,
    ) {
        let baseline = baseline(active, verdict);
        let age = |configuration: &Configuration| {
            let text = configuration.slurm_conf().unwrap();
            text.trim_start_matches("MinJobAge=").to_owned()
        };
        assert_eq!(
            baseline.possible().into_iter().map(age).collect::<Vec<_>>(),
            possible
        );
        assert_eq!(age(baseline.stays()), stays);
        assert_eq!(age(baseline.to_keep().unwrap()), keeps);
    }

    /// A refused configuration was never in use: the same change costs as much the second time.
    #[test]
    fn after_a_refusal_a_change_is_measured_against_what_is_in_use() {
        let [linear, tres] = ["select/linear", "select/cons_tres"].map(|kind| format!("SelectType={kind}\n"));
        let baseline = |standing| Baseline {
            published: conf(&format!("{tres}NoSuchParameter=1\n")),
            in_use: Some(conf(&linear)),
            standing,
        };
        let costs_jobs = |standing, candidate: &str| {
            let steps = baseline(standing).steps(&conf(candidate));
            steps.iter().flatten().any(Step::needs_usage)
        };
        assert!(costs_jobs(Standing::Refused, &tres));
        assert!(costs_jobs(Standing::Unknown, &tres));
        assert!(!costs_jobs(Standing::Accepted, &tres));
        assert!(!costs_jobs(Standing::Refused, &linear), "nothing but going back");
        assert!(
            costs_jobs(Standing::Unknown, &linear),
            "it may have been accepted"
        );
        let published = format!("{tres}NoSuchParameter=1\n");
        assert!(!costs_jobs(Standing::Unknown, &published), "it is on its way");
        assert!(
            costs_jobs(Standing::Refused, &published),
            "another start would try it"
        );
    }

    #[test]
    fn without_what_was_published_a_change_begins_from_what_is_in_use() {
        let live = Live {
            config_in_use: Some(published(
                &json!({ "slurm.conf": "SelectType=select/linear" }),
                None,
            )),
            ..Live::default()
        };
        let baseline = Baseline::of(&live, &BTreeMap::new()).unwrap();
        let steps = baseline.steps(&conf("SelectType=select/cons_tres"));
        assert!(steps.iter().flatten().any(Step::needs_usage));
    }

    #[test]
    fn what_somebody_edited_by_hand_is_not_what_a_change_begins_from() {
        let name = fingerprint::of_files(&conf("MinJobAge=1").files);
        let original = published(&json!({ "slurm.conf": "MinJobAge=1" }), Some(&name));
        let live = Live {
            config: Some(published(&json!({ "other": "" }), Some(&name))),
            config_in_use: Some(Arc::clone(&original)),
            ..Live::default()
        };
        let baseline = Baseline::of(&live, &BTreeMap::new()).unwrap();
        assert_eq!(baseline.published.slurm_conf(), Some("MinJobAge=1"));
        assert_eq!(baseline.steps(&conf("MinJobAge=1")), vec![]);
    }

    #[test]
    fn what_an_earlier_operator_published_gets_the_files_that_the_pod_had() {
        let user = BTreeMap::from([
            ("gres.conf".to_owned(), b"AutoDetect=off".to_vec()),
            ("slurm.conf".to_owned(), b"theirs".to_vec()),
        ]);
        let earlier = published(&json!({ "slurm.conf": "ours" }), Some("over both"));
        let complete = Configuration::complete(&earlier, &user);
        assert_eq!(complete.slurm_conf(), Some("ours"));
        assert!(complete.files.contains_key("gres.conf"));

        let files = conf("ours").files;
        let of_now = published(
            &json!({ "slurm.conf": "ours" }),
            Some(&fingerprint::of_files(&files)),
        );
        assert_eq!(Configuration::complete(&of_now, &user).files, files);
    }
}
