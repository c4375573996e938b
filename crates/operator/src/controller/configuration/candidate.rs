//! Renders the configuration that the spec asks for, and compares it with those that slurmctld may have. Pure.

use std::collections::BTreeMap;

use keelson_api::well_known::limit::CONFIG_MAP_BYTES;
use keelson_runtime::run::chain;
use slurm_conf::{fingerprint, slurm_conf::SlurmConf};

use super::{baseline::Baseline, change::Step, delivery::Delivery};
use crate::controller::{
    build::{self, Configuration, Rendered},
    observe::{Live, Observed},
    registration,
    validate::Internal,
};
use crate::problem::Problem;

/// The configuration that the spec asks for.
#[derive(Debug)]
pub struct Candidate {
    pub conf: SlurmConf,
    pub rendered: Rendered,
    pub configuration: Configuration,
    /// What slurmctld has now; `None` while nothing is published.
    pub baseline: Option<Baseline>,
    /// The changes from each configuration that slurmctld may have, the likeliest first.
    pub steps: Vec<Option<Step>>,
    /// Whether job records are wanted but slurmdbd does not answer yet.
    pub accounting_waits: bool,
}

impl Candidate {
    pub fn of(observed: &Observed, internal: &Internal) -> Result<Self, Problem> {
        let baseline = Baseline::of(&observed.live, &internal.user_files);
        let accounting_waits = accounting_waits(observed, baseline.as_ref());
        let mut conf = internal.conf.clone();
        if accounting_waits {
            conf.accounting = None;
        }
        let rendered = render(&conf, internal)?;
        let configuration = configuration(&rendered, internal)?;
        let steps = match &baseline {
            Some(baseline) => baseline.steps(&configuration),
            None => steps_without_baseline(&observed.live, &configuration),
        };
        Ok(Self {
            conf,
            rendered,
            configuration,
            baseline,
            steps,
            accounting_waits,
        })
    }

    /// Reports whether the decision depends on Slurm's partitions and jobs.
    pub fn needs_usage(&self) -> bool {
        self.steps.iter().flatten().any(Step::needs_usage)
    }

    /// Reports whether the decision depends on the nodes with generic resources.
    pub fn needs_gres(&self) -> bool {
        self.steps.iter().flatten().any(Step::needs_gres)
    }
}

/// Renders the generated files.
pub fn render(conf: &SlurmConf, internal: &Internal) -> Result<Rendered, Problem> {
    build::render_internal(conf, internal.cgroup_conf).map_err(|error| Problem::invalid(chain(&error)))
}

/// Combines the generated files with the user's files.
pub(in crate::controller) fn configuration(
    rendered: &Rendered,
    internal: &Internal,
) -> Result<Configuration, Problem> {
    let mut files = internal.user_files.clone();
    files.extend(bytes(&rendered.files));
    let size: usize = files.values().map(Vec::len).sum();
    if size > CONFIG_MAP_BYTES {
        return Err(Problem::invalid(format!(
            "slurm.conf and the files of spec.configFileRefs and the script references are {size} bytes in total, and one \
             ConfigMap holds at most {CONFIG_MAP_BYTES}: put large files into the image or on a volume, and Include them by path"
        )));
    }
    Ok(Configuration {
        files,
        ..Configuration::default()
    })
}

pub fn bytes(files: &BTreeMap<String, String>) -> impl Iterator<Item = (String, Vec<u8>)> {
    files
        .iter()
        .map(|(name, text)| (name.clone(), text.clone().into_bytes()))
}

/// Reports whether a slurmctld that runs without accounting has to wait for slurmdbd: it would try to register once and
/// never again. A starting slurmctld waits for slurmdbd by itself, and no job runs unrecorded meanwhile.
fn accounting_waits(observed: &Observed, baseline: Option<&Baseline>) -> bool {
    let (Some(accounting), Some(baseline)) = (&observed.accounting, baseline) else {
        return false;
    };
    let known = std::iter::once(&baseline.published).chain(&baseline.in_use);
    !known.into_iter().any(registration::is_on) && !registration::is_ready(accounting)
}

/// Returns the step to the candidate when nothing is published: before the first start, or without its ConfigMaps.
fn steps_without_baseline(live: &Live, candidate: &Configuration) -> Vec<Option<Step>> {
    let name = fingerprint::of_files(&candidate.files);
    if live.stateful_set.is_none() || Delivery::of_config(&live.answers, &name) == Delivery::Applied {
        return vec![];
    }
    let why = "the configuration that slurmctld runs with is unknown because its ConfigMaps were deleted";
    vec![Some(Step::from_unknown(why))]
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
        let active = active.replace("NAME", &fingerprint::of_files(&candidate.files));
        let live = Live {
            stateful_set: exists.then(|| Arc::new(serde_json::from_value(set).unwrap())),
            answers: vec![ours(&active, "applied")],
            ..Live::default()
        };
        let steps = steps_without_baseline(&live, &candidate);
        assert_eq!(steps.iter().flatten().any(Step::needs_usage), dangerous);
    }
}
