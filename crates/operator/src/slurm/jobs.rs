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
    pub jobs: Vec<HeldBy>,
    /// When the last of them ends by its time limit; `None` when one has no limit.
    pub until: Option<Timestamp>,
    /// Pending jobs that insist on it.
    pub wanted_by: Vec<u64>,
}

/// A job that holds a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldBy {
    /// What Slurm calls exactly this job, or this task of an array.
    pub address: String,
    /// What a requeue is asked for by, where Slurm can start the job again.
    pub requeue: Option<String>,
    /// It has ended or was requeued, and the node is being cleaned up after it.
    pub completing: bool,
    /// Why Slurm did not requeue it when it was last asked to.
    pub refused: Option<String>,
    /// Whose it is; empty where Slurm does not say.
    pub user: Arc<str>,
    /// When it ends by its time limit, if it has one.
    pub until: Option<Timestamp>,
}

/// The list of jobs by the nodes that they hold or insist on; a node without an entry has no work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobList {
    /// When the request was sent whose answer this is.
    pub read_at: Timestamp,
    pub by_node: Arc<BTreeMap<NodeName, Work>>,
}

/// The last list, and what was asked of jobs.
#[derive(Debug, Default)]
pub struct Jobs {
    last: Mutex<Last>,
    /// Jobs that Slurm did not requeue, with its words. They are not asked for again: what stands against it stays.
    refused: parking_lot::Mutex<BTreeMap<String, String>>,
}

#[derive(Debug, Default)]
struct Last {
    /// The instant to ask for changes since.
    since: Option<Timestamp>,
    by_node: Arc<BTreeMap<NodeName, Work>>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the list of jobs")]
    Call(#[source] slurm_rest::Error),
    /// Whom such a job holds up is unknown, so the list proves nothing about anybody.
    #[error("job {job} has a list of nodes that cannot be read: {list:?}")]
    Nodes { job: u64, list: String },
}

impl Jobs {
    /// The work as of now.
    pub async fn read(&self, client: &Client, now: Timestamp) -> Result<JobList, Error> {
        let mut last = self.last.lock().await;
        match client.jobs(last.since).await.map_err(Error::Call)? {
            Fetched::Unchanged => {}
            Fetched::Changed(answer) => {
                *last = Last {
                    by_node: Arc::new(by_node(&answer.items)?),
                    since: answer.last_update,
                };
            }
        }
        Ok(JobList {
            read_at: now,
            by_node: self.with_refusals(&last.by_node),
        })
    }

    /// Notes that Slurm did not requeue this job.
    pub fn note_refusal(&self, address: &str, why: String) {
        self.refused.lock().insert(address.to_owned(), why);
    }

