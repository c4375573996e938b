//! Finds out whether slurmctld refused a change that needed a cluster without jobs. Pure.
//!
//! Such a configuration must not stay published: a restarted slurmctld would try it again, with the jobs that run by
//! then. So the previous one is published again, and an annotation on the Controller records the change and the error.

use keelson_api::well_known::{annotation, reason};
use kube::ResourceExt;

use super::{
    baseline::{Baseline, Standing},
    delivery::Delivery,
    quiesce::{self, ConfigurationChange},
};
use crate::controller::observe::Observed;
use crate::problem::Problem;

/// Longer errors are truncated.
const MOST_CHARACTERS: usize = 2000;

/// Why a change is not tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub problem: Problem,
    /// The value of the annotation that records it; `None` if the Controller has it.
    pub note: Option<String>,
}

/// Returns why the change is not tried, if slurmctld refused it.
pub fn of(observed: &Observed, baseline: Option<&Baseline>, change: &ConfigurationChange) -> Option<Refusal> {
    if let Some(words) = remembered(observed, change) {
        return Some(Refusal {
            problem: problem(change, words),
            note: None,
        });
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
    Some(Refusal {
        problem: problem(change, &words),
        note: Some(format!("{} {words}", change.name)),
    })
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
            "slurmctld refused a change of {what} and runs with the last good configuration; its error: {words}. Correct {what}; \
             until then no other change of slurm.conf is applied (to retry the same change, remove the annotation {} from the \
             Controller)",
            annotation::REFUSED_CHANGE,
            what = change.what
        ),
    }
}
