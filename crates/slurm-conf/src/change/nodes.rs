//! Static nodes, compared by name: one line can define many nodes, and the same nodes can move to other lines.

use std::collections::{BTreeMap, BTreeSet};

use super::effects::{self, NODE_SHAPE, differs};
use super::{Attributes, Change, Class, Daemon, MustBeEmpty, Records};
use crate::catalogue::File;
use crate::hostlist::{Hostlist, MAX_NAMES, compress};

pub(super) const KEY: &str = "nodename";

/// The effect on a node, ordered by severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// The node is new, or none of the resources that its jobs hold changes.
    Kept,
    /// The port of slurmd changes.
    Moved,
    /// The resources of the node change while its jobs hold allocations of the old ones.
    Reshaped,
    /// The node is removed together with its jobs.
    Removed,
}

/// The line of a node and its attributes.
type Nodes<'a> = BTreeMap<String, (&'a str, &'a Attributes)>;

pub(super) fn compare(old: &Records, new: &Records, changes: &mut Vec<Change>) {
    let whole = is_countable(old) && is_countable(new);
    let (old, new) = (nodes(old, whole), nodes(new, whole));
    let mut fates: BTreeMap<Fate, BTreeSet<&str>> = BTreeMap::new();
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        if let Some(fate) = fate(old.get(name), new.get(name)) {
            fates.entry(fate).or_default().insert(name);
        }
    }
    for (fate, names) in fates {
        // Names that cannot be compressed come from a line that is not a valid host list.
        let list = compress(names.iter().copied())
            .unwrap_or_else(|_| names.iter().copied().collect::<Vec<_>>().join(","));
        changes.push(Change {
            what: format!("{}={list}", effects::spelling(KEY)),
            class: class(fate, list),
        });
    }
}

fn lines(records: &Records) -> impl Iterator<Item = (&String, &Attributes)> {
    records
        .iter()
        .filter(|((key, name, _), _)| key == KEY && !effects::is_default(File::Slurm, name))
        .map(|((_, name, _), attributes)| (name, attributes))
}

/// Whether there are few enough nodes to compare each of them.
fn is_countable(records: &Records) -> bool {
    let lengths = lines(records).map(|(name, _)| name.parse::<Hostlist>().map_or(1, |list| list.len()));
    lengths.fold(0, u64::saturating_add) <= MAX_NAMES
}

fn nodes(records: &Records, whole: bool) -> Nodes<'_> {
    let mut nodes = Nodes::new();
    for (line, attributes) in lines(records) {
        match line.parse::<Hostlist>() {
            Ok(list) if whole => nodes.extend(list.names().map(|name| (name, (line.as_str(), attributes)))),
            _ => {
                nodes.insert(line.clone(), (line, attributes));
            }
        }
    }
    nodes
}

/// `None` if nothing changes.
fn fate(before: Option<&(&str, &Attributes)>, after: Option<&(&str, &Attributes)>) -> Option<Fate> {
    match (before, after) {
        (None, None) => None,
        (None, Some(_)) => Some(Fate::Kept),
        (Some(_), None) => Some(Fate::Removed),
        (Some((_, before)), Some((_, after))) if differs(before, after, &NODE_SHAPE) => Some(Fate::Reshaped),
        (Some((old_line, before)), Some((new_line, after))) => {
            // A range of ports is assigned to the nodes in their order on the line.
            let ranged = before.get("port").is_some_and(|port| port.contains('['));
            if differs(before, after, &["port"]) || (ranged && old_line != new_line) {
                return Some(Fate::Moved);
            }
            (before != after).then_some(Fate::Kept)
        }
    }
}

fn class(fate: Fate, list: String) -> Class {
    match fate {
        Fate::Kept => Class::Reconfigure,
        Fate::Moved => Class::restart(&[Daemon::Slurmctld, Daemon::Slurmd]),
        Fate::Reshaped => Class::kills(MustBeEmpty::Nodes(list), &[Daemon::Slurmd]),
        Fate::Removed => Class::kills(MustBeEmpty::Nodes(list), &[]),
    }
}
