//! Classification of configuration changes: how the daemons pick up a changed file, and which jobs would be lost.
//!
//! Since Slurm 23.11, a reconfiguration starts new slurmctld, slurmd and sackd processes with the new files, which
//! applies nearly all changes. [`effects`] lists the exceptions. slurmrestd and slurmdbd read their files when they
//! start. The lists are for Slurm 26.05; an unknown parameter requires a restart.

mod effects;
mod gres;
mod nodes;

use std::collections::{BTreeMap, BTreeSet};

use crate::catalogue::{File, Shape};
use crate::syntax::{Document, Statement};

pub use gres::gres_change;

/// A daemon that reads the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Daemon {
    /// The controller.
    Slurmctld,
    /// The accounting daemon.
    Slurmdbd,
    /// The REST daemon.
    Slurmrestd,
    /// The worker's daemon.
    Slurmd,
    /// The login node's daemon.
    Sackd,
}

/// A resource that no job may use before a change is applied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MustBeEmpty {
    /// The whole cluster.
    Cluster,
    /// One partition: no job in any state may refer to it.
    Partition(String),
    /// The nodes of one node set.
    NodeSet(String),
    /// The nodes in a host list.
    Nodes(String),
    /// The nodes that have this generic resource (GRES).
    Gres(String),
}

/// The effect of one change, or of all changes to a file. Variants are ordered by severity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// No effect: no daemon reads the difference.
    None,
    /// The daemons reload the files while they run.
    Reconfigure,
    /// These daemons restart; the others are reconfigured.
    Restart {
        /// The daemons that restart.
        daemons: BTreeSet<Daemon>,
    },
    /// Jobs would be killed or lost.
    KillsJobs {
        /// The resources that must be empty first.
        must_be_empty: BTreeSet<MustBeEmpty>,
        /// The daemons that restart after that; the others are reconfigured.
        restart: BTreeSet<Daemon>,
    },
    /// Not allowed on a running cluster.
    Forbidden {
        /// The reason, as the rest of a sentence.
        why: &'static str,
    },
}

/// One parameter or record that differs. It contains no value, because some values are secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// `SlurmctldPort`, or `PartitionName=gpu`.
    pub what: String,
    /// The class of the change.
    pub class: Class,
}

/// All differences between two files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangeSet {
    /// One entry for each parameter or record, ordered by name.
    pub changes: Vec<Change>,
}

impl ChangeSet {
    /// The class of all changes together: the most severe class, merged with the other changes of that class.
    pub fn class(&self) -> Class {
        self.changes
            .iter()
            .fold(Class::None, |all, change| all.and(&change.class))
    }
}

impl Class {
    fn severity(&self) -> u8 {
        match self {
            Self::None => 0,
            Self::Reconfigure => 1,
            Self::Restart { .. } => 2,
            Self::KillsJobs { .. } => 3,
            Self::Forbidden { .. } => 4,
        }
    }

    fn and(self, other: &Self) -> Self {
        let join = |a: &BTreeSet<Daemon>, b: &BTreeSet<Daemon>| a.union(b).copied().collect();
        match (&self, other) {
            (Self::Restart { daemons: a }, Self::Restart { daemons: b }) => {
                Self::Restart { daemons: join(a, b) }
            }
            (
                Self::KillsJobs {
                    must_be_empty,
                    restart,
                },
                Self::Restart { daemons },
            )
            | (
                Self::Restart { daemons },
                Self::KillsJobs {
                    must_be_empty,
                    restart,
                },
            ) => Self::KillsJobs {
                must_be_empty: must_be_empty.clone(),
                restart: join(restart, daemons),
            },
            (
                Self::KillsJobs {
                    must_be_empty,
                    restart,
                },
                Self::KillsJobs {
                    must_be_empty: others,
                    restart: daemons,
                },
            ) => Self::KillsJobs {
                must_be_empty: must_be_empty.union(others).cloned().collect(),
                restart: join(restart, daemons),
            },
            _ if other.severity() > self.severity() => other.clone(),
            _ => self,
        }
    }

    pub(crate) fn restart(daemons: &[Daemon]) -> Self {
        Self::Restart {
            daemons: daemons.iter().copied().collect(),
        }
    }

    pub(crate) fn kills(what: MustBeEmpty, restart: &[Daemon]) -> Self {
        Self::KillsJobs {
            must_be_empty: BTreeSet::from([what]),
            restart: restart.iter().copied().collect(),
        }
    }
}

