//! Chooses the configuration to publish. Pure: `mod` reads from Slurm what the choice depends on, and carries it out.

use keelson_api::{Controller, well_known::annotation};
use slurm_conf::fingerprint;

use super::{
    baseline::Baseline,
    candidate::{self, Candidate, bytes},
    change::{Decision, Step, Usage, decide},
    delivery::{self, Delivery, Expected},
    file_origin::Origins,
    quiesce::{self, Changes, ConfigurationChange},
    refusal::{self, Refusal},
};
use crate::controller::{
    build::{Configuration, Rendered},
    observe::{Live, Observed},
    validate::Internal,
};
use crate::{anchor, children::checksum, keys, problem::Problem};

/// What to publish, unless running jobs hold it up.
#[derive(Debug)]
pub struct Choice {
    candidate: Candidate,
    /// The candidate with what is kept of the old configuration.
    pub rendered: Rendered,
    configuration: Configuration,
    /// Whether slurmctld has to restart to apply it.
    restart: bool,
    waiting: Vec<String>,
    held: Option<Problem>,
    running_key: Option<String>,
    /// What running jobs would not survive.
    changes: Changes,
    /// slurmctld's refusal of the change of the configuration. It takes effect once it is recorded.
    pub refusal: Option<Refusal>,
}

/// What to publish, and what to report about it.
#[derive(Debug)]
pub struct Chosen {
    pub configuration: Configuration,
    /// The configuration that slurmctld accepted last.
    pub in_use: Option<Configuration>,
    /// Restart hash of the pods.
    pub rolled_hash: Option<String>,
    /// Fingerprint of the slurm.key that the pods get; `None` if slurmctld is external.
    pub slurm_key_hash: Option<String>,
    /// What `init`, PID 1 of our images, should report.
    pub expected: Expected,
    /// The user's lines that have no effect.
    pub findings: Vec<String>,
    /// Notes about the user's files; they block nothing.
    pub notes: Vec<String>,
    /// The ConfigMaps that the user's files come from.
    pub origins: Origins,
    /// What is kept of the old configuration, and why.
    pub waiting: Vec<String>,
    /// Why the newest configuration is not published at all.
    pub held: Option<Problem>,
    /// Whether job records are wanted but slurmdbd does not answer yet.
    pub accounting_waits: bool,
}

/// Chooses what to publish. `usage` is `None` if Slurm did not answer, or was not asked.
pub fn choose(
    observed: &Observed,
    internal: &Internal,
    candidate: Candidate,
    usage: Option<&Usage>,
) -> Result<Choice, Problem> {
    let mut choice = Choice {
        rendered: candidate.rendered.clone(),
        configuration: candidate.configuration.clone(),
        restart: false,
        waiting: vec![],
        held: None,
        running_key: keys::slurm_key_in_use(observed.live.stateful_set.as_deref()),
        changes: Changes {
            key: None,
            configuration: disruptive(
                &observed.controller,
                &candidate.steps,
                &candidate.configuration,
                usage,
            ),
        },
        refusal: None,
        candidate,
    };
    match decide(&choice.candidate.steps, usage) {
        Decision::Publish {
            retained,
            restart,
            waiting,
        } => {
            choice.restart = restart;
            choice.waiting = waiting;
            if !retained.is_empty() {
                choice.candidate.conf.retained = retained;
                choice.rendered = candidate::render(&choice.candidate.conf, internal)?;
                choice.configuration = candidate::configuration(&choice.rendered, internal)?;
            }
        }
        Decision::Hold(problem) => choice.held = Some(problem),
    }
    let running = choice.running_key.as_ref();
    if running.is_some_and(|running| *running != internal.slurm_key_hash) {
        choice.changes.key = Some(internal.slurm_key_hash.clone());
    }
    if let Some(change) = &choice.changes.configuration {
        choice.refusal = refusal::of(observed, choice.candidate.baseline.as_ref(), change);
    }
    Ok(choice)
}

impl Choice {
    pub fn baseline(&self) -> Option<&Baseline> {
        self.candidate.baseline.as_ref()
    }

