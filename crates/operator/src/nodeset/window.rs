//! Applies the changes that `reservation` decides on. A finalizer is set while the reservation may exist.

use keelson_api::{
    Controller, NodeSet,
    well_known::{annotation, condition, finalizer, reason},
};
use keelson_runtime::{Key, ReconcileError, apply::Writer, run::chain};
use kube::ResourceExt;
use slurm_rest::Client;

use super::{
    facts::Observed,
    observe::Read,
    reservation::{self, Change, Comparison, Window},
};
use crate::{
    conditions::{ConditionStatus, Finding},
    context::Context,
    error::Error,
    slurm::{facts::Slurm, mirrors::NOT_CONNECTED},
};

/// The outcome of updating the reservation.
#[derive(Debug, Default)]
pub struct Kept {
    /// The condition, if the NodeSet uses a maintenance window.
    pub finding: Option<Finding>,
    /// The failed call to Slurm. No watch event follows when it would succeed, so it has to be retried.
    pub failure: Option<Error>,
}

/// Creates, updates or deletes the reservation in Slurm.
pub async fn keep(
    context: &Context,
    writer: &Writer,
    read: &Read,
    observed: &Observed,
) -> Result<Kept, Error> {
    let nodeset = &read.nodeset;
    let scheduled = reservation::is_scheduled(nodeset);
    let held = nodeset
        .finalizers()
        .iter()
        .any(|known| known == finalizer::NODESET_RESERVATION);
    if !scheduled && !held {
        return Ok(Kept::default());
    }
    let window = match scheduled
        .then(|| reservation::window(nodeset, observed))
        .transpose()
    {
        Ok(window) => window,
        Err(problem) => return Ok(absent(scheduled, problem)),
    };
    let controller = super::controller_key(nodeset);
    if matches!(observed.slurm, Slurm::Unknown { .. }) && may_be_left(nodeset, read.controller.as_deref()) {
        hold(context, writer, read, false).await?;
        return Ok(absent(scheduled, "Slurm does not answer".to_owned()));
    }
    let Some(client) = context.mirrors.client(&controller) else {
        return Ok(absent(scheduled, NOT_CONNECTED.to_owned()));
    };
    let answer = change(context, writer, read, &client, window.as_ref(), observed).await?;
    let kept = finding_of(scheduled, &nodeset.reservation_name(), answer);
    if let Some(failure) = &kept.failure {
        context
            .events
            .warning(nodeset.as_ref(), failure.reason(), chain(failure));
    }
    Ok(kept)
}

/// Returns true if the reservation may be left behind without waiting for Slurm: it is deleted together with the
/// cluster, and when everything is deleted at once, for example with the namespace, slurmrestd may already be gone.
fn may_be_left(nodeset: &NodeSet, controller: Option<&Controller>) -> bool {
    let forced = nodeset.annotations().get(annotation::FORCE_DELETE);
    let deleting = nodeset.metadata.deletion_timestamp.is_some();
    forced.is_some_and(|value| value == "true")
        || controller.is_none_or(|controller| deleting && controller.metadata.deletion_timestamp.is_some())
}

fn absent(scheduled: bool, message: String) -> Kept {
    let comparison = Comparison {
        change: None,
        exists: false,
        message,
    };
    finding_of(scheduled, "", Ok(comparison))
}

/// Turns Slurm's answer into a condition and an error to retry on.
fn finding_of(scheduled: bool, name: &str, answer: Result<Comparison, slurm_rest::Error>) -> Kept {
    let (holds, why, message, failure) = match answer {
        Ok(Comparison { exists, message, .. }) => {
            let why = if exists {
                reason::RESERVATION_CREATED
            } else {
                reason::RESERVATION_NOT_EXISTS
            };
            (ConditionStatus::from(exists), why, message, None)
        }
        // A failed call may have taken effect.
        Err(source) => {
            let failure = Error::Reservation {
                name: name.to_owned(),
                source: Box::new(source),
            };
            (
                ConditionStatus::Unknown,
                failure.reason(),
                format!("{}; will retry", chain(&failure)),
                Some(failure),
            )
        }
    };
    Kept {
        finding: scheduled.then(|| Finding::new(condition::RESERVATION_CREATED, holds, why, message)),
        failure,
    }
}