/// Classifies the change from `old` to `new`. If the nodes are known, [`gres_change`] is more precise about gres.conf.
pub fn change_class(file: File, old: &Document, new: &Document) -> ChangeSet {
    let mut changes = Vec::new();
    compare_singles(file, old, new, &mut changes);
    compare_repeated(file, old, new, &mut changes);
    compare_records(file, old, new, &mut changes);
    let includes = |document: &Document| {
        document
            .includes
            .iter()
            .map(|(_, name)| name.clone())
            .collect::<Vec<_>>()
    };
    if includes(old) != includes(new) {
        changes.push(Change {
            what: "Include".into(),
            class: effects::unknown(file),
        });
    }
    changes.sort_by(|a, b| a.what.cmp(&b.what));
    ChangeSet { changes }
}

fn compare_singles(file: File, old: &Document, new: &Document, changes: &mut Vec<Change>) {
    // Slurm uses the last value, so later ones overwrite earlier ones here as well.
    let singles = |document: &Document| -> BTreeMap<String, (String, String)> {
        let single = |s: &&Statement| file.shape(&s.head.key) == Shape::Single;
        let entry = |s: &Statement| {
            (
                s.head.key.to_ascii_lowercase(),
                (s.head.key.clone(), s.head.value.clone()),
            )
        };
        document.statements.iter().filter(single).map(entry).collect()
    };
    let (old, new) = (singles(old), singles(new));
    for key in old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))) {
        let (before, after) = (old.get(key), new.get(key));
        if before.map(|(_, value)| value) == after.map(|(_, value)| value) {
            continue;
        }
        if let Some((spelling, _)) = after.or(before) {
            let [before, after] = [before, after].map(|entry| entry.map_or("", |(_, value)| value));
            let class = effects::parameter_class(file, key, before, after);
            changes.push(Change {
                what: spelling.clone(),
                class,
            });
        }
    }
}

fn compare_repeated(file: File, old: &Document, new: &Document, changes: &mut Vec<Change>) {
    let lists = |document: &Document| {
        let mut lists: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for s in document
            .statements
            .iter()
            .filter(|s| file.shape(&s.head.key) == Shape::Repeated)
        {
            lists
                .entry(s.head.key.to_ascii_lowercase())
                .or_default()
                .push(s.head.value.clone());
        }
        lists
    };
    let (old, new) = (lists(old), lists(new));
    for key in old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))) {
        if old.get(key) != new.get(key) {
            changes.push(Change {
                what: key.clone(),
                class: Class::Reconfigure,
            });
        }
    }
}

/// The attributes of a record as Slurm reads them: keys are case-insensitive, and the last value takes precedence.
type Attributes = BTreeMap<String, String>;
/// Records by key and name. Lines with the same name are numbered: gres.conf has several, and slurm.conf has `DEFAULT`.
type Records = BTreeMap<(String, String, usize), Attributes>;
/// Pseudo-attribute for the position of a controller: the first is the primary, so the order matters. No key has this name.
const RANK: &str = "#";

fn records(file: File, document: &Document) -> Records {
    let mut records = Records::new();
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    // The defaults that `DEFAULT` lines have set so far for the records after them, by key.
    let mut defaults: BTreeMap<String, Attributes> = BTreeMap::new();
    let mut controllers = 0;
    for s in document
        .statements
        .iter()
        .filter(|s| file.shape(&s.head.key) == Shape::Record)
    {
        let mut attributes: Attributes = s
            .attributes
            .iter()
            .map(|a| (a.key.to_ascii_lowercase(), a.value.clone()))
            .collect();
        let (key, name) = (s.head.key.to_ascii_lowercase(), s.head.value.clone());
        if effects::is_default(file, &name) {
            defaults
                .entry(key.clone())
                .or_default()
                .extend(attributes.clone());
        } else if let Some(defaults) = defaults.get(&key) {
            for (key, value) in defaults {
                attributes.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        if key == "slurmctldhost" {
            attributes.insert(RANK.to_owned(), controllers.to_string());
            controllers += 1;
        }
        let count = counts.entry((key.clone(), name.clone())).or_default();
        records.insert((key, name, *count), attributes);
        *count += 1;
    }
    records
}

fn compare_records(file: File, old: &Document, new: &Document, changes: &mut Vec<Change>) {
    let (old, new) = (records(file, old), records(file, new));
    let by_node =
        |key: &str, name: &str| file == File::Slurm && key == nodes::KEY && !effects::is_default(file, name);
    if file == File::Slurm {
        nodes::compare(&old, &new, changes);
    }
    for identity in old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))) {
        let (before, after) = (old.get(identity), new.get(identity));
        let (key, name, _) = identity;
        if before == after || by_node(key, name) {
            continue;
        }
        let class = effects::record_class(file, key, name, before, after);
        changes.push(Change {
            what: format!("{}={name}", effects::spelling(key)),
            class,
        });
    }
}

#[cfg(test)]
mod tests;
