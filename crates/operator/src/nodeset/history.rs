//! Writes the revision history that `revision` computes.

use std::collections::BTreeSet;

use keelson_api::well_known::label;
use keelson_runtime::apply::Writer;
use kube::ResourceExt;

use super::{build::Template, nodeset_facts, observe::Read, revision};
use crate::{context::Context, error::Error, problem::Problem};

/// The latest revision, and which workers are up to date.
#[derive(Debug, Clone)]
pub struct Revisions {
    /// The revision hash of new workers.
    pub newest: String,
    /// Hashes of Slinky revisions whose pods equal those of the latest revision.
    pub equal: BTreeSet<String>,
    /// Hashes of revisions whose workers register with the same node configuration.
    pub same_node: BTreeSet<String>,
    pub collisions: Option<i32>,
}

/// Records the revision of the template. Without a template, existing workers stay unchanged.
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

/// Records the revision, before its first worker is created, and deletes expired revisions.
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
        .chain(nodeset_facts::records(&read.nodeset).into_values())
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
    // A paused NodeSet makes no changes.
    let expired = history
        .expired
        .iter()
        .filter(|_| nodeset_facts::paused(&read.nodeset).is_none());
    for expired in expired {
        writer.delete(expired.as_ref()).await.map_err(Error::Revision)?;
        revisions.remove(expired.as_ref());
    }
    Ok(history)
}
