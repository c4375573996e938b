//! When a NodeSet is looked at again. Pure.

use std::time::Duration;

use keelson_runtime::Requeue;

use super::{act::Acted, error::Error, facts::Plan};

const RECHECK: Duration = Duration::from_secs(1);
/// What Slurm refused to delete is tried again.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// While only the reservation of the update window is left.
pub fn for_the_window(failure: Option<Error>) -> Result<Requeue, Error> {
    failure.map_or(Ok(Requeue::After(RECHECK)), Err)
}

/// After a pass that carried out a plan.
pub fn after(plan: &Plan, acted: Acted, window: Option<Error>) -> Result<Requeue, Error> {
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
        // A newer reading may confirm what is known without a change that would trigger us. That look tries the window
        // again too, which is no reason to let leaving workers wait longer.
        let soon = plan.requeue_after.map_or(RECHECK, |look| look.min(RECHECK));
        return Ok(Requeue::After(soon));
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
            after(&plan, Acted::default(), None),
            Ok(Requeue::OnChange)
        ));
        assert!(matches!(
            after(&plan, Acted::default(), Some(failure())),
            Err(Error::Reservation { .. })
        ));
        plan.waits.push(Wait {
            pod: "cpu-0".to_owned(),
            node: crate::slurm::facts::NodeName("cpu-0".to_owned()),
            why: Why::Reading,
        });
        let next = after(&plan, Acted::default(), Some(failure()));
        assert!(matches!(next, Ok(Requeue::After(RECHECK))), "{next:?}");
    }
}