    /// Returns the changes that running jobs would not survive. Nothing is applied during a foreground deletion.
    pub fn changes(&self, controller: &Controller) -> Changes {
        if anchor::is_foreground(controller) {
            Changes::default()
        } else {
            self.changes.clone()
        }
    }

    /// Gives up the change that slurmctld refused.
    pub fn refuse(&mut self, problem: Problem) {
        self.held = Some(problem);
        self.changes.configuration = None;
    }

    /// Returns what to publish, now that it is known whether slurmctld may get the changes.
    pub fn settle(
        self,
        observed: &Observed,
        internal: &Internal,
        outcome: quiesce::Outcome,
    ) -> Result<Chosen, Problem> {
        let restart_hash = self.restart_hash(observed, internal);
        let Self {
            candidate:
                Candidate {
                    baseline,
                    steps,
                    accounting_waits,
                    ..
                },
            rendered,
            mut configuration,
            mut waiting,
            mut held,
            running_key,
            changes,
            ..
        } = self;
        let mut slurm_key_hash = internal.slurm_key_hash.clone();
        match outcome {
            quiesce::Outcome::Hold(problem) => {
                // slurmd reads its key again with a changed configuration, so a change of either waits for the other.
                held = Some(problem);
                slurm_key_hash = running_key.unwrap_or(slurm_key_hash);
            }
            quiesce::Outcome::Proceed { waiting: in_slurm } => {
                waiting.splice(0..0, in_slurm).for_each(drop);
            }
        }
        match (&held, &baseline) {
            // Nothing is published that could stay.
            (Some(problem), None) if !steps.is_empty() => return Err(problem.clone()),
            (Some(_), None) => {}
            (Some(_), Some(baseline)) => configuration = baseline.stays().clone(),
            (None, baseline) => {
                let unchanged = || baseline.as_ref()?.restart_hash(&configuration);
                configuration.restart_hash = restart_hash.or_else(unchanged);
            }
        }
        let name = fingerprint::of_files(&configuration.files);
        configuration.name = Some(name.clone());
        Ok(Chosen {
            rolled_hash: rolled_hash(&observed.live, &configuration, &name),
            slurm_key_hash: Some(slurm_key_hash),
            in_use: baseline.as_ref().and_then(|baseline| baseline.to_keep().cloned()),
            expected: Expected {
                config: name,
                // slurmctld reports the JWT key under its own slurm.key: nothing can be compared while that differs.
                jwt_key: changes.key.is_none().then(|| internal.jwt_key_names.clone()),
            },
            notes: internal.notes.clone(),
            origins: internal.origins.clone(),
            configuration,
            findings: rendered.findings,
            waiting,
            held,
            accounting_waits,
        })
    }

    /// Returns a restart hash if the configuration needs a restart. Our images apply a configuration by themselves and
    /// restart only where needed. Slinky's images restart for each change unless their sidecar applies it. As long as the
    /// image is unknown, nothing restarts.
    fn restart_hash(&self, observed: &Observed, internal: &Internal) -> Option<String> {
        let ours = delivery::image_is_ours(&observed.live.answers);
        let inplace = observed.controller.spec.inplace_reconfigure;
        let first = observed.live.config.is_none();
        let by_restart = !inplace && (ours == Some(false) || (first && ours.is_none()));
        // A sidecar applies a change at an unknown time, when jobs may run again.
        let by_restart = by_restart || (self.changes.configuration.is_some() && ours == Some(false));
        (by_restart || self.restart).then(|| {
            let user: Vec<u8> = internal.user_files.values().flatten().copied().collect();
            let generated = checksum::of_texts(&self.rendered.files);
            checksum::of_bytes(format!("{generated}{}", checksum::of_bytes(&user)).as_bytes())
        })
    }
}

