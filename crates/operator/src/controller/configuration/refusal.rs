//! Remembers that slurmctld refused a change that needed a cluster without jobs.
//!
//! Such a configuration must not stay published: a slurmctld that starts again would try it once more, under the jobs that
//! run by then. So the one before is published again, and a note on the Controller says what was refused and in which words.

use keelson_api::well_known::{annotation, reason};
use keelson_runtime::{apply::Writer, run::chain};
use kube::ResourceExt;
use serde_json::json;

use super::{
    baseline::{Baseline, Standing},
    delivery::Delivery,
    quiesce::{self, ConfigurationChange},
};
use crate::controller::observe::Observed;
use crate::{context::Context, problem::Problem};

/// Longer words are cut.
const MOST_CHARACTERS: usize = 2000;

/// Why the change is not tried, if slurmctld refused it. Notes a refusal that is new.
pub async fn of(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    baseline: Option<&Baseline>,
    change: &ConfigurationChange,
) -> Option<Problem> {
    if let Some(words) = remembered(observed, change) {
        return Some(problem(change, words));
    }
    let baseline = baseline.filter(|baseline| baseline.standing == Standing::Refused)?;
    if !quiesce::has_switched_to(observed, &change.name) {
        return None;
    }
    let name = baseline.published.name.as_deref().unwrap_or_default();
    let Delivery::Refused(words) = Delivery::of_config(&observed.live.answers, name) else {
        return None;
    };
    let words: String = words.chars().take(MOST_CHARACTERS).collect();
    let note = format!("{} {words}", change.name);
    let patch = json!({ "metadata": { "annotations": { annotation::REFUSED_CHANGE: note } } });
    match writer.merge(observed.controller.as_ref(), patch).await {
        Ok(written) => {
            context.caches.controllers.upsert(written);
        }
        // The next pass finds the same; until then it stays published, and all nodes drained.
        Err(error) => {
            tracing::warn!(error = chain(&error), "failed to note a refused configuration");
            return None;
        }
    }
    Some(problem(change, &words))
}

fn remembered<'a>(observed: &'a Observed, change: &ConfigurationChange) -> Option<&'a str> {
    let note = observed
        .controller
        .annotations()
        .get(annotation::REFUSED_CHANGE)?;
    let (name, words) = note.split_once(' ')?;
    (name == change.name).then_some(words)
}

fn problem(change: &ConfigurationChange, words: &str) -> Problem {
    Problem {
        reason: reason::CONFIG_REFUSED,
        message: format!(
            "slurmctld refused a change of {what} and runs with the last good configuration; it said: {words}. Correct {what}; \
             until then no other change of slurm.conf is applied (to try the same again, remove the annotation {} from the \
             Controller)",
            annotation::REFUSED_CHANGE,
            what = change.what
        ),
    }
}
