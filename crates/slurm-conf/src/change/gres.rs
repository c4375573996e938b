//! gres.conf, compared node by node: a line describes many nodes, some of which may not exist, and only nodes that exist
//! have jobs.

use std::collections::{BTreeMap, BTreeSet};

use super::{Attributes, Change, ChangeSet, Class, Daemon, MustBeEmpty};
use crate::catalogue::{File, Shape};
use crate::hostlist::{Hostlist, compress};
use crate::syntax::{Document, Statement};

/// Classifies a change of gres.conf for these nodes: those that have generic resources and may run jobs.
pub fn gres_change<'a>(
    old: &Document,
    new: &Document,
    nodes: impl IntoIterator<Item = &'a str>,
) -> ChangeSet {
    let (before, after) = (Devices::read(old), Devices::read(new));
    let affected: BTreeSet<&str> = nodes
        .into_iter()
        .filter(|node| before.elsewhere != after.elsewhere || before.of_node(node) != after.of_node(node))
        .collect();
    let (what, class) = if !affected.is_empty() {
        // Names that cannot be compressed are not valid node names.
        let list =
            compress(&affected).unwrap_or_else(|_| affected.iter().copied().collect::<Vec<_>>().join(","));
        let what = format!("gres.conf for {list}");
        (what, Class::kills(MustBeEmpty::Nodes(list), &[Daemon::Slurmd]))
    } else if before == after {
        return ChangeSet::default();
    } else {
        ("gres.conf".to_owned(), Class::Reconfigure)
    };
    ChangeSet {
        changes: vec![Change { what, class }],
    }
}

/// The lines of gres.conf.
#[derive(Debug, PartialEq)]
struct Devices<'a> {
    /// `AutoDetect` on a line of its own, for nodes without a line that sets it.
    detection: Option<String>,
    lines: Vec<Line<'a>>,
    /// Files whose contents are not known.
    elsewhere: Vec<&'a str>,
}

#[derive(Debug, PartialEq)]
struct Line<'a> {
    /// `None` for all nodes.
    nodes: Option<Hostlist>,
    detection: Option<String>,
    /// `None` if the line only sets `AutoDetect`.
    resource: Option<&'a str>,
    /// The rest of the line.
    attributes: Attributes,
}

/// What slurmd on one node reads.
#[derive(Debug, Default, PartialEq)]
struct OfNode<'a> {
    detection: Option<String>,
    /// By resource. The order of the devices of one resource gives them their numbers.
    devices: BTreeMap<String, Vec<&'a Attributes>>,
}

impl<'a> Devices<'a> {
    fn read(document: &'a Document) -> Self {
        let statements = document.statements.iter();
        let record = |statement: &&Statement| File::Gres.shape(&statement.head.key) == Shape::Record;
        Self {
            detection: document.get("AutoDetect").map(str::to_ascii_lowercase),
            lines: statements.filter(record).filter_map(Line::read).collect(),
            elsewhere: document.includes.iter().map(|(_, name)| name.as_str()).collect(),
        }
    }

    fn of_node(&self, node: &str) -> OfNode<'_> {
        let mut found = OfNode {
            detection: self.detection.clone(),
            devices: BTreeMap::new(),
        };
        let applies = |line: &&Line<'_>| line.nodes.as_ref().is_none_or(|nodes| nodes.contains(node));
        for line in self.lines.iter().filter(applies) {
            if let Some(detection) = &line.detection {
                found.detection = Some(detection.clone());
            }
            if let Some(resource) = line.resource {
                let devices = found.devices.entry(resource.to_ascii_lowercase()).or_default();
                devices.push(&line.attributes);
            }
        }
        found
    }
}

impl<'a> Line<'a> {
    /// `None` for a line that Slurm skips: its host list is invalid.
    fn read(statement: &'a Statement) -> Option<Self> {
        let value = statement.head.value.as_str();
        let (nodes, resource) = if statement.head.is("NodeName") {
            (Some(value.parse().ok()?), statement.attribute("Name"))
        } else {
            (None, Some(value))
        };
        // Slurm ignores it on lines without `NodeName`.
        let detection = statement.attribute("AutoDetect").filter(|_| nodes.is_some());
        let others = statement.attributes.iter();
        let others = others.filter(|pair| !pair.is("Name") && !pair.is("AutoDetect"));
        Some(Self {
            nodes,
            detection: detection.map(str::to_ascii_lowercase),
            resource,
            attributes: others
                .map(|pair| (pair.key.to_ascii_lowercase(), pair.value.clone()))
                .collect(),
        })
    }
}
