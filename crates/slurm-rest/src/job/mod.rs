//! Jobs: reads and actions.

mod actions;

use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;

use crate::client::{Client, MOST_LISTED_JOBS, Reply, Request};
use crate::endpoint;
use crate::error::Error;
use crate::response::{Item, Listing, Missing, decode};
use crate::since::{Fetched, since};
use crate::value::{NoVal, RawWords, Strings, Switch, Text, Words};

pub use actions::{JobSubmit, Requeue};
pub(crate) use actions::{RawStatus, RequeueRequest, Submission};

/// Slurm's error numbers for an unknown job.
const UNKNOWN_JOB: [i64; 1] = [2017];

/// A job's base state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "the names are Slurm's")]
pub enum JobBase {
    Pending,
    Running,
    Suspended,
    Completed,
    Cancelled,
    Failed,
    Timeout,
    NodeFail,
    Preempted,
    BootFail,
    Deadline,
    OutOfMemory,
    /// A state that this client does not know.
    #[default]
    Unknown,
}

/// A job, with the fields that callers use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its ID.
    pub id: u64,
    /// The ID of its array, if it belongs to one.
    pub array_job_id: Option<u64>,
    /// Its index in the array.
    pub array_task_id: Option<u64>,
    /// The ID of the heterogeneous job that it is a component of, which is the ID of the first component.
    pub het_job_id: Option<u64>,
    /// Its index among the components; the first one leads.
    pub het_job_offset: Option<u64>,
    /// Whether it was submitted as a script; Slurm can requeue only such jobs.
    pub batch: bool,
    /// Its name.
    pub name: Arc<str>,
    /// Its user.
    pub user: Arc<str>,
    /// The account that is charged.
    pub account: Arc<str>,
    /// Its partitions; a pending job may have several.
    pub partition: Words,
    /// Its base state.
    pub state: JobBase,
    /// Flags in addition to the state (`COMPLETING`, `REQUEUED`, …), in Slurm's words.
    pub flags: Words,
    /// Why it is in that state.
    pub state_reason: Arc<str>,
    /// The nodes allocated to it, as a host list.
    pub nodes: Arc<str>,
    /// The nodes that it requires.
    pub required_nodes: Arc<str>,
    /// The reservation that it runs in.
    pub reservation: Arc<str>,
    /// When it was submitted.
    pub submit_time: Option<Timestamp>,
    /// When it started, or is expected to.
    pub start_time: Option<Timestamp>,
    /// When it ended, or must end.
    pub end_time: Option<Timestamp>,
    /// The time limit in minutes.
    pub time_limit: NoVal,
    /// Whether it may be requeued.
    pub requeue: bool,
    /// How often it was restarted.
    pub restarts: u64,
    /// A free-form comment.
    pub comment: Arc<str>,
}

impl Job {
    /// Reports whether the job occupies nodes, or parts of it are being cleaned up there. A job in an unknown state
    /// counts if it names nodes.
    pub fn holds_nodes(&self) -> bool {
        matches!(self.state, JobBase::Running | JobBase::Suspended)
            || (self.state == JobBase::Unknown && !self.nodes.is_empty())
            || self.is_completing()
            || self.flags.contains("CONFIGURING")
    }

    /// Reports whether the job has ended or is being requeued, and its nodes are being cleaned up.
    pub fn is_completing(&self) -> bool {
        self.flags.contains("COMPLETING")
    }

    /// Returns the name that identifies exactly this job. The ID alone would mean the whole array for the task that has
    /// the array's ID, and the whole heterogeneous job for its first component.
    pub fn address(&self) -> String {
        match (
            self.array_job_id,
            self.array_task_id,
            self.het_job_id,
            self.het_job_offset,
        ) {
            (Some(array), Some(task), ..) => format!("{array}_{task}"),
            (_, _, Some(het), Some(offset)) => format!("{het}+{offset}"),
            _ => self.id.to_string(),
        }
    }

    /// Returns the name to request a requeue with: a heterogeneous job can only be requeued as a whole.
    pub fn requeue_address(&self) -> String {
        match self.het_job_id {
            Some(het) => het.to_string(),
            None => self.address(),
        }
    }

    /// Reports whether the job is pending, running, or being cleaned up. An unknown state counts as active.
    pub fn is_active(&self) -> bool {
        self.holds_nodes() || matches!(self.state, JobBase::Pending | JobBase::Unknown)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawJob<'a> {
    job_id: NoVal,
    array_job_id: NoVal,
    array_task_id: NoVal,
    het_job_id: NoVal,
    het_job_offset: NoVal,
    batch_flag: Switch,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    user_name: Text<'a>,
    #[serde(borrow)]
    account: Text<'a>,
    #[serde(borrow)]
    partition: RawWords<'a>,
    #[serde(borrow)]
    job_state: RawWords<'a>,
    #[serde(borrow)]
    state_reason: Text<'a>,
    #[serde(borrow)]
    nodes: Text<'a>,
    #[serde(borrow)]
    required_nodes: Text<'a>,
    #[serde(borrow)]
    resv_name: Text<'a>,
    submit_time: NoVal,
    start_time: NoVal,
    end_time: NoVal,
    time_limit: NoVal,
    requeue: Switch,
    restart_cnt: NoVal,
    #[serde(borrow)]
    comment: Text<'a>,
}

impl Item for Job {
    const KEY: &'static str = "jobs";
    const MOST: usize = MOST_LISTED_JOBS;
    type Raw<'a> = RawJob<'a>;

