//! Keeps the history of revisions as `revision` decides on it.

use std::collections::BTreeSet;

use keelson_api::well_known::label;
use keelson_runtime::apply::Writer;
use kube::ResourceExt;

use super::{build::Template, derive_facts, error::Error, observe::Read, revision};
use crate::{context::Context, problem::Problem};

/// Which workers are up to date, and the newest revision.
#[derive(Debug, Clone)]
pub struct Revisions {
    /// What workers made now are marked with.
    pub newest: String,
    /// Hashes under which Slinky made pods that equal the newest.
    pub equal: BTreeSet<String>,
    /// Hashes of revisions whose workers register as the same kind of node.
    pub same_node: BTreeSet<String>,
    pub collisions: Option<i32>,
}

/// Writes down the revision of the template. Without a template the workers of the last one stay as they are.
pub async fn keep_history(
    context: &Context,
    writer: &Writer,
    read: &Read,
    template: Result<&Template, &Problem>,
) -> Result<Revisions, Error> {
    let Ok(template) = template else {
        let before = read.nodeset.status.clone().unwrap_or_default();
        return Ok(Revisions {
            newest: before.node_set_hash,
            equal: BTreeSet::new(),
            same_node: BTreeSet::new(),
            collisions: before.collision_count,
        });
    };
    let history = record(context, writer, read, template).await?;
    Ok(Revisions {
        newest: history.newest,
        equal: history.equal,
        same_node: history.same_node,
        collisions: Some(history.collisions),
    })
}

/// Has the revision of what workers are made from now on record before the first of them is made.
async fn record(
    context: &Context,
    writer: &Writer,
    read: &Read,
    template: &Template,
) -> Result<revision::History, Error> {
    let in_use = read
        .pods
        .iter()
        .filter_map(|pod| pod.labels().get(label::REVISION_HASH).cloned())
        .chain(derive_facts::records(&read.nodeset).into_values())
        .collect();
    let history = revision::settle(&read.nodeset, &template.inputs, &read.revisions, &in_use);
    let revisions = &context.caches.revisions;
    if read.nodeset.metadata.deletion_timestamp.is_some() {
        return Ok(history);
    }
    if let Some(revision::Write { instead_of, revision }) = &history.write {
        if let Some(old) = instead_of {
            writer.delete(old.as_ref()).await.map_err(Error::Revision)?;
        }
        let written = writer.create(revision).await.map_err(Error::Revision)?;
        revisions.upsert(written);
    }
    // Paused means hands off, as with workers.
    let expired = history
        .expired
        .iter()
        .filter(|_| derive_facts::paused(&read.nodeset).is_none());
    for expired in expired {
        writer.delete(expired.as_ref()).await.map_err(Error::Revision)?;
        revisions.remove(expired.as_ref());
    }
    Ok(history)
}
