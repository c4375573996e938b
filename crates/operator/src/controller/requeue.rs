//! Decides when a Controller is reconciled again. Pure.

use std::time::Duration;

use jiff::Timestamp;
use keelson_api::well_known::reason;
use keelson_runtime::Requeue;

use super::{
    configuration::delivery::{self, Delivery},
    groups,
    observe::Observed,
    registration::Registration,
    status::Outcome,
};
use crate::pod_diagnosis;

/// Interval while a new configuration is on its way to the pods.
const POLL_WHILE_DELIVERED: Duration = Duration::from_secs(1);
/// Interval while jobs hold up a change.
const POLL_WHILE_IN_USE: Duration = Duration::from_secs(5);

/// Returns the name of a configuration that is on its way to pods that report about it.
pub fn under_way<'a>(observed: &Observed, outcome: &'a Outcome<'_>) -> Option<&'a str> {
    let Outcome::Published { chosen, delivery, .. } = outcome else {
        return None;
    };
    let answers = &observed.live.answers;
    let withdrawn = chosen.held.is_some() && delivery::has_other_candidate(answers);
    let is_under_way = withdrawn || matches!(delivery, Delivery::Pending | Delivery::KeyPending);
    let reports = delivery::image_is_ours(answers) == Some(true) && !observed.controller.spec.external;
    (is_under_way && reports).then_some(chosen.expected.config.as_str())
}

/// Returns when to reconcile again. `are_drained`: nodes are still drained although nothing could be built.
pub fn after(observed: &Observed, outcome: &Outcome<'_>, are_drained: bool, now: Timestamp) -> Requeue {
    if under_way(observed, outcome).is_some() {
        return Requeue::After(POLL_WHILE_DELIVERED);
    }
    let Outcome::Published {
        chosen, registration, ..
    } = outcome
    else {
        let waits = are_drained || outcome.waits();
        return Requeue::OnChange.or_within(waits.then_some(POLL_WHILE_IN_USE));
    };
    if observed.controller.spec.external {
        return Requeue::OnChange;
    }
    let held = chosen.held.as_ref();
    let waits = held.is_some_and(|held| held.reason != reason::CONFIG_REFUSED) || !chosen.waiting.is_empty();
    let Observed { live, .. } = observed;
    Requeue::OnChange
        .or_within(waits.then_some(POLL_WHILE_IN_USE))
        .or_within(registration.as_ref().map(Registration::requeue_after))
        .or_within(groups::requeue_after(&live.answers))
        .or_within(pod_diagnosis::requeue_after(&live.pods, now))
}