    fn keep(raw: RawJob<'_>, strings: &mut Strings) -> Self {
        let (state, flags) = read_state(&raw.job_state);
        Self {
            id: raw.job_id.number().unwrap_or(0),
            array_job_id: raw.array_job_id.number().filter(|id| *id > 0),
            array_task_id: raw.array_task_id.number(),
            het_job_id: raw.het_job_id.number().filter(|id| *id > 0),
            het_job_offset: raw.het_job_offset.number(),
            batch: raw.batch_flag.0,
            name: strings.keep_text(&raw.name),
            user: strings.keep_text(&raw.user_name),
            account: strings.keep_text(&raw.account),
            partition: strings.keep_words(&raw.partition),
            state,
            flags,
            state_reason: strings.keep_text(&raw.state_reason),
            nodes: strings.keep_text(&raw.nodes),
            required_nodes: strings.keep_text(&raw.required_nodes),
            reservation: strings.keep_text(&raw.resv_name),
            submit_time: raw.submit_time.timestamp(),
            start_time: raw.start_time.timestamp(),
            end_time: raw.end_time.timestamp(),
            time_limit: raw.time_limit,
            requeue: raw.requeue.0,
            restarts: raw.restart_cnt.number().unwrap_or(0),
            comment: strings.keep_text(&raw.comment),
        }
    }
}

fn read_state(words: &RawWords<'_>) -> (JobBase, Words) {
    let base = words
        .iter()
        .find_map(|word| word.parse().ok())
        .unwrap_or_default();
    (
        base,
        words
            .iter()
            .filter(|word| word.parse::<JobBase>().is_err())
            .collect(),
    )
}

/// Decodes a response to `GET /jobs/`.
pub fn decode_jobs(answer: &[u8]) -> Result<Listing<Job>, Error> {
    decode(&endpoint::JOBS, answer).map(|answer| answer.body)
}

impl Client {
    /// Lists all jobs, or returns `Unchanged` if no job has changed since the given time.
    pub async fn jobs(&self, changed_since: Option<Timestamp>) -> Result<Fetched<Listing<Job>>, Error> {
        self.execute(since(Request::new(&endpoint::JOBS), changed_since))
            .await
            .map(Fetched::from_reply)
    }

    /// Reads one job, or the tasks of one array.
    pub async fn job(&self, id: u64) -> Result<Vec<Job>, Error> {
        let (what, id) = (format!("job {id}"), id.to_string());
        let missing = Missing {
            what: &what,
            numbers: &UNKNOWN_JOB,
        };
        let ask = Request::new(&endpoint::JOB).about(&id).missing(missing);
        match self.execute::<Listing<Job>>(ask).await? {
            Reply::Body { body, .. } if !body.items.is_empty() => Ok(body.items),
            Reply::Body { .. } | Reply::NotModified => Err(missing.error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;
    use serde_json::json;

    #[test]
    fn a_job_is_read_with_the_facts_that_decide() {
        let json = json!({"jobs": [
            {"job_id": 7, "job_state": ["RUNNING", "SIGNALING"], "partition": "a,b", "nodes": "w-[0-1]",
             "time_limit": {"set": false, "infinite": true, "number": 0}, "requeue": true,
             "end_time": {"set": true, "infinite": false, "number": 99}},
            {"job_id": {"set": true, "number": 8}, "job_state": ["COMPLETED", "COMPLETING"]},
            {"job_id": 9, "job_state": ["NEW_STATE"]},
            {"job_id": 10, "job_state": ["CANCELLED"]},
            {"job_id": 11, "job_state": ["NEW_STATE"], "nodes": "w-0"}
        ]});
        let jobs = decode::<Listing<Job>>(&endpoint::JOBS, json.to_string().as_bytes())
            .unwrap()
            .body
            .items;
        assert_eq!(
            (jobs[0].id, jobs[0].state, jobs[0].flags.as_str()),
            (7, JobBase::Running, "SIGNALING")
        );
        assert_eq!(
            (jobs[0].partition.as_str(), jobs[0].time_limit),
            ("a,b", NoVal::Infinite)
        );
        assert!(jobs[1].holds_nodes() && jobs[1].is_active());
        assert!(jobs[2].is_active() && !jobs[2].holds_nodes());
        assert!(!jobs[3].is_active());
        assert!(jobs[4].holds_nodes());
    }

    #[test]
    fn a_task_and_a_component_are_not_called_by_the_number_of_the_whole() {
        let json = json!({"jobs": [
            {"job_id": 7, "job_state": ["RUNNING"]},
            {"job_id": 8, "array_job_id": 8, "array_task_id": {"set": true, "number": 3}, "job_state": ["RUNNING"]},
            {"job_id": 9, "array_job_id": 8, "array_task_id": {"set": true, "number": 0}, "job_state": ["RUNNING"]},
            {"job_id": 8, "array_job_id": 8, "array_task_id": {"set": false}, "job_state": ["PENDING"]},
            {"job_id": 20, "het_job_id": 20, "het_job_offset": {"set": true, "number": 0}, "job_state": ["RUNNING"]},
            {"job_id": 21, "het_job_id": 20, "het_job_offset": {"set": true, "number": 1}, "job_state": ["RUNNING"]},
        ]});
        let jobs = decode::<Listing<Job>>(&endpoint::JOBS, json.to_string().as_bytes())
            .unwrap()
            .body
            .items;
        let addresses: Vec<String> = jobs.iter().map(Job::address).collect();
        assert_eq!(addresses, ["7", "8_3", "8_0", "8", "20+0", "20+1"]);
        let whole: Vec<String> = jobs.iter().map(Job::requeue_address).collect();
        assert_eq!(whole, ["7", "8_3", "8_0", "8", "20", "20"]);
    }
}
