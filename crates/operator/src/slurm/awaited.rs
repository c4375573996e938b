//! The nodes that a decision waits for. They are read one by one every second, while the list of all nodes, which costs
//! Slurm much more, rests. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use keelson_runtime::Key;
use tokio::time::Instant;

use super::facts::NodeName;

/// The maximum number of nodes that are read one by one in a second: at 1.6 ms each they take slurmrestd as much time as
/// lists may. More nodes take turns.
pub const MOST: usize = 128;
/// A NodeSet names its nodes again in each reconcile. One that is gone does not take its names back.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(5);

/// The nodes that somebody waits for.
#[derive(Debug, Default)]
pub struct Awaited {
    by_nodeset: HashMap<Key, Wait>,
    /// When each was last read by itself.
    asked: HashMap<NodeName, Instant>,
}

#[derive(Debug)]
struct Wait {
    names: BTreeSet<NodeName>,
    until: Instant,
}

impl Awaited {
    /// Replaces the nodes that a NodeSet waits for.
    pub fn replace(&mut self, nodeset: &Key, names: impl IntoIterator<Item = NodeName>, now: Instant) {
        let names: BTreeSet<NodeName> = names.into_iter().collect();
        let until = now + FORGOTTEN_AFTER;
        if names.is_empty() {
            self.by_nodeset.remove(nodeset);
        } else {
            self.by_nodeset.insert(nodeset.clone(), Wait { names, until });
        }
    }

    /// Forgets nodes that are gone.
    pub fn remove(&mut self, names: &[NodeName]) {
        for wait in self.by_nodeset.values_mut() {
            for name in names {
                wait.names.remove(name);
            }
        }
    }

    /// Returns the number of nodes that somebody waits for.
    pub fn count(&mut self, now: Instant) -> usize {
        self.by_nodeset.retain(|_, wait| wait.until > now);
        self.by_nodeset.values().map(|wait| wait.names.len()).sum()
    }

    /// Returns the nodes to read now: those that we changed, and then those that were asked for longest ago.
    pub fn due(&mut self, written: impl IntoIterator<Item = NodeName>, now: Instant) -> Vec<NodeName> {
        self.by_nodeset.retain(|_, wait| wait.until > now);
        let awaited: BTreeSet<&NodeName> = self.by_nodeset.values().flat_map(|wait| &wait.names).collect();
        self.asked.retain(|name, _| awaited.contains(name));
        let written: BTreeSet<NodeName> = written.into_iter().collect();
        let mut others: Vec<(Option<Instant>, &NodeName)> = awaited
            .iter()
            .filter(|name| !written.contains(**name))
            .map(|name| (self.asked.get(*name).copied(), *name))
            .collect();
        others.sort_unstable();
        let others = others.into_iter().map(|(_, name)| name.clone());
        let due: Vec<NodeName> = written.iter().cloned().chain(others).take(MOST).collect();
        let asked = due.iter().filter(|name| awaited.contains(name));
        self.asked.extend(asked.map(|name| (name.clone(), now)));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodeset(name: &str) -> Key {
        Key::new("slurm", name)
    }

    #[tokio::test(start_paused = true)]
    async fn changed_nodes_come_first_and_then_those_that_were_not_asked_for_longest() {
        let now = Instant::now();
        let mut awaited = Awaited::default();
        awaited.replace(&nodeset("x"), ["a".into(), "b".into()], now);
        assert_eq!(awaited.due(["b".into()], now), ["b", "a"].map(NodeName::from));
        awaited.replace(&nodeset("y"), ["c".into()], now);
        let later = now + Duration::from_secs(1);
        assert_eq!(awaited.due([], later), ["c", "a", "b"].map(NodeName::from));
    }

    #[tokio::test(start_paused = true)]
    async fn a_nodeset_replaces_its_own_nodes_and_nodes_that_are_gone_are_forgotten() {
        let now = Instant::now();
        let mut awaited = Awaited::default();
        awaited.replace(&nodeset("x"), ["a".into(), "b".into()], now);
        awaited.replace(&nodeset("y"), ["b".into(), "c".into(), "d".into()], now);
        awaited.replace(&nodeset("x"), ["e".into()], now);
        awaited.remove(&["c".into()]);
        assert_eq!(awaited.due([], now), ["b", "d", "e"].map(NodeName::from));
        assert_eq!(awaited.count(now), 3);
        awaited.replace(&nodeset("y"), [], now);
        assert_eq!(awaited.due([], now), ["e"].map(NodeName::from));
        assert_eq!(awaited.asked.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_are_not_named_again_are_forgotten() {
        let mut awaited = Awaited::default();
        awaited.replace(&nodeset("x"), ["a".into()], Instant::now());
        let later = Instant::now() + FORGOTTEN_AFTER;
        assert!(awaited.due([], later).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn more_nodes_than_slurm_is_asked_for_take_turns() {
        let name = |index: usize| NodeName(format!("n{index}"));
        let mut awaited = Awaited::default();
        let now = Instant::now();
        awaited.replace(&nodeset("x"), (0..MOST + 2).map(name), now);
        let first = awaited.due([], now);
        assert_eq!(first.len(), MOST);
        let second = awaited.due([], now + Duration::from_secs(1));
        let again = second.iter().filter(|name| first.contains(name));
        assert_eq!(again.count(), MOST - 2);
    }
}
