//! Keeps the reservation of a scheduled update as `reservation` judges it. A finalizer stands while there may be one.

use keelson_api::well_known::{annotation, condition, finalizer, reason};
use keelson_runtime::{Key, apply::Writer, run::chain};
use kube::ResourceExt;
use slurm_rest::Client;

use super::{
    error::Error,
    facts::Observed,
    observe::Read,
    reservation::{self, Change, Verdict, Window},
};
use crate::{conditions::Finding, context::Context};

/// Brings Slurm's reservation up to date; what there is to say of it, where the NodeSet is updated in a window.
pub async fn keep(
    context: &Context,
    writer: &Writer,
    read: &Read,
    observed: &Observed,
) -> Result<Option<Finding>, Error> {
    let nodeset = &read.nodeset;
    let scheduled = reservation::is_scheduled(nodeset);
    let held = nodeset
        .finalizers()
        .iter()
        .any(|known| known == finalizer::NODESET_RESERVATION);
    if !scheduled && !held {
        return Ok(None);
    }
    let said = |exists: bool, message: String| {
        let why = if exists {
            reason::RESERVATION_CREATED
        } else {
            reason::RESERVATION_NOT_EXISTS
        };
        scheduled.then(|| Finding::new(condition::RESERVATION_CREATED, exists, why, message))
    };
    let window = match scheduled
        .then(|| reservation::window(nodeset, observed))
        .transpose()
    {
        Ok(window) => window,
        Err(problem) => return Ok(said(false, problem)),
    };
    let controller = Key::new(
        nodeset.namespace().unwrap_or_default(),
        &nodeset.spec.controller_ref.name,
    );
    let Some(client) = context.mirrors.client(&controller) else {
        let forced = nodeset.annotations().get(annotation::FORCE_DELETE);
        // With the cluster its reservations are gone.
        if read.controller.is_none() || forced.is_some_and(|value| value == "true") {
            hold(context, writer, read, false).await?;
        }
        return Ok(said(false, "there is no connection to Slurm yet".to_owned()));
    };
    match change(context, writer, read, &client, window.as_ref(), observed).await? {
        Ok(verdict) => Ok(said(verdict.exists, verdict.message)),
        // The next look tries again; nothing but the window depends on it.
        Err(error) => Ok(said(false, format!("Slurm did not do it: {}", chain(&error)))),
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
