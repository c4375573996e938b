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
    end_of(job.time_limit, job.start_time, job.end_time)
}

/// `told` is the end that Slurm tells, for a job whose limit it does not.
fn end_of(limit: NoVal, start: Option<Timestamp>, told: Option<Timestamp>) -> Option<Timestamp> {
    let end = match limit {
        NoVal::Infinite => None,
        NoVal::Number(minutes) => {
            let limit = SignedDuration::from_mins(i64::try_from(minutes).unwrap_or(i64::MAX / 60));
            start?.checked_add(limit).ok()
        }
        NoVal::Unset => told,
    };
    end.filter(|end| start.is_none_or(|start| end.duration_since(start) < NO_END))
}

/// A list that cannot be read names nobody: the node itself still says that it is busy.
fn names(list: &str) -> Vec<NodeName> {
    slurm_conf::hostlist::expand(list)
        .unwrap_or_default()
        .into_iter()
        .map(NodeName)
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const YEAR: u64 = 365 * 24 * 60;

    #[rstest]
    #[case::limited(NoVal::Number(60), None, Some(60))]
    #[case::unlimited(NoVal::Infinite, Some(YEAR), None)]
    #[case::unlimited_as_a_year(NoVal::Number(YEAR), None, None)]
    #[case::told(NoVal::Unset, Some(60), Some(60))]
    #[case::a_year_is_told(NoVal::Unset, Some(YEAR), None)]
    #[case::not_told(NoVal::Unset, None, None)]
    fn a_year_is_no_end(#[case] limit: NoVal, #[case] told: Option<u64>, #[case] expected: Option<u64>) {
        let at = |minutes: u64| Timestamp::from_second(i64::try_from(minutes * 60).unwrap()).unwrap();
        let start = Some(Timestamp::UNIX_EPOCH);
        assert_eq!(end_of(limit, start, told.map(at)), expected.map(at));
    }
}
