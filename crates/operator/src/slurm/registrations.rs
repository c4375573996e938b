//! Makes slurmctld save nodes that have registered.
//!
//! slurmctld saves a new dynamic node together with the next change of any node, which may be minutes away. If
//! slurmctld's machine is lost before that, slurmctld restarts without the node, and slurmd registers only when it
//! starts. An update that changes nothing makes slurmctld save all nodes within seconds.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use keelson_runtime::run::chain;
use slurm_rest::{Client, node::NodeUpdate};
use tokio::sync::Notify;

use super::{
    facts::{NodeName, SlurmNode},
    mirror::Mirror,
};

/// Workers that start together register over a while, and are saved together.
const PAUSE: Duration = Duration::from_secs(20);

/// Makes slurmctld save new registrations, forever. `changed` is notified when the mirror has changed.
pub async fn keep_saved(client: &Client, mirror: &Mirror, changed: &Notify) {
    let mut saved = BTreeMap::new();
    loop {
        let Some((name, now)) = to_save(&saved, mirror) else {
            changed.notified().await;
            continue;
        };
        match client.update_node(&name.0, &NodeUpdate::default()).await {
            Ok(()) => saved = now,
            Err(error) => tracing::debug!(error = chain(&error), "failed to have slurmctld save its nodes"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns a node that has registered since the last save, and all registrations now. Does not keep the mirror's list,
/// which the mirror would otherwise have to copy for its next change.
fn to_save(
    saved: &BTreeMap<NodeName, Timestamp>,
    mirror: &Mirror,
) -> Option<(NodeName, BTreeMap<NodeName, Timestamp>)> {
    let (nodes, _) = mirror.last_list();
    let name = unsaved(saved, registered(&nodes))?.clone();
    let now = registered(&nodes).map(|(name, at)| (name.clone(), at));
    Some((name, now.collect()))
}

/// Returns a node that has registered since the last save.
fn unsaved<'a>(
    saved: &BTreeMap<NodeName, Timestamp>,
    mut registered: impl Iterator<Item = (&'a NodeName, Timestamp)>,
) -> Option<&'a NodeName> {
    registered
        .find(|(name, at)| saved.get(name) != Some(at))
        .map(|(name, _)| name)
}

fn registered(nodes: &BTreeMap<NodeName, SlurmNode>) -> impl Iterator<Item = (&NodeName, Timestamp)> {
    nodes
        .iter()
        .filter_map(|(name, node)| Some((name, node.registered?)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn times(nodes: &[(&str, i64)]) -> BTreeMap<NodeName, Timestamp> {
        nodes
            .iter()
            .map(|(name, at)| (NodeName::from(*name), Timestamp::from_second(*at).unwrap()))
            .collect()
    }

    #[rstest]
    #[case::none(&[], None)]
    #[case::known(&[("a", 5)], None)]
    #[case::gone(&[("b", 5)], None)]
    #[case::new(&[("a", 5), ("c", 7)], Some("c"))]
    #[case::started_again(&[("a", 9)], Some("a"))]
    fn a_new_registration_is_saved(#[case] now: &[(&str, i64)], #[case] expected: Option<&str>) {
        let saved = times(&[("a", 5), ("b", 5)]);
        let now = times(now);
        let found = unsaved(&saved, now.iter().map(|(name, at)| (name, *at)));
        assert_eq!(found.map(|name| name.0.as_str()), expected);
    }
}
