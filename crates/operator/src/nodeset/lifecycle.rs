//! The beginning and the end of a NodeSet: the finalizer that holds it while it has workers, the anchor of its children, and
//! what it leaves behind in Slurm.

use std::collections::BTreeSet;

use keelson_api::well_known::finalizer;
use keelson_runtime::{Key, apply::Writer};
use kube::ResourceExt;

use super::{act, derive_facts, error::Error, observe::Read, plan, workers};
use crate::{anchor, context::Context};

/// What keeps a NodeSet from being gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It is wanted, or has workers that have to leave first.
    Workers,
    /// Only the reservation of its update window.
    Reservation,
    /// Nothing: it is gone, or its workers stay without it.
    Nothing,
}

/// Adds or removes the finalizer, and releases the children of a NodeSet that goes.
pub async fn hold_or_release(context: &Context, writer: &Writer, read: &Read) -> Result<Hold, Error> {
    let nodeset = &read.nodeset;
    let deleting = nodeset.metadata.deletion_timestamp.is_some();
    let orphaning = derive_facts::is_orphaning(nodeset, &read.revisions);
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
        // Only now: released revisions are how the next pass knows an orphaned NodeSet when the finalizer could not be removed.
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

/// The garbage collector releases the children of an object by a patch, which the API server refuses for a revision whose data
/// it would write in another form (`<` becomes `\u003c`). The next NodeSet makes its own.
async fn delete_revisions(writer: &Writer, read: &Read) -> Result<(), Error> {
    for revision in &read.revisions {
        writer.delete(revision.as_ref()).await.map_err(Error::Revision)?;
    }
    Ok(())
}

/// A NodeSet without workers that goes takes along what is left of it in Slurm, as far as Slurm answers now: nobody waits for it.
async fn prune_last_records(context: &Context, writer: &Writer, read: &Read) {
    let nodeset = &read.nodeset;
    let controller_key = Key::new(
        nodeset.namespace().unwrap_or_default(),
        &nodeset.spec.controller_ref.name,
    );
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
        template: Err("the NodeSet is deleted".to_owned()),
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
