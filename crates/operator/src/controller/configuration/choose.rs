//! Chooses the configuration to publish: asks Slurm where a change could cost jobs, and decides nothing itself.

use std::collections::BTreeMap;

use keelson_api::{Controller, well_known::annotation};
use keelson_runtime::{Key, apply::Writer, run::chain};

use super::{
    baseline::Baseline,
    change::{Decision, Step, decide},
    delivery::{self, Delivery, Expected},
    file_origin::Origins,
    quiesce::{self, Changes, ConfigurationChange},
    refusal,
};
use crate::controller::{
    build::{self, Configuration, Rendered},
    observe::{Live, Observed, observe_usage},
    registration,
    validate::{Internal, Validated},
};
use crate::{anchor, children::checksum, context::Context, keys, problem::Problem};

/// What Kubernetes takes in one ConfigMap.
const MOST_BYTES: usize = 1024 * 1024;

/// What is to be published, and what is to be said about it.
#[derive(Debug)]
pub struct Chosen {
    pub configuration: Configuration,
    /// What slurmctld accepted last.
    pub in_use: Option<Configuration>,
    /// The restart that the pods are to have.
    pub rolled_hash: Option<String>,
    /// What the first process of our images should report.
    pub expected: Expected,
    /// Lines of the user's that are not used.
    pub findings: Vec<String>,
    /// What a person should know about the user's files; nothing waits for it.
    pub notes: Vec<String>,
    /// From which ConfigMaps the user's files come.
    pub origins: Origins,
    /// What of the old configuration is kept, and why.
    pub waiting: Vec<String>,
    /// Why the newest one is not published at all.
    pub held: Option<Problem>,
    /// Records of jobs are wanted, and slurmdbd does not answer yet.
    pub accounting_waits: bool,
}

