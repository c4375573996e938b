//! Creation and deletion of a NodeSet: the finalizer that is set while it has workers, the anchor of its children, and
//! its remaining records in Slurm.

use std::collections::BTreeSet;

use keelson_api::well_known::finalizer;
use keelson_runtime::apply::Writer;
use kube::ResourceExt;

use super::{act, derive_facts, nodeset_facts, observe::Read, plan, workers};
use crate::{anchor, context::Context, error::Error};

/// Why a NodeSet must not be removed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It is not being deleted, or still has workers to remove.
    Workers,
    /// Only the reservation of its maintenance window is left.
    Reservation,
    /// Nothing: its workers are gone or orphaned.
    Nothing,
}

/// Adds or removes the finalizer, and releases the children of a NodeSet that is being deleted.
pub async fn hold_or_release(context: &Context, writer: &Writer, read: &Read) -> Result<Hold, Error> {
    let nodeset = &read.nodeset;
    let deleting = nodeset.metadata.deletion_timestamp.is_some();
    let orphaning = nodeset_facts::is_orphaning(nodeset, &read.revisions);
    let keeps_workers = !orphaning && (!deleting || !read.pods.is_empty());
    if deleting && !keeps_workers && !orphaning {
        prune_last_records(context, writer, read).await;
        anchor::release(context, writer, nodeset.as_ref())
            .await
            .map_err(Error::Anchor)?;
    }
    let written = writer
        .finalizer(nodeset.as_ref(), finalizer::NODESET_DRAIN, keeps_workers)
        .await
        .map_err(Error::Finalizer)?;
    if orphaning {
        // Only after the finalizer is removed: if that fails, the next reconcile detects an orphaned NodeSet by its
        // released revisions.
        delete_revisions(writer, read).await?;
    }
    let reserved = |known: &String| known == finalizer::NODESET_RESERVATION;
    let hold = if keeps_workers {
        Hold::Workers
    } else if nodeset.finalizers().iter().any(reserved) {
        Hold::Reservation
    } else {
        return Ok(Hold::Nothing);
    };
    if let Some(written) = written {
        context.caches.nodesets.upsert(written);
    }
    Ok(hold)
}

/// Deletes the revisions of an orphaned NodeSet. The garbage collector orphans children with a patch, which the API
/// server refuses for a revision whose data it would encode differently (`<` becomes `\u003c`). The next NodeSet
/// creates its own revisions.
async fn delete_revisions(writer: &Writer, read: &Read) -> Result<(), Error> {
    for revision in &read.revisions {
        writer.delete(revision.as_ref()).await.map_err(Error::Revision)?;
    }
    Ok(())
}

/// Deletes the remaining Slurm records of a NodeSet without workers, if Slurm answers; the deletion does not wait for
/// it.
async fn prune_last_records(context: &Context, writer: &Writer, read: &Read) {
    let nodeset = &read.nodeset;
    let controller_key = super::controller_key(nodeset);
    let Some(control) = context.mirrors.control(&controller_key) else {
        return;
    };
    let none = BTreeSet::new();
    let worker = derive_facts::Worker {
        revision: "",
        equal: &none,
        same_node: &none,
        pod_spec: None,
    };
    let slurm = context.mirrors.slurm(&controller_key);
    let mut observed = derive_facts::derive_facts(read, &worker, slurm, &[], context.clock.now());
    if plan::leftovers(&observed).next().is_none() {
        return;
    }
    observed.slurm = observed
        .slurm
        .with_jobs(context.mirrors.jobs(&controller_key).await);
    let workers = workers::KubeWorkers {
        context,
        writer,
        nodeset,
        template: Err("the NodeSet is being deleted".to_owned()),
        revision: "",
        anchor: None,
        slurm: &observed.slurm,
    };
    let act = act::Act {
        workers: &workers,
        slurm: Some(control.as_ref()),
    };
    act.run(&plan::plan(&observed)).await;
}
