//! What jobs do with each node: read only while a decision needs it, because a list of all jobs is dear.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use slurm_rest::{
    Client, Fetched, NoVal,
    job::{Job, JobBase},
};
use tokio::sync::Mutex;

use super::facts::NodeName;

/// What jobs do with one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Jobs that hold it.
    pub jobs: Vec<u64>,
    /// When the last of them ends by its time limit; `None` when one has no limit.
    pub until: Option<Timestamp>,
    /// Pending jobs that insist on it.
    pub wanted_by: Vec<u64>,
}

/// The work of all nodes; a node without an entry has none.
pub type WorkByNode = Arc<BTreeMap<NodeName, Work>>;

/// The last list, and the instant to ask for changes since.
#[derive(Debug, Default)]
pub struct Jobs {
    last: Mutex<(Option<Timestamp>, WorkByNode)>,
}

impl Jobs {
    /// The work as of now.
    pub async fn work(&self, client: &Client) -> Result<WorkByNode, slurm_rest::Error> {
        let mut last = self.last.lock().await;
        match client.jobs(last.0).await? {
            Fetched::Unchanged => {}
            Fetched::Changed(answer) => *last = (answer.last_update, Arc::new(by_node(&answer.items))),
        }
        Ok(Arc::clone(&last.1))
    }
}

fn by_node(jobs: &[Job]) -> BTreeMap<NodeName, Work> {
    let mut nodes: BTreeMap<NodeName, Work> = BTreeMap::new();
    for job in jobs {
        if job.holds_nodes() {
            let end = end(job);
            for name in names(&job.nodes) {
                let work = nodes.entry(name).or_default();
                // One job without a limit leaves the node without one.
                work.until = if work.jobs.is_empty() {
                    end
                } else {
                    work.until.zip(end).map(|(a, b)| a.max(b))
                };
                work.jobs.push(job.id);
            }
        } else if job.state == JobBase::Pending {
            for name in names(&job.required_nodes) {
                nodes.entry(name).or_default().wanted_by.push(job.id);
            }
        }
    }
    nodes
}

/// A job without a limit ends after a year, as Slurm tells it; that is no end to wait for.
const NO_END: SignedDuration = SignedDuration::from_hours(365 * 24);

fn end(job: &Job) -> Option<Timestamp> {
    let end = match job.time_limit {
        NoVal::Infinite => None,
        NoVal::Number(minutes) => {
            let limit = SignedDuration::from_mins(i64::try_from(minutes).unwrap_or(i64::MAX / 60));
            job.start_time?.checked_add(limit).ok()
        }
        NoVal::Unset => job.end_time,
    };
    end.filter(|end| {
        job.start_time
            .is_none_or(|start| end.duration_since(start) < NO_END)
    })
}

/// A list that cannot be read names nobody: the node itself still says that it is busy.
fn names(list: &str) -> Vec<NodeName> {
    slurm_conf::hostlist::expand(list)
        .unwrap_or_default()
        .into_iter()
        .map(NodeName)
        .collect()
}
