//! Jobs per node. They are read only when a decision needs them, because a list of all jobs is expensive.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use keelson_runtime::Clock;
use slurm_rest::{
    Client, Fetched, Listing, NoVal,
    job::{Job, JobBase},
};
use tokio::{sync::Mutex, time::Instant};

use super::facts::NodeName;

/// Jobs that concern one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Jobs that hold it.
    pub jobs: Vec<HeldBy>,
    /// When the last of them ends by its time limit; `None` when one has no limit.
    pub until: Option<Timestamp>,
    /// Pending jobs that require it.
    pub wanted_by: Vec<u64>,
}

/// A job that holds a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldBy {
    /// Slurm's identifier of exactly this job, or of this task of an array.
    pub address: String,
    /// Identifier for a requeue, if Slurm can requeue the job.
    pub requeue: Option<String>,
    /// Whether it has ended or was requeued, and the node is being cleaned up after it.
    pub completing: bool,
    /// Why Slurm refused the last request to requeue it.
    pub refused: Option<String>,
    /// The job's user; empty if Slurm does not say.
    pub user: Arc<str>,
    /// When it ends by its time limit, if it has one.
    pub until: Option<Timestamp>,
}

/// Jobs by the nodes that they hold or require; a node without an entry has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobList {
    /// When the request for this list was sent.
    pub read_at: Timestamp,
    pub by_node: Arc<BTreeMap<NodeName, Work>>,
}

/// The last list of jobs, and the refused requeues.
#[derive(Debug, Default)]
pub struct Jobs {
    last: Mutex<Last>,
    /// Until when lists should rest.
    rested: parking_lot::Mutex<Option<Instant>>,
    /// Jobs that Slurm refused to requeue, with its reason. They are not requeued again: the reason does not go away.
    refused: parking_lot::Mutex<BTreeMap<String, String>>,
}

#[derive(Debug, Default)]
struct Last {
    /// Time of the last update; the next request asks for changes since then.
    since: Option<Timestamp>,
    by_node: Arc<BTreeMap<NodeName, Work>>,
    /// When the last request that was answered was sent, by both clocks.
    requested: Option<(Instant, Timestamp)>,
}

/// Limit of the pause after a list: decisions wait for the next one.
const LONGEST_REST: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to list jobs")]
    Call(#[source] slurm_rest::Error),
    /// It is unknown which nodes such a job holds, so the list proves nothing about any node.
    #[error("job {job} has an unparsable node list: {list:?}")]
    Nodes { job: u64, list: String },
}

/// The calls that lists of jobs need.
pub trait Reads: Sync {
    fn jobs(
        &self,
        since: Option<Timestamp>,
    ) -> impl Future<Output = Result<Fetched<Listing<Job>>, slurm_rest::Error>> + Send;
}

impl Reads for Client {
    async fn jobs(&self, since: Option<Timestamp>) -> Result<Fetched<Listing<Job>>, slurm_rest::Error> {
        Self::jobs(self, since).await
    }
}

impl Jobs {
    /// Returns the jobs as of now. Callers that wait for each other share the next list: its request is sent after they
    /// called, so it proves as much as one of their own.
    pub async fn read(&self, client: &impl Reads, clock: &Clock) -> Result<JobList, Error> {
        let called = Instant::now();
        let mut last = self.last.lock().await;
        let read_at = match last.requested {
            Some((requested, read_at)) if requested > called => read_at,
            Some(_) | None => self.update(&mut last, client, clock).await?,
        };
        Ok(JobList {
            read_at,
            by_node: self.with_refusals(&last.by_node),
        })
    }

    /// Returns when the request was sent.
    async fn update(&self, last: &mut Last, client: &impl Reads, clock: &Clock) -> Result<Timestamp, Error> {
        let (read_at, started) = (clock.now(), Instant::now());
        if let Fetched::Changed(answer) = client.jobs(last.since).await.map_err(Error::Call)? {
            last.by_node = Arc::new(by_node(&answer.items)?);
            last.since = answer.last_update;
            let rest = started.elapsed().min(LONGEST_REST);
            *self.rested.lock() = Some(Instant::now() + rest);
        }
        last.requested = Some((started, read_at));
        Ok(read_at)
    }