async fn change(
    context: &Context,
    writer: &Writer,
    read: &Read,
    client: &Client,
    window: Option<&Window>,
    observed: &Observed,
) -> Result<Result<Comparison, slurm_rest::Error>, Error> {
    let name = read.nodeset.reservation_name();
    let live = match client.reservation(&name).await {
        Ok(live) => Some(live),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Ok(Err(error)),
    };
    let comparison = reservation::compare(window, live.as_ref(), observed.now);
    if comparison.exists {
        hold(context, writer, read, true).await?;
    }
    let done = match &comparison.change {
        Some(Change::Write(update)) => {
            tracing::info!(reservation = name, ?update, "updating the reservation");
            client.update_reservation(update).await
        }
        Some(Change::Delete) => {
            tracing::info!(reservation = name, "deleting the reservation");
            match client.delete_reservation(&name).await {
                Err(error) if error.is_not_found() => Ok(()),
                answer => answer,
            }
        }
        None => Ok(()),
    };
    if let Err(error) = done {
        return Ok(Err(error));
    }
    if window.is_none() {
        hold(context, writer, read, false).await?;
    }
    Ok(Ok(comparison))
}

async fn hold(context: &Context, writer: &Writer, read: &Read, wanted: bool) -> Result<(), Error> {
    // The NodeSet may have been written since it was read.
    let key = Key::of(read.nodeset.as_ref());
    let Some(nodeset) = context.caches.nodesets.get(&key) else {
        return Ok(());
    };
    let written = writer
        .finalizer(nodeset.as_ref(), finalizer::NODESET_RESERVATION, wanted)
        .await
        .map_err(Error::Finalizer)?;
    // Without finalizers the NodeSet is gone and must not be added to the cache again.
    if let Some(written) = written.filter(|written| !written.finalizers().is_empty()) {
        context.caches.nodesets.upsert(written);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::everything_goes(json!({ "deletionTimestamp": "2030-01-01T00:00:00Z" }), Some(true), true)]
    #[case::the_cluster_stays(json!({ "deletionTimestamp": "2030-01-01T00:00:00Z" }), Some(false), false)]
    #[case::the_workers_stay(json!({}), Some(true), false)]
    #[case::the_cluster_is_gone(json!({}), None, true)]
    #[case::forced(json!({ "annotations": { annotation::FORCE_DELETE: "true" } }), Some(false), true)]
    fn a_reservation_is_left_only_where_nobody_needs_it_back(
        #[case] metadata: Value,
        #[case] controller_goes: Option<bool>,
        #[case] left: bool,
    ) {
        let spec = json!({ "controllerRef": { "name": "c" } });
        let nodeset: NodeSet = serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap();
        let controller = controller_goes.map(|goes| {
            let time = goes.then_some("2030-01-01T00:00:00Z");
            let object = json!({ "metadata": { "deletionTimestamp": time }, "spec": {} });
            serde_json::from_value::<Controller>(object).unwrap()
        });
        assert_eq!(may_be_left(&nodeset, controller.as_ref()), left);
    }

    #[test]
    fn what_slurm_did_not_do_is_said_and_tried_again() {
        let refused = || slurm_rest::Error::NotFound {
            what: "node cpu-7".to_owned(),
        };
        let Kept { finding, failure } = finding_of(true, "SlurmOperatorMaint-cpu", Err(refused()));
        let failure = failure.unwrap();
        assert_eq!(failure.reason(), "ReservationFailed");
        let finding = finding.unwrap();
        assert_eq!(
            (finding.holds, finding.reason),
            (ConditionStatus::Unknown, "ReservationFailed")
        );
        for part in ["SlurmOperatorMaint-cpu", "scheduledUpdate", "cpu-7", "retry"] {
            assert!(finding.message.contains(part), "{}", finding.message);
        }
        // A reservation that is to be deleted has no condition, but is retried as well.
        let kept = finding_of(false, "SlurmOperatorMaint-cpu", Err(refused()));
        assert!(kept.finding.is_none() && kept.failure.is_some());
    }

    #[test]
    fn an_answer_is_no_failure() {
        for exists in [true, false] {
            let comparison = Comparison {
                change: None,
                exists,
                message: "so".to_owned(),
            };
            let kept = finding_of(true, "x", Ok(comparison));
            assert!(kept.failure.is_none());
            assert_eq!(kept.finding.unwrap().holds, ConditionStatus::from(exists));
        }
    }
}