/// Returns the change that no running job would survive, if any. A forbidden change is not worth a drain.
fn disruptive(
    controller: &Controller,
    steps: &[Option<Step>],
    candidate: &Configuration,
    usage: Option<&Usage>,
) -> Option<ConfigurationChange> {
    if steps.iter().flatten().any(Step::is_forbidden) {
        return None;
    }
    let mut steps = steps.iter().flatten();
    let what = steps.find_map(|step| step.needs_empty_cluster(usage))?;
    // Another image may accept what this one refuses.
    let slurmctld = serde_json::json!(controller.spec.slurmctld);
    let name = format!("{}{slurmctld}", fingerprint::of_files(&candidate.files));
    Some(ConfigurationChange {
        name: checksum::of_bytes(name.as_bytes()),
        what,
    })
}

/// Returns the choice for an external slurmctld: what its clients need.
pub fn plain(rendered: Rendered) -> Chosen {
    Chosen {
        configuration: Configuration {
            files: bytes(&rendered.files).collect(),
            ..Configuration::default()
        },
        in_use: None,
        rolled_hash: None,
        slurm_key_hash: None,
        expected: Expected::default(),
        findings: rendered.findings,
        notes: vec![],
        origins: Origins::new(),
        waiting: vec![],
        held: None,
        accounting_waits: false,
    }
}