    /// Returns how much longer lists should rest: as long as the last one took. Nobody waits for this in a reconcile,
    /// where an older list would prove nothing and other objects would wait too. It is for who requests the next one.
    pub fn rest(&self) -> Duration {
        let rested = *self.rested.lock();
        rested.map_or(Duration::ZERO, |rested| {
            rested.saturating_duration_since(Instant::now())
        })
    }

    /// Notes that Slurm refused to requeue this job.
    pub fn note_refusal(&self, address: &str, why: String) {
        self.refused.lock().insert(address.to_owned(), why);
    }

    /// Adds the refusals, and forgets those of jobs that hold no node any more.
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
        // A job that was just requeued still holds its nodes and requires them again.
        if matches!(job.state, JobBase::Pending | JobBase::Unknown) {
            for name in names(job.id, &job.required_nodes)? {
                nodes.entry(name).or_default().wanted_by.push(job.id);
            }
        }
    }
    Ok(nodes)
}

/// Slurm reports that a job without a limit ends after a year; that does not count as an end.
const NO_END: SignedDuration = SignedDuration::from_hours(365 * 24);

fn end(job: &Job) -> Option<Timestamp> {
    end_of(job.time_limit, job.start_time, job.end_time)
}

/// `told` is the end that Slurm reports, for a job whose limit it does not report.
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

    /// A Slurm whose lists of jobs take a while. Each has one job more; after `lists`, nothing changes.
    struct Slow {
        takes: Duration,
        lists: usize,
        calls: parking_lot::Mutex<usize>,
    }

    impl Reads for Slow {
        async fn jobs(&self, _: Option<Timestamp>) -> Result<Fetched<Listing<Job>>, slurm_rest::Error> {
            let call = {
                let mut calls = self.calls.lock();
                *calls += 1;
                *calls
            };
            if call > self.lists {
                return Ok(Fetched::Unchanged);
            }
            tokio::time::sleep(self.takes).await;
            let running =
                |id: usize| serde_json::json!({ "job_id": id, "nodes": "w-0", "job_state": ["RUNNING"] });
            let list = serde_json::json!({ "jobs": (1..=call).map(running).collect::<Vec<_>>() });
            Ok(Fetched::Changed(
                slurm_rest::job::decode_jobs(list.to_string().as_bytes()).unwrap(),
            ))
        }
    }

    fn slow(takes: Duration, lists: usize) -> Slow {
        Slow {
            takes,
            lists,
            calls: parking_lot::Mutex::default(),
        }
    }

    fn clock() -> Clock {
        Clock::fixed(Timestamp::UNIX_EPOCH)
    }

    fn held(list: &JobList) -> usize {
        list.by_node[&"w-0".into()].jobs.len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_read_at_once_and_says_how_long_the_next_should_rest() {
        let seconds = Duration::from_secs;
        for (takes, rest) in [(seconds(1), seconds(1)), (seconds(5), LONGEST_REST)] {
            let (jobs, slurm) = (Jobs::default(), slow(takes, 2));
            assert_eq!(jobs.rest(), Duration::ZERO);
            let started = Instant::now();
            for more in 1..=2 {
                assert_eq!(held(&jobs.read(&slurm, &clock()).await.unwrap()), more);
                assert_eq!(jobs.rest(), rest);
            }
            assert_eq!(started.elapsed(), takes * 2, "a reconcile must not wait");
            tokio::time::advance(rest / 2).await;
            // An answer without changes costs nothing.
            assert_eq!(held(&jobs.read(&slurm, &clock()).await.unwrap()), 2);
            assert_eq!(jobs.rest(), rest / 2);
            tokio::time::advance(rest).await;
            assert_eq!(jobs.rest(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_share_a_list_that_was_requested_after_they_called() {
        let (jobs, slurm) = (Jobs::default(), slow(Duration::from_secs(1), 9));
        let later = |millis| {
            let (jobs, slurm) = (&jobs, &slurm);
            async move {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                held(&jobs.read(slurm, &clock()).await.unwrap())
            }
        };
        // The first list was requested before the second caller called.
        let found = tokio::join!(later(0), later(100), later(200), later(1_500));
        assert_eq!(found, (1, 2, 2, 3));
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
        assert_eq!(error.to_string(), r#"job 7 has an unparsable node list: "w-[0-""#);
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
