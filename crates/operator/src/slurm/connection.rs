//! Connection to one Slurm cluster through its slurmrestd.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use keelson_runtime::Clock;
use slurm_rest::{
    Client, Fetched, Hostlist,
    job::Requeue,
    node::{NodeAction, NodeUpdate},
};

use super::{
    control::{Change, Control, Error},
    facts::{NodeName, SlurmNode},
    jobs::Jobs,
    mirror::Mirror,
};

/// Implements [`Control`] with a slurmrestd client.
#[derive(Clone)]
pub struct Connection {
    pub client: Client,
    pub clock: Clock,
    pub mirror: Arc<Mirror>,
    pub jobs: Arc<Jobs>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    pub fn shared(self) -> Arc<dyn Control> {
        Arc::new(self)
    }
}

impl Control for Connection {
    fn change<'a>(&'a self, nodes: &'a [NodeName], change: &'a Change) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let list = Hostlist::from_names(nodes.iter().map(|node| node.0.as_str()))
                .map_err(|error| Error::Refused(error.to_string()))?;
            let update = match change {
                Change::Drain { reason } => NodeUpdate::drain(reason.clone()),
                Change::Topology { topology } => NodeUpdate {
                    topology: Some(topology.clone()),
                    ..NodeUpdate::default()
                },
                Change::Features { features, active } => NodeUpdate {
                    features: Some(features.clone()),
                    active_features: Some(active.clone()),
                    ..NodeUpdate::default()
                },
                Change::Undrain => NodeUpdate::undrain(),
                Change::Resume => NodeUpdate {
                    state: Some(NodeAction::Resume),
                    ..NodeUpdate::default()
                },
            };
            let answer = self.client.update_nodes(&list, &update).await;
            // Whatever the answer: part of the change may have been applied, unless nothing was sent.
            if !matches!(answer, Err(slurm_rest::Error::Unsupported { .. })) {
                self.mirror.wrote(nodes);
            }
            match answer {
                Err(error) if is_already_so(change, &error) => Ok(()),
                answer => answer.map_err(translate),
            }
        }
        .boxed()
    }

    fn nodes<'a>(
        &'a self,
        names: &'a [NodeName],
    ) -> BoxFuture<'a, Result<BTreeMap<NodeName, SlurmNode>, Error>> {
        /// Beyond this number the whole list costs slurmctld less.
        const ONE_BY_ONE: usize = 32;
        async move {
            if names.len() > ONE_BY_ONE {
                let asked = self.clock.now();
                // If nothing has changed since the mirror's list, Slurm says so in an instant.
                let (known, since) = {
                    // Not kept during the call: the mirror would have to copy it for its next change.
                    let (known, since) = self.mirror.last_list();
                    (still(&known, names, asked), since)
                };
                let all = match self.client.nodes(since).await.map_err(translate)? {
                    Fetched::Changed(all) => all.items,
                    Fetched::Unchanged => return Ok(known),
                };
                let wanted: BTreeSet<&str> = names.iter().map(|name| name.0.as_str()).collect();
                let found = all.iter().filter(|node| wanted.contains(&*node.name));
                return Ok(found
                    .map(|node| (NodeName(node.name.to_string()), SlurmNode::from_rest(node, asked)))
                    .collect());
            }
            let reads = names
                .iter()
                .map(|name| async move { Ok((name.clone(), self.node(name).await?)) });
            let read = futures::future::try_join_all(reads).await?;
            Ok(read
                .into_iter()
                .filter_map(|(name, node)| Some((name, node?)))
                .collect())
        }
        .boxed()
    }

    fn node<'a>(&'a self, name: &'a NodeName) -> BoxFuture<'a, Result<Option<SlurmNode>, Error>> {
        async move {
            let asked = self.clock.now();
            match self.client.node(&name.0).await {
                Ok(node) => Ok(Some(SlurmNode::from_rest(&node, asked))),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(translate(error)),
            }
        }
        .boxed()
    }

    fn requeue<'a>(&'a self, addresses: &'a [String]) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            // Otherwise Slurm would restart a job that has ended since it was listed.
            let how = Requeue {
                incomplete_only: true,
                ..Requeue::default()
            };
            match self.client.requeue_jobs(addresses, how).await {
                Ok(refused) => {
                    for (address, complaint) in refused {
                        self.jobs.note_refusal(&address, complaint.to_string());
                    }
                    Ok(())
                }
                // Before v0.0.45 there is no such call.
                Err(error @ slurm_rest::Error::Unsupported { .. }) => {
                    for address in addresses {
                        self.jobs.note_refusal(address, error.to_string());
                    }
                    Ok(())
                }
                Err(error) => Err(translate(error)),
            }
        }
        .boxed()
    }

    fn cancel<'a>(&'a self, addresses: &'a [String]) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            for address in addresses {
                match self.client.cancel_job(address).await {
                    Ok(()) => {}
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(translate(error)),
                }
            }
            Ok(())
        }
        .boxed()
    }

    fn delete<'a>(&'a self, names: &'a [NodeName]) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let list = Hostlist::from_names(names.iter().map(|name| name.0.as_str()))
                .map_err(|error| Error::Refused(error.to_string()))?;
            // Until the answer is there, a reading may show that the node is gone.
            self.mirror.deleting(names);
            let answer = match self.client.delete_nodes(&list).await {
                Ok(()) => Ok(()),
                // For several nodes slurmctld combines the return codes: a busy one (2016) looks like an unknown one
                // (2018) if another one is unknown.
                Err(error) if error.is_not_found() && names.len() == 1 => Ok(()),
                Err(error) => Err(translate(error)),
            };
            match &answer {
                // Some may have been deleted; the others are there.
                Err(Error::Refused(_) | Error::Unsupported(_)) => self.mirror.wrote(names),
                Ok(()) | Err(Error::Unreachable(_)) => self.mirror.deleted(names),
            }
            answer
        }
        .boxed()
    }
}

