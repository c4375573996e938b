//! The progress of a rollout, and how many workers it may make unavailable. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use keelson_api::well_known::{condition, reason};

use super::facts::{Cause, Leaving, Observed, PodFacts, Strategy};

/// A rollout in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    updated: usize,
    desired: usize,
    /// Workers of an older revision.
    old: usize,
    /// Why the remaining old workers are not updated now.
    stays: Option<String>,
    /// Workers that are not available.
    missing: usize,
    /// The number of workers that may be unavailable; 0 if the strategy has no budget.
    budget: usize,
}

/// Returns the rollout in progress, if any. `available` is the number of workers that are available now.
pub fn under_way(observed: &Observed, before: &[Condition], available: usize) -> Option<Rollout> {
    let Observed { set, pods, .. } = observed;
    if set.leaving != Leaving::No {
        return None;
    }
    let old: Vec<&PodFacts> = pods
        .iter()
        .filter(|pod| pod.revision != set.revision && comes_back(pod))
        .collect();
    let desired = observed.desired();
    let missing = desired.saturating_sub(available);
    let (budget, stays) = match &set.strategy {
        Strategy::Rolling {
            max_unavailable,
            partition,
        } => {
            let kept = |pod: &&PodFacts| pod.ordinal.is_some_and(|ordinal| ordinal < *partition);
            if !old.is_empty() && old.iter().all(kept) {
                let stays =
                    format!("updateStrategy.rollingUpdate.partition excludes ordinals below {partition}");
                (0, Some(stays))
            } else {
                let budget = usize::try_from(*max_unavailable).unwrap_or(usize::MAX);
                (budget.max(1), None)
            }
        }
        Strategy::OnDelete => {
            let stays = "updateStrategy is OnDelete: a worker is updated when its pod is deleted";
            (0, Some(stays.to_owned()))
        }
        Strategy::Scheduled { reservation } => {
            let stays = format!("the others will be updated in reservation {reservation}");
            (0, Some(stays))
        }
    };
    // The last replaced worker is not available yet. Only the previous condition distinguishes a replaced worker from
    // one that failed or that a user deleted.
    let ends = told_before(before) && missing > 0 && missing <= budget;
    (!old.is_empty() || ends).then(|| Rollout {
        updated: pods
            .iter()
            .filter(|pod| !pod.terminating && pod.revision == set.revision)
            .count()
            .min(desired),
        desired,
        old: old.len(),
        stays,
        missing,
        budget,
    })
}

impl Rollout {
    /// Returns true if the NodeSet still counts as ready with this many workers out of service: the budget allows it,
    /// and at least one worker is left.
    pub fn tolerates(&self, out: usize) -> bool {
        out <= self.budget && out < self.desired
    }

    pub fn describe(&self) -> String {
        let Self {
            updated,
            desired,
            old,
            stays,
            missing,
            budget: _,
        } = self;
        let progress = format!("{updated} of {desired} workers updated");
        match stays {
            Some(stays) if *old > 0 => format!("{progress}; {stays}"),
            _ if *old == 0 && updated == desired => {
                format!("{progress}; waiting for {missing} of them to become available")
            }
            _ => progress,
        }
    }
}

/// Returns true if the worker is replaced rather than removed.
fn comes_back(pod: &PodFacts) -> bool {
    let cause = pod.intent.as_ref().map(|intent| intent.cause);
    cause.is_none_or(|cause| cause == Cause::ModeSwitch || !cause.for_good())
}

fn told_before(before: &[Condition]) -> bool {
    before.iter().any(|known| {
        known.type_ == condition::PROGRESSING && known.status == "True" && known.reason == reason::ROLLING_OUT
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use pretty_assertions::assert_eq;

    use super::{
        super::plan::tests::{observed, pod, set, slurm},
        *,
    };
    use crate::conditions::{self, Finding};

    fn old(ordinal: u32) -> PodFacts {
        PodFacts {
            revision: "old".into(),
            ..pod(ordinal)
        }
    }

    fn rolling() -> Vec<Condition> {
        let told = Finding::new(condition::PROGRESSING, true, reason::ROLLING_OUT, "");
        conditions::compute(&[], vec![told], None, Timestamp::UNIX_EPOCH)
    }

    fn told(
        pods: Vec<PodFacts>,
        strategy: Strategy,
        before: &[Condition],
        available: usize,
    ) -> Option<String> {
        let mut set = set(3);
        set.strategy = strategy;
        let facts = observed(set, pods, slurm(&["IDLE", "IDLE", "IDLE"]));
        under_way(&facts, before, available).map(|rollout| rollout.describe())
    }

    fn one_at_a_time(partition: u32) -> Strategy {
        Strategy::Rolling {
            max_unavailable: 1,
            partition,
        }
    }

    #[test]
    fn it_is_told_how_far_an_update_is_until_the_last_worker_is_available() {
        let some = |text: &str| Some(text.to_owned());
        let mixed = || vec![old(0), old(1), pod(2)];
        let new = || vec![pod(0), pod(1), pod(2)];
        let rolls = one_at_a_time(0);
        assert_eq!(
            told(mixed(), rolls.clone(), &[], 3),
            some("1 of 3 workers updated")
        );
        let gone = vec![pod(1), pod(2)];
        assert_eq!(
            told(gone, rolls.clone(), &rolling(), 2),
            some("2 of 3 workers updated")
        );
        let last = "3 of 3 workers updated; waiting for 1 of them to become available";
        assert_eq!(told(new(), rolls.clone(), &rolling(), 2), some(last));
        assert_eq!(told(new(), rolls.clone(), &rolling(), 3), None);
        assert_eq!(told(new(), rolls, &[], 2), None, "a worker that died");
    }

    #[test]
    fn what_is_not_updated_now_has_a_reason() {
        let pods = || vec![old(0), pod(1), pod(2)];
        let told = |strategy| told(pods(), strategy, &[], 3).unwrap();
        assert_eq!(
            told(one_at_a_time(1)),
            "2 of 3 workers updated; updateStrategy.rollingUpdate.partition excludes ordinals below 1"
        );
        assert!(told(Strategy::OnDelete).contains("when its pod is deleted"));
        let reservation = "window".to_owned();
        assert!(told(Strategy::Scheduled { reservation }).ends_with("in reservation window"));
    }

    #[test]
    fn an_update_has_the_users_budget_and_never_the_whole_set() {
        let rollout = |replicas, max_unavailable| {
            let mut set = set(replicas);
            set.strategy = Strategy::Rolling {
                max_unavailable,
                partition: 0,
            };
            let pods = (0..replicas).map(old).collect();
            under_way(&observed(set, pods, slurm(&[])), &[], 0).unwrap()
        };
        assert!(rollout(6, 2).tolerates(2));
        assert!(!rollout(6, 2).tolerates(3));
        assert!(!rollout(1, 1).tolerates(1), "nobody is left");
        assert!(!rollout(3, 9).tolerates(3));
    }
}