pub async fn choose(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    validated: &mut Validated,
) -> Result<Chosen, Problem> {
    let render =
        |validated: &Validated| build::render(validated).map_err(|error| Problem::invalid(chain(&error)));
    let mut rendered = render(validated)?;
    let Validated::Internal(internal) = validated else {
        return Ok(plain(rendered));
    };
    let baseline = Baseline::of(&observed.live, &internal.user_files);
    let accounting_waits = accounting_waits(observed, baseline.as_ref());
    if accounting_waits {
        internal.conf.accounting = None;
        rendered = render(validated)?;
    }
    let Validated::Internal(internal) = validated else {
        return Ok(plain(rendered));
    };
    let candidate = configuration(&rendered, internal)?;
    let steps = match &baseline {
        Some(baseline) => baseline.steps(&candidate),
        None => steps_without_baseline(&observed.live, &candidate),
    };
    let usage = if steps.iter().flatten().any(Step::needs_usage) {
        observe_usage(context, &Key::of(observed.controller.as_ref())).await
    } else {
        None
    };
    let mut restart = false;
    let mut waiting = Vec::new();
    let mut held = None;
    match decide(&steps, usage.as_ref()) {
        Decision::Publish {
            retained,
            restart: needed,
            waiting: why,
        } => {
            restart = needed;
            waiting.extend(why);
            if !retained.is_empty() {
                internal.conf.retained = retained;
                rendered = render(validated)?;
            }
        }
        Decision::Hold(problem) => held = Some(problem),
    }
    let Validated::Internal(internal) = validated else {
        return Ok(plain(rendered));
    };
    let mut configuration = configuration(&rendered, internal)?;
    let mut disruptive = disruptive(&observed.controller, &steps, &candidate);
    if let Some(change) = &disruptive
        && let Some(refusal) = refusal::of(context, writer, observed, baseline.as_ref(), change).await
    {
        held = Some(refusal);
        disruptive = None;
    }
    let running_key = keys::slurm_key_in_use(observed.live.stateful_set.as_deref());
    let key_waits = running_key
        .as_ref()
        .is_some_and(|running| *running != internal.slurm_key_hash);
    let is_disruptive = disruptive.is_some();
    let changes = Changes {
        key: key_waits.then(|| internal.slurm_key_hash.clone()),
        configuration: disruptive,
    };
    // What cannot be applied must not drain the nodes first, and nothing is applied while the object is being deleted so.
    build_check(observed, validated, &rendered)?;
    let changes = if anchor::is_foreground(observed.controller.as_ref()) {
        Changes::default()
    } else {
        changes
    };
    let Validated::Internal(internal) = validated else {
        return Ok(plain(rendered));
    };
    // The last of all that asks Slurm, so that what it found is still so when it is acted on.
    match quiesce::advance(context, writer, observed, baseline.as_ref(), &changes).await {
        quiesce::Outcome::Hold(problem) => {
            // slurmd reads its key again with a changed configuration, so a change of either waits for the other.
            held = Some(problem);
            internal.slurm_key_hash = running_key.unwrap_or(std::mem::take(&mut internal.slurm_key_hash));
        }
        quiesce::Outcome::Proceed { waiting: in_slurm } => waiting.splice(0..0, in_slurm).for_each(drop),
    }
    if let Some(problem) = &held
        && baseline.is_none()
        && !steps.is_empty()
    {
        // There is nothing that could stay.
        return Err(problem.clone());
    }
    if held.is_none() {
        configuration.restart_hash = restart_hash(observed, internal, &rendered, restart, is_disruptive)
            .or_else(|| baseline.as_ref()?.restart_hash(&configuration));
    } else if let Some(baseline) = &baseline {
        configuration = baseline.stays().clone();
    }
    let name = delivery::hash(&configuration.files);
    configuration.name = Some(name.clone());
    Ok(Chosen {
        rolled_hash: rolled_hash(&observed.live, &configuration, &name),
        in_use: baseline.as_ref().and_then(|baseline| baseline.to_keep().cloned()),
        expected: Expected {
            config: name,
            // Under another slurm.key than slurmctld has nothing can be told.
            jwt_key: (!key_waits).then(|| internal.jwt_key_names.clone()),
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

/// Whether the children could be built at all.
fn build_check(observed: &Observed, validated: &Validated, rendered: &Rendered) -> Result<(), Problem> {
    let chosen = plain(rendered.clone());
    build::build(&observed.controller, validated, &chosen, &observed.live)
        .map(drop)
        .map_err(|error| Problem::invalid(chain(&error)))
}

/// The change that no running job would survive, if the candidate is one. What is forbidden is not worth a drain.
fn disruptive(
    controller: &Controller,
    steps: &[Option<Step>],
    candidate: &Configuration,
) -> Option<ConfigurationChange> {
    if steps.iter().flatten().any(Step::is_forbidden) {
        return None;
    }
    let what = steps.iter().flatten().find_map(Step::needs_empty_cluster)?;
    // Another image may take what this one refuses.
    let slurmctld = serde_json::json!(controller.spec.slurmctld);
    let name = format!("{}{slurmctld}", delivery::hash(&candidate.files));
    Some(ConfigurationChange {
        name: checksum::of_bytes(name.as_bytes()),
        what,
    })
}

/// Whether a slurmctld that runs without records has to wait for them: it would try to register with slurmdbd once and never
/// again. One that starts waits for slurmdbd by itself, and no job runs unrecorded meanwhile.
fn accounting_waits(observed: &Observed, baseline: Option<&Baseline>) -> bool {
    let (Some(accounting), Some(baseline)) = (&observed.accounting, baseline) else {
        return false;
    };
    let known = std::iter::once(&baseline.published).chain(&baseline.in_use);
    !known.into_iter().any(registration::is_on) && !registration::is_ready(accounting)
}

/// What the step to the candidate asks for when nothing is published. That is so before the first start, or because somebody
/// deleted what was.
fn steps_without_baseline(live: &Live, candidate: &Configuration) -> Vec<Option<Step>> {
    let name = delivery::hash(&candidate.files);
    if live.stateful_set.is_none() || Delivery::of_config(&live.answers, &name) == Delivery::Applied {
        return vec![];
    }
    let why = "nobody knows what slurmctld runs with, because the ConfigMaps of its configuration are gone";
    vec![Some(Step::from_unknown(why))]
}

pub(in crate::controller) fn plain(rendered: Rendered) -> Chosen {
    Chosen {
        configuration: Configuration {
            files: bytes(&rendered.files).collect(),
            ..Configuration::default()
        },
        in_use: None,
        rolled_hash: None,
        expected: Expected::default(),
        findings: rendered.findings,
        notes: vec![],
        origins: Origins::new(),
        waiting: vec![],
        held: None,
        accounting_waits: false,
    }
}

fn bytes(files: &BTreeMap<String, String>) -> impl Iterator<Item = (String, Vec<u8>)> {
    files
        .iter()
        .map(|(name, text)| (name.clone(), text.clone().into_bytes()))
}

/// What is generated, and the user's files beside it.
pub(in crate::controller) fn configuration(
    rendered: &Rendered,
    internal: &Internal,
) -> Result<Configuration, Problem> {
    let mut files = internal.user_files.clone();
    files.extend(bytes(&rendered.files));
    let size: usize = files.values().map(Vec::len).sum();
    if size > MOST_BYTES {
        return Err(Problem::invalid(format!(
            "slurm.conf and the files of spec.configFileRefs and the script references have {size} bytes together, and one \
             ConfigMap takes {MOST_BYTES}: put large files into the image or on a volume, and Include them by their path"
        )));
    }
    Ok(Configuration {
        files,
        ..Configuration::default()
    })
}

/// The restart that the pods are to have: the one that the configuration needs, but not before slurmctld has accepted it.
/// A running slurmctld refuses without harm; one that starts with what does not work has stopped for nothing.
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

/// A restart that the configuration asks for. Our images take one in by themselves and restart only for what needs it.
/// Slinky's restart for each, unless their sidecar takes it in. As long as nobody can tell which it is, nothing restarts.
fn restart_hash(
    observed: &Observed,
    internal: &Internal,
    rendered: &Rendered,
    restart: bool,
    is_disruptive: bool,
) -> Option<String> {
    let ours = delivery::image_is_ours(&observed.live.answers);
    let inplace = observed.controller.spec.inplace_reconfigure;
    let first = observed.live.config.is_none();
    let by_restart = !inplace && (ours == Some(false) || (first && ours.is_none()));
    // A sidecar takes a change in at a time that nobody knows, when jobs may run again.
    let by_restart = by_restart || (is_disruptive && ours == Some(false));
    (by_restart || restart).then(|| {
        let user: Vec<u8> = internal.user_files.values().flatten().copied().collect();
        let generated = checksum::of_texts(&rendered.files);
        checksum::of_bytes(format!("{generated}{}", checksum::of_bytes(&user)).as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::controller::configuration::delivery::Answer;

    fn ours(active: &str, verdict: &str) -> Answer {
        let report = json!({ "config": { "candidate": "new", "active": active, "verdict": verdict } });
        Answer::Ours(serde_json::from_value(report).unwrap())
    }

    #[rstest]
    #[case::first_start(false, "", false)]
    #[case::runs_with_another(true, "another", true)]
    #[case::nobody_answers(true, "", true)]
    #[case::runs_with_this_one(true, "NAME", false)]
    fn without_what_was_published_nobody_knows_what_slurmctld_has(
        #[case] exists: bool,
        #[case] active: &str,
        #[case] dangerous: bool,
    ) {
        let set = json!({ "spec": { "selector": {}, "serviceName": "", "template": {} } });
        let candidate = Configuration::default();
        let active = active.replace("NAME", &delivery::hash(&candidate.files));
        let live = Live {
            stateful_set: exists.then(|| Arc::new(serde_json::from_value(set).unwrap())),
            answers: vec![ours(&active, "applied")],
            ..Live::default()
        };
        let steps = steps_without_baseline(&live, &candidate);
        assert_eq!(steps.iter().flatten().any(Step::needs_usage), dangerous);
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
        let found = disruptive(&controller, &steps, &candidate);
        assert_eq!(found.as_ref().map(|change| change.what.as_str()), expected);
        // Another image may take what this one refused.
        controller.spec.slurmctld = serde_json::from_value(json!({ "image": "another" })).unwrap();
        let again = disruptive(&controller, &steps, &candidate);
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
}
