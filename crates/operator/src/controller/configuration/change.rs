//! Decides how slurmctld gets from the configuration that it has to the wanted one without killing a job. Pure.
//!
//! A reconfiguration kills the jobs of a partition that is no longer in slurm.conf. So a partition is removed in steps:
//! it is kept and drained, and removed when Slurm reports that it takes no more jobs and has none left. Other changes
//! that kill jobs, also those of gres.conf, wait for an empty cluster (`quiesce`); those that a running cluster never
//! survives are refused.

use std::collections::{BTreeMap, BTreeSet};

use slurm_conf::{
    catalogue::File,
    change::{Change, ChangeSet, Class, Daemon, MustBeEmpty, change_class},
    syntax::{Document, Statement, parse},
};

use super::gres::{GresNodes, GresStep};
use crate::controller::build::Configuration;
use crate::{problem::Problem, wording::counted};

/// Partitions and jobs of Slurm, as far as they matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Slurm's partitions, and whether each takes new jobs.
    pub partitions: BTreeMap<String, bool>,
    /// Active jobs: id, and the partitions that each names.
    pub jobs: Vec<(u64, BTreeSet<String>)>,
    /// Nodes with generic resources; `None` if they were not read.
    pub gres: Option<GresNodes>,
}

impl Usage {
    fn jobs_in(&self, partition: &str) -> Vec<u64> {
        let named = |names: &BTreeSet<String>| names.iter().any(|name| name.eq_ignore_ascii_case(partition));
        self.jobs
            .iter()
            .filter(|(_, names)| named(names))
            .map(|(id, _)| *id)
            .collect()
    }

    fn has_resource(&self, name: &str) -> bool {
        let is_it = |resource: &String| resource.eq_ignore_ascii_case(name);
        let nodes = self.gres.as_ref();
        nodes.is_none_or(|nodes| nodes.values().flatten().any(is_it))
    }
}

/// The changes from the published configuration to the candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The changes of slurm.conf.
    changes: ChangeSet,
    published: Document,
    gres: Option<GresStep>,
}

/// What to do with a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Publish it, and keep these records of the old configuration.
    Publish {
        retained: Vec<Statement>,
        /// Whether slurmctld has to restart to apply it.
        restart: bool,
        /// Why the records are retained, for the status.
        waiting: Vec<String>,
    },
    /// Keep the published configuration.
    Hold(Problem),
}

/// Decides for every configuration that slurmctld may have. Only the first, the likeliest, decides about a restart.
pub fn decide(steps: &[Option<Step>], usage: Option<&Usage>) -> Decision {
    let mut all_retained: Vec<Statement> = Vec::new();
    let mut waiting = Vec::new();
    let mut restarts = false;
    for (i, step) in steps.iter().enumerate() {
        let Some(step) = step else { continue };
        match step.decide(usage) {
            Decision::Publish {
                retained,
                restart,
                waiting: why,
            } => {
                restarts |= restart && i == 0;
                for statement in retained {
                    if !all_retained.iter().any(|kept| kept.head == statement.head) {
                        all_retained.push(statement);
                    }
                }
                waiting.extend(why);
            }
            hold @ Decision::Hold(_) => return hold,
        }
    }
    waiting.sort();
    waiting.dedup();
    Decision::Publish {
        retained: all_retained,
        restart: restarts,
        waiting,
    }
}

impl Step {
    /// Compares two configurations; `None` if nothing differs.
    pub fn between(published: &Configuration, candidate: &Configuration) -> Option<Self> {
        if published.files == candidate.files {
            return None;
        }
        let gres = GresStep::between(published, candidate);
        match (read(published), read(candidate)) {
            (Ok(published), Ok(candidate)) => {
                let changes = change_class(File::Slurm, &published, &candidate);
                let differs = !changes.changes.is_empty() || gres.is_some();
                differs.then_some(Self {
                    changes,
                    published,
                    gres,
                })
            }
            (Err(why), _) => Some(Self::from_unknown(&format!(
                "the published configuration cannot be parsed: {why}"
            ))),
            (_, Err(why)) => Some(Self::from_unknown(&format!(
                "the new configuration cannot be parsed: {why}"
            ))),
        }
    }

    /// Returns the step from a configuration that is unknown because of `why`: any job may depend on any of it.
    pub fn from_unknown(why: &str) -> Self {
        let change = Change {
            what: format!("slurm.conf ({why})"),
            class: Class::KillsJobs {
                must_be_empty: BTreeSet::from([MustBeEmpty::Cluster]),
                restart: BTreeSet::from([Daemon::Slurmctld]),
            },
        };
        Self {
            changes: ChangeSet {
                changes: vec![change],
            },
            published: Document::default(),
            gres: None,
        }
    }

    /// Reports whether the decision depends on Slurm's jobs.
    pub fn needs_usage(&self) -> bool {
        self.needs_gres() || matches!(self.changes.class(), Class::KillsJobs { .. })
    }

    /// Reports whether the decision depends on the nodes with generic resources.
    pub fn needs_gres(&self) -> bool {
        let is_type = |what: &MustBeEmpty| matches!(what, MustBeEmpty::Gres(_));
        let mut changes = self.changes.changes.iter();
        self.gres.is_some() || changes.any(|change| must_be_empty(&change.class).any(is_type))
    }

    /// Returns the changes of all files that are weighed.
    fn changes(&self, usage: Option<&Usage>) -> Vec<Change> {
        let nodes = usage.and_then(|usage| usage.gres.as_ref());
        let of_gres = self.gres.iter().flat_map(|gres| gres.weigh(nodes).changes);
        self.changes.changes.iter().cloned().chain(of_gres).collect()
    }

