//! Decides how slurmctld gets from the configuration that it has to the wanted one without killing a job. Pure.
//!
//! A reconfiguration kills the jobs of a partition that is no longer in slurm.conf. So a partition is removed in steps:
//! it is kept and drained, and removed when Slurm reports that it takes no more jobs and has none left. Other changes
//! that kill jobs wait for an empty cluster (`quiesce`); those that a running cluster never survives are refused.

use std::collections::{BTreeMap, BTreeSet};

use slurm_conf::{
    catalogue::File,
    change::{Change, ChangeSet, Class, Daemon, MustBeEmpty, change_class},
    syntax::{Document, Statement, parse},
};

use crate::controller::build::Configuration;
use crate::{problem::Problem, wording::counted};

/// Partitions and jobs of Slurm, as far as they matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Slurm's partitions, and whether each takes new jobs.
    pub partitions: BTreeMap<String, bool>,
    /// Active jobs: id, and the partitions that each names.
    pub jobs: Vec<(u64, BTreeSet<String>)>,
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
}

/// The changes from the published configuration to the candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    changes: ChangeSet,
    published: Document,
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
        match (read(published), read(candidate)) {
            (Ok(published), Ok(candidate)) => {
                let changes = change_class(File::Slurm, &published, &candidate);
                (!changes.changes.is_empty()).then_some(Self { changes, published })
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
        }
    }

    /// Reports whether the decision depends on Slurm's jobs.
    pub fn needs_usage(&self) -> bool {
        matches!(self.changes.class(), Class::KillsJobs { .. })
    }

    /// Decides about this step. `usage` is `None` if Slurm did not answer; then every partition counts as used. A
    /// change that [needs an empty cluster](Self::needs_empty_cluster) gets here only after the cluster was emptied.
    pub fn decide(&self, usage: Option<&Usage>) -> Decision {
        let (must_be_empty, restart) = match self.changes.class() {
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
                MustBeEmpty::NodeSet(_) | MustBeEmpty::Cluster | MustBeEmpty::Nodes(_) => {}
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
        Problem::invalid(format!(
            "{} cannot be changed in a running cluster: {why}; slurmctld keeps running with the last configuration",
            self.named(|class| matches!(class, Class::Forbidden { .. }))
        ))
    }

    /// Reports whether a running cluster never survives the change.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.changes.class(), Class::Forbidden { .. })
    }

    /// Returns the parameters whose change no running job would survive, if there are any.
    pub fn needs_empty_cluster(&self) -> Option<String> {
        let needs = |class: &Class| match class {
            Class::KillsJobs { must_be_empty, .. } => must_be_empty
                .iter()
                .any(|what| matches!(what, MustBeEmpty::Cluster | MustBeEmpty::Nodes(_))),
            _ => false,
        };
        let named = self.named(needs);
        (!named.is_empty()).then_some(named)
    }

    fn named(&self, which: impl Fn(&Class) -> bool) -> String {
        let names: Vec<&str> = self
            .changes
            .changes
            .iter()
            .filter(|change| which(&change.class))
            .map(|c| c.what.as_str())
            .collect();
        names.join(", ")
    }
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
mod tests {
    use pretty_assertions::assert_eq;
    use rstest::rstest;

    use super::*;

    const BASE: &str = "ClusterName=c\nSlurmctldHost=a\nNodeSet=w Feature=w\n";
    const WITH: &str = "PartitionName=w Nodes=w MaxTime=10\n";

    fn step(old: &str, new: &str) -> Step {
        between(&format!("{BASE}{old}"), &format!("{BASE}{new}")).unwrap()
    }

    fn between(old: &str, new: &str) -> Option<Step> {
        let configuration = |text: &str| Configuration {
            files: BTreeMap::from([("slurm.conf".to_owned(), text.as_bytes().to_vec())]),
            ..Configuration::default()
        };
        Step::between(&configuration(old), &configuration(new))
    }

    fn usage(partitions: &[(&str, bool)], jobs: &[(u64, &str)]) -> Usage {
        Usage {
            partitions: partitions
                .iter()
                .map(|(name, takes)| ((*name).to_owned(), *takes))
                .collect(),
            jobs: jobs
                .iter()
                .map(|(id, name)| (*id, BTreeSet::from([(*name).to_owned()])))
                .collect(),
        }
    }

    fn kept(decision: &Decision) -> Vec<String> {
        match decision {
            Decision::Publish { retained, .. } => retained
                .iter()
                .map(|s| format!("{}={}", s.head.key, s.head.value))
                .collect(),
            Decision::Hold(problem) => panic!("{problem:?}"),
        }
    }

