//! Makes slurmctld write down the nodes that have registered.
//!
//! slurmctld saves a new dynamic node together with the next change of any node, which may be minutes away. If its machine is
//! lost before, it comes back without the node, and slurmd registers only when it starts. A change of a node that changes
//! nothing makes slurmctld save all of them within seconds.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use keelson_runtime::run::chain;
use slurm_rest::{Client, node::NodeUpdate};
use tokio::time::Instant;

use super::facts::{NodeName, SlurmNode};

/// Workers that start together register over a while; they are written down together, too.
const PAUSE: Duration = Duration::from_secs(20);

/// Which registrations slurmctld has written down.
#[derive(Debug, Default)]
pub struct Registrations {
    written: BTreeMap<NodeName, Timestamp>,
    asked: Option<Instant>,
}

impl Registrations {
    /// Has them written down if there are new ones; what fails is tried again with the next look.
    pub async fn write_down(&mut self, client: &Client, nodes: &BTreeMap<NodeName, SlurmNode>) {
        let Some(name) = self.unwritten(registered(nodes)) else {
            return;
        };
        if self.asked.is_some_and(|asked| asked.elapsed() < PAUSE) {
            return;
        }
        self.asked = Some(Instant::now());
        match client.update_node(&name.0, &NodeUpdate::default()).await {
            Ok(()) => self.written = registered(nodes).map(|(name, at)| (name.clone(), at)).collect(),
            Err(error) => tracing::debug!(error = chain(&error), "slurmctld was not asked to save its nodes"),
        }
    }

    /// A node that has registered since.
    fn unwritten<'a>(
        &self,
        mut registered: impl Iterator<Item = (&'a NodeName, Timestamp)>,
    ) -> Option<&'a NodeName> {
        registered
            .find(|(name, at)| self.written.get(name) != Some(at))
            .map(|(name, _)| name)
    }
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
    fn what_has_registered_since_is_written_down(
        #[case] now: &[(&str, i64)],
        #[case] expected: Option<&str>,
    ) {
        let registrations = Registrations {
            written: times(&[("a", 5), ("b", 5)]),
            asked: None,
        };
        let now = times(now);
        let found = registrations.unwritten(now.iter().map(|(name, at)| (name, *at)));
        assert_eq!(found.map(|name| name.0.as_str()), expected);
    }
}
