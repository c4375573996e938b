//! Chooses the configuration to publish: asks Slurm where a change could cost jobs, and decides nothing itself.

use std::collections::BTreeMap;

use keelson_api::well_known::annotation;
use keelson_runtime::{Key, run::chain};

use super::{
    basis::Basis,
    build::{self, Configuration, Rendered},
    delivery::{self, Delivery, Expected},
    observe::{Live, Observed, observe_usage},
    published::{Decision, Step, decide, key_in_use},
    validate::{Internal, Validated},
};
use crate::{children::checksum, context::Context, keys, problem::Problem};

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
    /// What of the old configuration is kept, and why.
    pub waiting: Vec<String>,
    /// Why the newest one is not published at all.
    pub held: Option<Problem>,
}

pub async fn choose(
    context: &Context,
    observed: &Observed,
    validated: &mut Validated,
) -> Result<Chosen, Problem> {
    let render =
        |validated: &Validated| build::render(validated).map_err(|error| Problem::invalid(chain(&error)));
    let mut rendered = render(validated)?;
    let Validated::Internal(internal) = validated else {
        return Ok(plain(rendered));
    };
    let basis = Basis::of(&observed.live, &internal.user_files);
    let mut configuration = configuration(&rendered, internal)?;
    let steps = basis
        .as_ref()
        .map(|basis| basis.steps(&configuration))
        .unwrap_or_default();
    let running_key = keys::slurm_key_in_use(observed.live.stateful_set.as_deref())
        .filter(|running| *running != internal.slurm_key_hash);
    let usage = if running_key.is_some() || steps.iter().flatten().any(Step::needs_usage) {
        observe_usage(context, &Key::of(observed.controller.as_ref())).await
    } else {
        None
    };
    let mut restart = false;
    let mut waiting = Vec::new();
    let mut held = None;
    if let Some((running, problem)) =
        running_key.and_then(|running| Some((running, key_in_use(usage.as_ref())?)))
    {
        // slurmd reads its key again with a changed configuration, which therefore waits too.
        held = Some(problem);
        internal.slurm_key_hash = running;
    } else {
        match decide(&steps, usage.as_ref()) {
            Decision::Publish {
                retained,
                restart: needed,
                waiting: why,
            } => {
                restart = needed;
                waiting = why;
                if !retained.is_empty() {
                    internal.conf.retained = retained;
                    rendered = render(validated)?;
                }
            }
            Decision::Hold(problem) => held = Some(problem),
        }
    }
    let Validated::Internal(internal) = validated else {
        return Ok(plain(rendered));
    };
    if held.is_none() {
        configuration = self::configuration(&rendered, internal)?;
        configuration.restart_hash = restart_hash(observed, internal, &rendered, restart)
            .or_else(|| basis.as_ref()?.restart_hash(&configuration));
    } else if let Some(basis) = &basis {
        configuration = basis.stays().clone();
    }
    let name = delivery::hash(&configuration.files);
    configuration.name = Some(name.clone());
    Ok(Chosen {
        rolled_hash: rolled_hash(&observed.live, &configuration, &name),
        in_use: basis.as_ref().and_then(|basis| basis.to_keep().cloned()),
        expected: Expected {
            config: name,
            jwt_key: internal.jwt_key_hash.clone(),
        },
        configuration,
        findings: rendered.findings,
        waiting,
        held,
    })
}

pub(super) fn plain(rendered: Rendered) -> Chosen {
    Chosen {
        configuration: Configuration {
            files: bytes(&rendered.files).collect(),
            ..Configuration::default()
        },
        in_use: None,
        rolled_hash: None,
        expected: Expected::default(),
        findings: rendered.findings,
        waiting: vec![],
        held: None,
    }
}

fn bytes(files: &BTreeMap<String, String>) -> impl Iterator<Item = (String, Vec<u8>)> {
    files
        .iter()
        .map(|(name, text)| (name.clone(), text.clone().into_bytes()))
}

/// What is generated, and the user's files beside it.
pub(super) fn configuration(rendered: &Rendered, internal: &Internal) -> Result<Configuration, Problem> {
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

/// A restart that the configuration asks for. Our images take one in by themselves and restart only for what needs it. The
/// peer's restart for each, unless their sidecar takes it in. As long as nobody can tell which it is, nothing restarts.
fn restart_hash(
    observed: &Observed,
    internal: &Internal,
    rendered: &Rendered,
    restart: bool,
) -> Option<String> {
    let ours = delivery::image_is_ours(&observed.live.answers);
    let inplace = observed.controller.spec.inplace_reconfigure;
    let first = observed.live.config.is_none();
    let by_restart = !inplace && (ours == Some(false) || (first && ours.is_none()));
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
    use crate::controller::delivery::Answer;

    fn ours(active: &str, verdict: &str) -> Answer {
        let report = json!({ "config": { "candidate": "new", "active": active, "verdict": verdict } });
        Answer::Ours(serde_json::from_value(report).unwrap())
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