    #[rstest]
    #[case::no_answer(None, true)]
    #[case::takes_jobs(Some(usage(&[("w", true)], &[])), true)]
    #[case::closed_with_a_job(Some(usage(&[("w", false)], &[(7, "w")])), true)]
    #[case::closed_and_empty(Some(usage(&[("w", false)], &[(7, "other")])), false)]
    #[case::unknown_to_slurm(Some(usage(&[("other", true)], &[])), false)]
    fn a_partition_leaves_when_it_is_closed_and_empty(#[case] usage: Option<Usage>, #[case] stays: bool) {
        let decision = step(WITH, "").decide(usage.as_ref());
        let expected: &[&str] = if stays {
            &["NodeSet=w", "PartitionName=w"]
        } else {
            &[]
        };
        assert_eq!(kept(&decision), expected);
    }

    #[test]
    fn an_ordinary_change_asks_nobody() {
        let step = step("SchedulerParameters=a\n", "SchedulerParameters=b\n");
        assert!(!step.needs_usage());
        let decision = step.decide(None);
        assert_eq!(
            decision,
            Decision::Publish {
                retained: vec![],
                restart: false,
                waiting: vec![]
            }
        );
    }

    #[test]
    fn what_a_cluster_does_not_survive_is_held() {
        let renamed = BASE.replace("ClusterName=c", "ClusterName=d");
        let step = between(BASE, &renamed).unwrap();
        let Decision::Hold(problem) = step.decide(Some(&Usage::default())) else {
            panic!("published")
        };
        assert!(problem.message.contains("ClusterName"), "{}", problem.message);
    }

    /// slurmctld may have the second, and certainly had the first.
    #[test]
    fn a_change_spares_the_jobs_of_each_configuration_that_slurmctld_may_have() {
        let with_jobs = usage(&[("w", true)], &[(7, "w")]);
        let kept_by_both = decide(&[Some(step(WITH, "")), Some(step(WITH, ""))], Some(&with_jobs));
        assert_eq!(kept(&kept_by_both), ["NodeSet=w", "PartitionName=w"]);

        let restarts = step("AuthInfo=a\n", "AuthInfo=b\n");
        for (steps, expected) in [
            ([Some(restarts.clone()), None], true),
            ([None, Some(restarts)], false),
        ] {
            let Decision::Publish { restart, .. } = decide(&steps, None) else {
                panic!("held")
            };
            assert_eq!(restart, expected);
        }
    }

    #[test]
    fn no_difference_is_no_step() {
        assert_eq!(between(BASE, BASE), None);
        let unreadable = format!("{BASE}no pair\n");
        assert_eq!(between(&unreadable, &unreadable), None);
    }

    #[rstest]
    #[case::published("no pair\n", "", "the published configuration cannot be parsed: line 4")]
    #[case::published_with_an_include(
        "Include more.conf\n",
        "",
        "the published configuration cannot be parsed: more.conf line 1"
    )]
    #[case::candidate("", "no pair\n", "the new configuration cannot be parsed: line 4")]
    fn what_cannot_be_read_counts_as_the_most_dangerous_change(
        #[case] old: &str,
        #[case] new: &str,
        #[case] why: &str,
    ) {
        let with = |text: &str| Configuration {
            files: BTreeMap::from([
                ("slurm.conf".to_owned(), format!("{BASE}{text}").into_bytes()),
                ("more.conf".to_owned(), b"no pair\n".to_vec()),
            ]),
            ..Configuration::default()
        };
        let step = Step::between(&with(old), &with(new)).unwrap();
        let what = step.needs_empty_cluster().unwrap();
        assert!(what.contains(why), "{what}");
        let empty = usage(&[("w", true)], &[]);
        let restarts = Decision::Publish {
            retained: vec![],
            restart: true,
            waiting: vec![],
        };
        assert_eq!(step.decide(Some(&empty)), restarts);
    }

    #[test]
    fn a_published_configuration_without_slurm_conf_cannot_be_read() {
        let candidate = Configuration {
            files: BTreeMap::from([("slurm.conf".to_owned(), BASE.as_bytes().to_vec())]),
            ..Configuration::default()
        };
        let step = Step::between(&Configuration::default(), &candidate).unwrap();
        assert!(step.needs_empty_cluster().is_some());
    }

    /// Comments in another encoding must not hide a change of an included file.
    #[test]
    fn a_change_in_an_included_file_that_is_not_utf_8_is_seen() {
        let with = |select: &str| {
            let included = [b"# gr\xfcn\n".as_slice(), select.as_bytes()].concat();
            let conf = format!("{BASE}Include more.conf\n");
            Configuration {
                files: BTreeMap::from([
                    ("slurm.conf".to_owned(), conf.into_bytes()),
                    ("more.conf".to_owned(), included),
                ]),
                ..Configuration::default()
            }
        };
        let step = Step::between(
            &with("SelectType=select/linear\n"),
            &with("SelectType=select/cons_tres\n"),
        );
        assert!(step.unwrap().needs_usage());
    }
}
