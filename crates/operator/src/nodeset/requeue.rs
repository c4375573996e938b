//! Decides when a NodeSet is reconciled again. Pure.

use std::time::Duration;

use keelson_runtime::Requeue;

use super::{act::Acted, facts::Plan};
use crate::error::Error;

const RECHECK: Duration = Duration::from_secs(1);
/// Delay before retrying deletions that Slurm refused.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// Returns the requeue while only the reservation of the maintenance window is left.
pub fn for_the_window(failure: Option<Error>) -> Result<Requeue, Error> {
    failure.map_or(Ok(Requeue::After(RECHECK)), Err)
}

/// Returns the requeue after a plan was carried out. While workers wait, each reconcile reads the jobs, whose list should
/// rest this long.
pub fn after(plan: &Plan, acted: Acted, window: Option<Error>, rest: Duration) -> Result<Requeue, Error> {
    let Acted { failures, refused } = acted;
    let failed = failures.len();
    if let Some(first) = failures.into_iter().next() {
        return Err(Error::Act {
            failed,
            all: plan.steps.len(),
            first: Box::new(first),
        });
    }
    if !plan.waits.is_empty() {
        // A newer read from Slurm may confirm the known state without triggering a reconcile. This requeue also retries
        // the window, so a failure there must not delay draining workers with a backoff.
        let soon = plan.requeue_after.map_or(RECHECK, |look| look.min(RECHECK));
        return Ok(Requeue::After(soon.max(rest)));
    }
    if let Some(failure) = window {
        return Err(failure);
    }
    let again = (!refused.is_empty()).then_some(AFTER_REFUSAL);
    let look = plan.requeue_after.map_or(Requeue::OnChange, Requeue::After);
    Ok(look.or_within(again))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodeset::facts::{Wait, Why};

    #[test]
    fn a_window_that_slurm_did_not_keep_is_looked_at_again() {
        let failure = || Error::Reservation {
            name: "SlurmOperatorMaint-cpu".to_owned(),
            source: Box::new(slurm_rest::Error::NotFound {
                what: "node cpu-7".to_owned(),
            }),
        };
        let mut plan = Plan::default();
        assert!(matches!(
            after(&plan, Acted::default(), None, Duration::ZERO),
            Ok(Requeue::OnChange)
        ));
        assert!(matches!(
            after(&plan, Acted::default(), Some(failure()), Duration::ZERO),
            Err(Error::Reservation { .. })
        ));
        plan.waits.push(Wait {
            pod: "cpu-0".to_owned(),
            node: crate::slurm::facts::NodeName("cpu-0".to_owned()),
            why: Why::Reading,
        });
        let next = after(&plan, Acted::default(), Some(failure()), Duration::ZERO);
        assert!(matches!(next, Ok(Requeue::After(RECHECK))), "{next:?}");
        // A list of jobs rests longer after it took longer.
        let rest = RECHECK * 2;
        let next = after(&plan, Acted::default(), None, rest);
        assert!(
            matches!(next, Ok(Requeue::After(delay)) if delay == rest),
            "{next:?}"
        );
    }
}