    /// Decides about this step. `usage` is `None` if Slurm did not answer; then every partition counts as used. A
    /// change that [needs an empty cluster](Self::needs_empty_cluster) gets here only after the cluster was emptied.
    pub fn decide(&self, usage: Option<&Usage>) -> Decision {
        let changes = ChangeSet {
            changes: self.changes(usage),
        };
        let (must_be_empty, restart) = match changes.class() {
            Class::None | Class::Reconfigure => (BTreeSet::new(), BTreeSet::new()),
            Class::Restart { daemons } => (BTreeSet::new(), daemons),
            Class::KillsJobs {
                must_be_empty,
                restart,
            } => (must_be_empty, restart),
            Class::Forbidden { why } => return Decision::Hold(self.forbidden(why)),
        };
        let mut kept = BTreeSet::new();
        let mut waiting = Vec::new();
        for what in &must_be_empty {
            match what {
                MustBeEmpty::Partition(name) => {
                    if let Some(why) = partition_in_use(name, usage) {
                        kept.insert(name.clone());
                        waiting.push(why);
                    }
                }
                // A node set is removed with the partitions that name it, which are checked themselves. For the others,
                // `quiesce` has made sure that no job runs.
                MustBeEmpty::NodeSet(_)
                | MustBeEmpty::Cluster
                | MustBeEmpty::Nodes(_)
                | MustBeEmpty::Gres(_) => {}
            }
        }
        Decision::Publish {
            retained: self.retained(&kept),
            restart: restart.contains(&Daemon::Slurmctld),
            waiting,
        }
    }

    fn retained(&self, partitions: &BTreeSet<String>) -> Vec<Statement> {
        let kept: Vec<&Statement> = self
            .published
            .all("PartitionName")
            .filter(|s| partitions.contains(&s.head.value))
            .collect();
        let names_nodeset = |nodeset: &Statement| {
            kept.iter().any(|partition| {
                let nodes = partition.attribute("Nodes").unwrap_or_default();
                nodes
                    .split(',')
                    .any(|name| name.eq_ignore_ascii_case(&nodeset.head.value))
            })
        };
        let nodesets = self
            .published
            .all("NodeSet")
            .filter(|nodeset| names_nodeset(nodeset));
        nodesets.chain(kept.iter().copied()).cloned().collect()
    }

    fn forbidden(&self, why: &str) -> Problem {
        let is_forbidden = |change: &&Change| matches!(change.class, Class::Forbidden { .. });
        let forbidden = self.changes.changes.iter().filter(is_forbidden);
        Problem::invalid(format!(
            "{} cannot be changed in a running cluster: {why}; slurmctld keeps running with the last configuration",
            named(forbidden)
        ))
    }

    /// Reports whether a running cluster never survives the change.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.changes.class(), Class::Forbidden { .. })
    }

    /// Returns what no running job would survive, if there is any. Without `usage`, anything may be in use.
    pub fn needs_empty_cluster(&self, usage: Option<&Usage>) -> Option<String> {
        let needs = |what: &MustBeEmpty| match what {
            MustBeEmpty::Cluster | MustBeEmpty::Nodes(_) => true,
            MustBeEmpty::Gres(name) => usage.is_none_or(|usage| usage.has_resource(name)),
            MustBeEmpty::Partition(_) | MustBeEmpty::NodeSet(_) => false,
        };
        let changes = self.changes(usage);
        let named = named(
            changes
                .iter()
                .filter(|change| must_be_empty(&change.class).any(needs)),
        );
        (!named.is_empty()).then_some(named)
    }
}

fn must_be_empty(class: &Class) -> impl Iterator<Item = &MustBeEmpty> {
    let all = match class {
        Class::KillsJobs { must_be_empty, .. } => Some(must_be_empty),
        Class::None | Class::Reconfigure | Class::Restart { .. } | Class::Forbidden { .. } => None,
    };
    all.into_iter().flatten()
}

fn named<'a>(changes: impl Iterator<Item = &'a Change>) -> String {
    let names: Vec<&str> = changes.map(|change| change.what.as_str()).collect();
    names.join(", ")
}

/// Parses the configuration's slurm.conf, or returns why that failed.
fn read(configuration: &Configuration) -> Result<Document, String> {
    let text = configuration
        .slurm_conf()
        .ok_or_else(|| "slurm.conf is missing".to_owned())?;
    parse(File::Slurm, text, &configuration.texts()).map_err(|problems| {
        let first = problems.first().map(ToString::to_string);
        first.unwrap_or_else(|| "syntax error".to_owned())
    })
}

/// Returns why the partition must stay, if it must.
fn partition_in_use(name: &str, usage: Option<&Usage>) -> Option<String> {
    let Some(usage) = usage else {
        return Some(format!(
            "partition {name} is kept until Slurm confirms that no job uses it"
        ));
    };
    let takes_jobs = usage
        .partitions
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, takes)| *takes);
    let jobs = usage.jobs_in(name);
    match (takes_jobs, jobs.as_slice()) {
        (None, _) | (Some(false), []) => None,
        (Some(true), []) => Some(format!("partition {name} is being closed")),
        (Some(_), [first, ..]) => Some(format!(
            "partition {name} is kept for {}, such as {first}",
            counted(jobs.len(), "job")
        )),
    }
}

#[cfg(test)]
mod tests;