/// Returns the restart hash of the pods: the one that the configuration needs, but not before slurmctld has accepted
/// it. A running slurmctld refuses a bad configuration without harm; a restarted one would have stopped for nothing.
fn rolled_hash(live: &Live, configuration: &Configuration, name: &str) -> Option<String> {
    let wanted = configuration.restart_hash.clone();
    let Some(set) = &live.stateful_set else {
        return wanted;
    };
    let running = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.metadata.as_ref()?.annotations.as_ref())
        .and_then(|annotations| annotations.get(annotation::SLURM_CONFIG_HASH).cloned());
    let goes = match delivery::image_is_ours(&live.answers) {
        Some(true) => Delivery::of_config(&live.answers, name) == Delivery::Applied,
        Some(false) => true,
        None => !live.pods.iter().any(|pod| delivery::is_ready(pod)),
    };
    if goes { wanted } else { running }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::controller::{
        configuration::delivery::Answer,
        validate::{Validated, validate},
    };

    fn ours(active: &str, verdict: &str) -> Answer {
        let report = json!({ "config": { "candidate": "new", "active": active, "verdict": verdict } });
        Answer::Ours(serde_json::from_value(report).unwrap())
    }

    fn conf(text: &str) -> Configuration {
        Configuration {
            files: BTreeMap::from([("slurm.conf".to_owned(), text.as_bytes().to_vec())]),
            ..Configuration::default()
        }
    }

    #[rstest]
    #[case::disruptive("SwitchType=a", "SwitchType=b", Some("SwitchType"))]
    #[case::harmless("MinJobAge=1", "MinJobAge=2", None)]
    #[case::forbidden_too("SwitchType=a\nClusterName=c", "SwitchType=b\nClusterName=d", None)]
    fn a_change_needs_an_empty_cluster_where_jobs_would_not_survive_it(
        #[case] runs_with: &str,
        #[case] wanted: &str,
        #[case] expected: Option<&str>,
    ) {
        let (in_use, candidate) = (conf(runs_with), conf(wanted));
        let steps = [Step::between(&in_use, &candidate)];
        let mut controller = Controller::default();
        let found = disruptive(&controller, &steps, &candidate, None);
        assert_eq!(found.as_ref().map(|change| change.what.as_str()), expected);
        // Another image may accept what this one refused.
        controller.spec.slurmctld = serde_json::from_value(json!({ "image": "another" })).unwrap();
        let again = disruptive(&controller, &steps, &candidate, None);
        assert_eq!(
            again.map(|change| change.name) == found.map(|change| change.name),
            expected.is_none()
        );
    }

    #[rstest]
    #[case::accepted(vec![ours("new", "applied")], true, "wanted")]
    #[case::refused(vec![ours("old", "refused")], true, "running")]
    #[case::on_its_way(vec![ours("old", "pending")], true, "running")]
    #[case::an_image_that_only_a_restart_reaches(vec![Answer::Foreign], true, "wanted")]
    #[case::nobody_says_anything(vec![Answer::Silent], true, "running")]
    #[case::nothing_runs_that_could_be_stopped(vec![Answer::Silent], false, "wanted")]
    fn slurmctld_restarts_for_what_it_has_accepted(
        #[case] answers: Vec<Answer>,
        #[case] ready: bool,
        #[case] expected: &str,
    ) {
        let annotations = json!({ annotation::SLURM_CONFIG_HASH: "running" });
        let set = json!({ "spec": { "selector": {}, "serviceName": "",
            "template": { "metadata": { "annotations": annotations } } } });
        let pod = json!({ "status": { "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] } });
        let live = Live {
            stateful_set: Some(Arc::new(serde_json::from_value(set).unwrap())),
            pods: vec![Arc::new(serde_json::from_value(pod).unwrap())],
            answers,
            ..Live::default()
        };
        let configuration = Configuration {
            restart_hash: Some("wanted".into()),
            ..Configuration::default()
        };
        assert_eq!(
            rolled_hash(&live, &configuration, "new").as_deref(),
            Some(expected)
        );
    }

    /// Returns the choice for a cluster whose slurmctld runs with another slurm.key.
    fn with_another_key(live: Live) -> (Observed, Internal, Choice) {
        let mut observed = crate::controller::tests::observed(json!({}));
        let annotations = json!({ annotation::SLURM_KEY_HASH: "running" });
        let set = json!({ "spec": { "selector": {}, "serviceName": "",
            "template": { "metadata": { "annotations": annotations } } } });
        observed.live = Live {
            stateful_set: Some(Arc::new(serde_json::from_value(set).unwrap())),
            ..live
        };
        let Validated::Internal(internal) = validate(&observed).unwrap() else {
            panic!("external")
        };
        let candidate = Candidate::of(&observed, &internal).unwrap();
        let choice = choose(&observed, &internal, candidate, None).unwrap();
        (observed, *internal, choice)
    }

    fn hold() -> quiesce::Outcome {
        quiesce::Outcome::Hold(Problem::invalid("jobs run"))
    }

    #[test]
    fn while_a_change_waits_slurmctld_keeps_its_key_and_its_configuration() {
        let config = json!({ "data": { "slurm.conf": "ClusterName=c" } });
        let (observed, internal, choice) = with_another_key(Live {
            config: Some(Arc::new(serde_json::from_value(config).unwrap())),
            ..Live::default()
        });
        let mut changes = choice.changes(&observed.controller);
        assert_eq!(changes.key.take(), Some(internal.slurm_key_hash.clone()));
        let held = choice.settle(&observed, &internal, hold()).unwrap();
        assert_eq!(held.slurm_key_hash.as_deref(), Some("running"));
        let files = conf("ClusterName=c").files;
        assert_eq!(held.configuration.files, files);
        assert_eq!(held.held, Some(Problem::invalid("jobs run")));
    }

    #[test]
    fn a_change_that_may_go_ahead_brings_the_new_key() {
        let (observed, internal, choice) = with_another_key(Live::default());
        let proceed = quiesce::Outcome::Proceed { waiting: None };
        let chosen = choice.settle(&observed, &internal, proceed).unwrap();
        assert_eq!(chosen.slurm_key_hash, Some(internal.slurm_key_hash.clone()));
        assert_eq!(chosen.held, None);
    }

    #[test]
    fn a_change_that_waits_is_a_problem_where_nothing_is_published() {
        let (observed, internal, choice) = with_another_key(Live::default());
        let held = choice.settle(&observed, &internal, hold());
        assert_eq!(held.unwrap_err(), Problem::invalid("jobs run"));
    }

    #[test]
    fn nothing_changes_during_a_foreground_deletion() {
        let (observed, _, choice) = with_another_key(Live::default());
        let mut controller = observed.controller.as_ref().clone();
        controller.metadata.finalizers = Some(vec!["foregroundDeletion".to_owned()]);
        controller.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(choice.changes(&controller), Changes::default());
    }
}
