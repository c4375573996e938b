//! Weighs a change of gres.conf by the nodes that it concerns. Pure.
//!
//! Slurm aborts jobs that use a device whose count changes. slurmd looks up the resources of its own node's `Gres` only,
//! so lines matter to nodes that exist and have such resources.

use std::collections::{BTreeMap, BTreeSet};

use keelson_api::well_known::file;
use slurm_conf::{
    catalogue::File,
    change::{Change, ChangeSet, Class, Daemon, MustBeEmpty, change_class, gres_change},
    syntax::{Document, read},
};
use slurm_rest::{job::Job, node::Node};

use super::quiesce::plan::{is_ours, takes_jobs};
use crate::controller::build::Configuration;
use crate::slurm::{
    facts::{NodeName, SlurmNode},
    jobs::{self, Work},
};

/// The resources of nodes that run jobs or could start some, by node.
pub type GresNodes = BTreeMap<String, BTreeSet<String>>;

/// A gres.conf that says something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GresStep {
    Between {
        published: Document,
        candidate: Document,
    },
    /// One of them cannot be parsed, for this reason.
    Unreadable(String),
}

impl GresStep {
    /// Compares the files of two configurations; `None` if they say the same.
    pub fn between(published: &Configuration, candidate: &Configuration) -> Option<Self> {
        let same_bytes = published.files.get(file::GRES_CONF) == candidate.files.get(file::GRES_CONF);
        let ((published, old_problem), (candidate, new_problem)) = (parsed(published), parsed(candidate));
        // Slurm decides about a line that cannot be parsed here, and did so before.
        if let Some(problem) = old_problem.or(new_problem).filter(|_| !same_bytes) {
            return Some(Self::Unreadable(problem));
        }
        let changes = change_class(File::Gres, &published, &candidate);
        (!changes.changes.is_empty()).then_some(Self::Between { published, candidate })
    }

    /// Returns what the change costs. `nodes` is `None` if Slurm did not answer; then any node may be concerned.
    pub fn weigh(&self, nodes: Option<&GresNodes>) -> ChangeSet {
        match (self, nodes) {
            (Self::Between { published, candidate }, Some(nodes)) => {
                gres_change(published, candidate, nodes.keys().map(String::as_str))
            }
            (Self::Between { .. }, None) => costs_all("gres.conf".to_owned()),
            (Self::Unreadable(_), Some(nodes)) if nodes.is_empty() => ChangeSet::default(),
            (Self::Unreadable(why), _) => costs_all(format!("gres.conf ({why})")),
        }
    }
}

fn parsed(configuration: &Configuration) -> (Document, Option<String>) {
    let text = configuration
        .files
        .get(file::GRES_CONF)
        .map_or_else(String::new, |bytes| String::from_utf8_lossy(bytes).into_owned());
    let (document, problems) = read(File::Gres, &text, &configuration.texts());
    (document, problems.first().map(ToString::to_string))
}

fn costs_all(what: String) -> ChangeSet {
    let class = Class::KillsJobs {
        must_be_empty: BTreeSet::from([MustBeEmpty::Cluster]),
        restart: BTreeSet::from([Daemon::Slurmd]),
    };
    ChangeSet {
        changes: vec![Change { what, class }],
    }
}

/// Returns the nodes with resources that run jobs or could start some. `jobs` was read together with them; `None` if the
/// nodes of a job are unknown.
pub fn nodes_in_use<'a>(nodes: impl IntoIterator<Item = &'a Node>, jobs: &[Job]) -> Option<GresNodes> {
    let work = jobs::by_node(jobs).ok()?;
    let nodes = nodes.into_iter().map(|node| (node, resources(&node.gres)));
    let with_resources = nodes.filter(|(_, resources)| !resources.is_empty());
    let in_use =
        with_resources.filter(|(node, _)| may_run_jobs(node, work.get(&NodeName::from(&*node.name))));
    Some(
        in_use
            .map(|(node, resources)| (node.name.to_string(), resources))
            .collect(),
    )
}

/// A node that the operator itself has drained for a change is about to be resumed.
fn may_run_jobs(node: &Node, work: Option<&Work>) -> bool {
    // When it was read does not matter here.
    let node = SlurmNode::from_rest(node, jiff::Timestamp::UNIX_EPOCH);
    let held = work.is_some_and(|work| !work.jobs.is_empty());
    held || node.busy() || takes_jobs(&node) || is_ours(&node)
}

/// Returns the names in a node's list of resources, such as `gpu:h200:8(S:0-1),licence:2`.
fn resources(gres: &str) -> BTreeSet<String> {
    // The sockets of a resource may be a list, too.
    let names = gres.split(',').filter_map(|resource| resource.split_once(':'));
    names.map(|(name, _)| name.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;
    use rstest::rstest;
    use serde_json::{Value, json};
    use slurm_rest::node::decode_nodes;

    use super::*;

    fn in_use(node: &Value) -> Option<GresNodes> {
        let list = decode_nodes(json!({ "nodes": [node] }).to_string().as_bytes()).unwrap();
        nodes_in_use(&list.items, &[])
    }

    #[rstest]
    #[case::idle(&["IDLE"], "", true)]
    #[case::busy_and_draining(&["ALLOCATED", "DRAIN"], "admin", true)]
    #[case::drained_by_a_person(&["IDLE", "DRAIN"], "admin", false)]
    #[case::drained_for_this_change(&["IDLE", "DRAIN"], keelson_api::well_known::slurm::QUIESCE_REASON, true)]
    #[case::down_until_slurmd_is_back(&["DOWN"], "Not responding", true)]
    #[case::registered_with_too_few(&["IDLE", "INVALID_REG"], "gres/gpu count too low", false)]
    fn nodes_count_that_run_jobs_or_could_start_some(
        #[case] states: &[&str],
        #[case] reason: &str,
        #[case] counts: bool,
    ) {
        let node = json!({ "name": "n", "state": states, "reason": reason, "gres": "gpu:8" });
        assert_eq!(in_use(&node).unwrap().contains_key("n"), counts);
    }

    #[rstest]
    #[case("gpu:h200:8(S:0-1),licence:2", &["gpu", "licence"])]
    #[case("gpu:a:1(S:0,2),gpu:b:1", &["gpu"])]
    #[case("", &[])]
    fn the_resources_of_a_node_are_named(#[case] gres: &str, #[case] expected: &[&str]) {
        let node = json!({ "name": "n", "state": ["IDLE"], "gres": gres });
        let found = in_use(&node).unwrap().remove("n").unwrap_or_default();
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }
}
