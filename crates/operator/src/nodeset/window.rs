//! Keeps the reservation of a scheduled update as `reservation` judges it. A finalizer stands while there may be one.

use keelson_api::{
    Controller, NodeSet,
    well_known::{annotation, condition, finalizer, reason},
};
use keelson_runtime::{Key, ReconcileError, apply::Writer, run::chain};
use kube::ResourceExt;
use slurm_rest::Client;

use super::{
    error::Error,
    facts::Observed,
    observe::Read,
    reservation::{self, Change, Verdict, Window},
};
use crate::{
    conditions::{ConditionStatus, Finding},
    context::Context,
    slurm::facts::Slurm,
};

/// What came of it.
#[derive(Debug, Default)]
pub struct Kept {
    /// What there is to say of the window, where the NodeSet is updated in one.
    pub finding: Option<Finding>,
    /// What Slurm did not do. Nothing in the cluster changes when it could, so that it has to be tried again.
    pub failure: Option<Error>,
}

/// Brings Slurm's reservation up to date.
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
    let controller = Key::new(
        nodeset.namespace().unwrap_or_default(),
        &nodeset.spec.controller_ref.name,
    );
    if matches!(observed.slurm, Slurm::Unknown { .. }) && may_be_left(nodeset, read.controller.as_deref()) {
        hold(context, writer, read, false).await?;
        return Ok(absent(scheduled, "Slurm does not answer".to_owned()));
    }
    let Some(client) = context.mirrors.client(&controller) else {
        return Ok(absent(
            scheduled,
            "there is no connection to Slurm yet".to_owned(),
        ));
    };
    let answer = change(context, writer, read, &client, window.as_ref(), observed).await?;
    let kept = judged(scheduled, &nodeset.reservation_name(), answer);
    if let Some(failure) = &kept.failure {
        context
            .events
            .warning(nodeset.as_ref(), failure.reason(), chain(failure));
    }
    Ok(kept)
}

/// Whether nobody waits until Slurm can be asked again: with a cluster its reservations go, and where everything is deleted at
/// once, as with its namespace, slurmrestd may be gone already.
fn may_be_left(nodeset: &NodeSet, controller: Option<&Controller>) -> bool {
    let forced = nodeset.annotations().get(annotation::FORCE_DELETE);
    let deleting = nodeset.metadata.deletion_timestamp.is_some();
    forced.is_some_and(|value| value == "true")
        || controller.is_none_or(|controller| deleting && controller.metadata.deletion_timestamp.is_some())
}

fn absent(scheduled: bool, message: String) -> Kept {
    let verdict = Verdict {
        change: None,
        exists: false,
        message,
    };
    judged(scheduled, "", Ok(verdict))
}

/// What there is to say of Slurm's answer, and whether to ask again.
fn judged(scheduled: bool, name: &str, answer: Result<Verdict, slurm_rest::Error>) -> Kept {
    let (holds, why, message, failure) = match answer {
        Ok(Verdict { exists, message, .. }) => {
            let why = if exists {
                reason::RESERVATION_CREATED
            } else {
                reason::RESERVATION_NOT_EXISTS
            };
            (ConditionStatus::from(exists), why, message, None)
        }
        // A call that fails may have been carried out all the same.
        Err(source) => {
            let failure = Error::Reservation {
                name: name.to_owned(),
                source: Box::new(source),
            };
            (
                ConditionStatus::Unknown,
                failure.reason(),
                format!("{}; it is tried again", chain(&failure)),
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
) -> Result<Result<Verdict, slurm_rest::Error>, Error> {
    let name = read.nodeset.reservation_name();
    let live = match client.reservation(&name).await {
        Ok(live) => Some(live),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Ok(Err(error)),
    };
    let verdict = reservation::judge(window, live.as_ref(), observed.now);
    if verdict.exists {
        hold(context, writer, read, true).await?;
    }
    let done = match &verdict.change {
        Some(Change::Write(update)) => {
            tracing::info!(reservation = name, ?update, "writing a reservation");
            client.update_reservation(update).await
        }
        Some(Change::Delete) => {
            tracing::info!(reservation = name, "deleting a reservation");
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
    Ok(Ok(verdict))
}

async fn hold(context: &Context, writer: &Writer, read: &Read, wanted: bool) -> Result<(), Error> {
    // The one that was read may have been written since.
    let key = Key::of(read.nodeset.as_ref());
    let Some(nodeset) = context.caches.nodesets.get(&key) else {
        return Ok(());
    };
    let written = writer
        .finalizer(nodeset.as_ref(), finalizer::NODESET_RESERVATION, wanted)
        .await
        .map_err(Error::Finalizer)?;
    // One that is gone with its last finalizer must not come back into the cache.
    if let Some(written) = written.filter(|written| !written.finalizers().is_empty()) {
        context.caches.nodesets.upsert(written);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use keelson_runtime::Retry;
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
        let Kept { finding, failure } = judged(true, "SlurmOperatorMaint-cpu", Err(refused()));
        let failure = failure.unwrap();
        assert_eq!(failure.retry(), Retry::Backoff);
        let finding = finding.unwrap();
        assert_eq!(
            (finding.holds, finding.reason),
            (ConditionStatus::Unknown, "ReservationFailed")
        );
        for part in ["SlurmOperatorMaint-cpu", "scheduledUpdate", "cpu-7", "again"] {
            assert!(finding.message.contains(part), "{}", finding.message);
        }
        // One that is to go has no condition, and is tried again all the same.
        let kept = judged(false, "SlurmOperatorMaint-cpu", Err(refused()));
        assert!(kept.finding.is_none() && kept.failure.is_some());
    }

    #[test]
    fn an_answer_is_no_failure() {
        for exists in [true, false] {
            let verdict = Verdict {
                change: None,
                exists,
                message: "so".to_owned(),
            };
            let kept = judged(true, "x", Ok(verdict));
            assert!(kept.failure.is_none());
            assert_eq!(kept.finding.unwrap().holds, ConditionStatus::from(exists));
        }
    }
}