/// Returns the named nodes from `known`, as Slurm may confirm them in the answer to a request sent at `asked`.
fn still(
    known: &BTreeMap<NodeName, SlurmNode>,
    names: &[NodeName],
    asked: Timestamp,
) -> BTreeMap<NodeName, SlurmNode> {
    let found = names.iter().filter_map(|name| known.get_key_value(name));
    found
        .map(|(name, node)| {
            let node = SlurmNode {
                read_at: asked,
                ..node.clone()
            };
            (name.clone(), node)
        })
        .collect()
}

/// Slurm calls it an invalid transition to resume a node that is in service already.
fn is_already_so(change: &Change, error: &slurm_rest::Error) -> bool {
    const INVALID_TRANSITION: i64 = 2180;
    let back = matches!(change, Change::Undrain | Change::Resume);
    let slurm_rest::Error::Refused { complaints } = error else {
        return false;
    };
    back && complaints
        .iter()
        .all(|complaint| complaint.number == INVALID_TRANSITION)
}

fn translate(error: slurm_rest::Error) -> Error {
    match error {
        slurm_rest::Error::Refused { complaints } => {
            let words: Vec<String> = complaints.iter().map(ToString::to_string).collect();
            Error::Refused(words.join("; "))
        }
        slurm_rest::Error::NotFound { .. } => Error::Refused(error.to_string()),
        slurm_rest::Error::Unsupported { .. } => Error::Unsupported(error.to_string()),
        other => Error::Unreachable(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use slurm_rest::node::decode_nodes;

    use super::*;

    #[test]
    fn what_slurm_confirms_counts_as_read_then() {
        let (then, now) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(9).unwrap());
        let list = decode_nodes(br#"{ "nodes": [{ "name": "a", "state": ["IDLE"] }] }"#).unwrap();
        let node = SlurmNode::from_rest(&list.items[0], then);
        let known = ["a", "b"].map(|name| (NodeName::from(name), node.clone()));
        let found = still(&known.into(), &["b".into(), "gone".into()], now);
        assert_eq!(found, [("b".into(), SlurmNode { read_at: now, ..node })].into());
    }
}
