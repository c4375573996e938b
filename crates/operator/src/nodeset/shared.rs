//! Applies the objects that all NodeSets of a cluster share (the workers' Service and PodDisruptionBudget) and the sshd
//! configuration of this NodeSet.

use keelson_runtime::apply::{self, Writer};

use super::{build, observe::Read};
use crate::{anchor, apply_child::apply_child, children::metadata::shared_by, context::Context};

pub async fn apply_shared(context: &Context, writer: &Writer, read: &Read) -> Result<(), apply::Error> {
    let Read {
        nodeset,
        siblings,
        live,
        ..
    } = read;
    let owners: Vec<_> = siblings
        .iter()
        .flat_map(|sibling| {
            // The garbage collector removes references to a NodeSet that is being deleted.
            let stays = sibling.metadata.deletion_timestamp.is_none();
            let own = stays.then(|| shared_by(sibling.as_ref()));
            own.into_iter()
                .chain(anchor::reference(context, sibling.as_ref()))
        })
        .collect();
    if owners.is_empty() {
        return Ok(());
    }
    let service = build::build_workers_service(nodeset, owners.clone());
    apply_child(
        writer,
        Some(&context.caches.services),
        &service,
        live.workers_service.as_ref(),
    )
    .await?;
    let budget = build::build_workers_budget(nodeset, &owners);
    apply_child(
        writer,
        Some(&context.caches.disruption_budgets),
        &budget,
        live.workers_budget.as_ref(),
    )
    .await?;
    if let Ok(Some(config)) = build::build_ssh_config(nodeset)
        && !anchor::is_foreground(nodeset.as_ref())
    {
        let writer = writer.anchored(anchor::reference(context, nodeset.as_ref()));
        apply_child(&writer, None, &config, live.ssh_config.as_ref()).await?;
    }
    Ok(())
}