    /// Adds what was refused, and forgets what was refused to jobs that hold no node any more.
    fn with_refusals(&self, by_node: &Arc<BTreeMap<NodeName, Work>>) -> Arc<BTreeMap<NodeName, Work>> {
        let mut refused = self.refused.lock();
        if refused.is_empty() {
            return Arc::clone(by_node);
        }
        let mut by_node = BTreeMap::clone(by_node);
        let mut held: BTreeMap<String, String> = BTreeMap::new();
        for job in by_node.values_mut().flat_map(|work| &mut work.jobs) {
            let why = job.requeue.as_ref().and_then(|address| refused.get(address));
            if let (Some(address), Some(why)) = (&job.requeue, why) {
                held.insert(address.clone(), why.clone());
                job.refused = Some(why.clone());
            }
        }
        *refused = held;
        Arc::new(by_node)
    }
}

pub(crate) fn by_node(jobs: &[Job]) -> Result<BTreeMap<NodeName, Work>, Error> {
    let mut nodes: BTreeMap<NodeName, Work> = BTreeMap::new();
    for job in jobs {
        if job.holds_nodes() {
            let end = end(job);
            for name in names(job.id, &job.nodes)? {
                let work = nodes.entry(name).or_default();
                // One job without a limit leaves the node without one.
                work.until = if work.jobs.is_empty() {
                    end
                } else {
                    work.until.zip(end).map(|(a, b)| a.max(b))
                };
                work.jobs.push(HeldBy {
                    address: job.address(),
                    requeue: (job.requeue && job.batch).then(|| job.requeue_address()),
                    completing: job.is_completing(),
                    refused: None,
                    user: Arc::clone(&job.user),
                    until: end,
                });
            }
        }
        // A job that was requeued a moment ago still holds its nodes and insists on them again.
        if matches!(job.state, JobBase::Pending | JobBase::Unknown) {
            for name in names(job.id, &job.required_nodes)? {
                nodes.entry(name).or_default().wanted_by.push(job.id);
            }
        }
    }
    Ok(nodes)
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

fn names(job: u64, list: &str) -> Result<Vec<NodeName>, Error> {
    match slurm_conf::hostlist::expand(list) {
        Ok(names) => Ok(names.into_iter().map(NodeName).collect()),
        Err(_) => Err(Error::Nodes {
            job,
            list: list.to_owned(),
        }),
    }
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

    fn jobs(list: &serde_json::Value) -> Vec<Job> {
        slurm_rest::job::decode_jobs(list.to_string().as_bytes())
            .unwrap()
            .items
    }

    #[test]
    fn a_task_is_called_a_task_and_only_a_batch_job_can_be_requeued() {
        let list = serde_json::json!({ "jobs": [
            { "job_id": 8, "array_job_id": 8, "array_task_id": { "set": true, "number": 3 }, "nodes": "w-0",
              "job_state": ["RUNNING"], "requeue": true, "batch_flag": true },
            { "job_id": 9, "nodes": "w-0", "job_state": ["SUSPENDED"], "requeue": false, "batch_flag": true },
            { "job_id": 10, "nodes": "w-0", "job_state": ["RUNNING"], "requeue": true, "batch_flag": false },
        ] });
        let work = by_node(&jobs(&list)).unwrap().remove(&"w-0".into()).unwrap();
        let found: Vec<_> = work
            .jobs
            .iter()
            .map(|job| (job.address.as_str(), job.requeue.as_deref()))
            .collect();
        assert_eq!(found, [("8_3", Some("8_3")), ("9", None), ("10", None)]);
    }

    #[test]
    fn a_job_that_was_just_requeued_holds_its_node_and_insists_on_it() {
        let list = serde_json::json!({ "jobs": [
            { "job_id": 7, "nodes": "w-0", "required_nodes": "w-0", "job_state": ["PENDING", "COMPLETING"] },
        ] });
        let work = by_node(&jobs(&list)).unwrap().remove(&"w-0".into()).unwrap();
        assert!(work.jobs[0].completing);
        assert_eq!(work.wanted_by, [7]);
    }

    #[test]
    fn a_list_of_nodes_that_cannot_be_read_proves_nothing_about_anybody() {
        let list =
            serde_json::json!({ "jobs": [{ "job_id": 7, "nodes": "w-[0-", "job_state": ["RUNNING"] }] });
        let error = by_node(&jobs(&list)).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"job 7 has a list of nodes that cannot be read: "w-[0-""#
        );
    }

    #[test]
    fn a_refused_requeue_is_remembered_as_long_as_the_job_holds_a_node() {
        let held = HeldBy {
            address: "7".into(),
            requeue: Some("7".into()),
            completing: false,
            refused: None,
            user: "alice".into(),
            until: None,
        };
        let work = Work {
            jobs: vec![held],
            ..Work::default()
        };
        let kept = Jobs::default();
        kept.note_refusal("7", "no".into());
        kept.note_refusal("8", "no".into());
        let by_node = Arc::new(BTreeMap::from([(NodeName::from("w-0"), work)]));
        let shown = kept.with_refusals(&by_node);
        assert_eq!(shown[&"w-0".into()].jobs[0].refused.as_deref(), Some("no"));
        assert_eq!(kept.refused.lock().keys().collect::<Vec<_>>(), ["7"]);
    }
}
