//! Nodes and jobs in the modelled slurmctld.

use std::sync::OnceLock;

use jiff::Timestamp;
use slurm_rest::{job::JobBase, node::NodeState};

use crate::slurm::facts::SlurmNode;

/// A job on one node: a task of a job array, so that a call with the array's job ID would affect all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub task: u64,
    /// Whether Slurm can requeue it.
    pub requeue: bool,
    /// It still occupies its node, which may look idle.
    pub suspended: bool,
    /// It was requeued, and its node is still being cleaned up.
    pub completing: bool,
}

/// The job ID of the array that all jobs belong to.
pub const ARRAY: u64 = 7;

impl Job {
    pub fn address(&self) -> String {
        format!("{ARRAY}_{}", self.task)
    }

    /// Returns the job as slurmrestd lists it.
    pub fn listed(&self, node: &str) -> slurm_rest::job::Job {
        let state = match self {
            Self { completing: true, .. } => JobBase::Pending,
            Self { suspended: true, .. } => JobBase::Suspended,
            Self { .. } => JobBase::Running,
        };
        slurm_rest::job::Job {
            id: ARRAY,
            array_job_id: Some(ARRAY),
            array_task_id: Some(self.task),
            state,
            flags: if self.completing {
                ["COMPLETING"].into_iter().collect()
            } else {
                slurm_rest::Words::default()
            },
            nodes: node.into(),
            requeue: self.requeue,
            batch: true,
            ..blank()
        }
    }
}

/// Returns a pending job that requests the node.
pub fn insisting(node: &str) -> slurm_rest::job::Job {
    slurm_rest::job::Job {
        id: 99,
        state: JobBase::Pending,
        required_nodes: node.into(),
        ..blank()
    }
}

fn blank() -> slurm_rest::job::Job {
    static BLANK: OnceLock<slurm_rest::job::Job> = OnceLock::new();
    let decoded =
        || slurm_rest::job::decode_jobs(br#"{ "jobs": [{ "job_id": 1, "job_state": ["RUNNING"] }] }"#);
    BLANK.get_or_init(|| decoded().unwrap().items.remove(0)).clone()
}

/// The record of a node in slurmctld.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub struct Record {
    pub drain: bool,
    pub down: bool,
    /// Its slurmd currently does not respond.
    pub silent: bool,
    pub reason: String,
    pub jobs: Vec<Job>,
    pub registered: Option<Timestamp>,
    /// The revision of the worker that created the record.
    pub made_by: String,
    /// A pending job requests the node.
    pub wanted: bool,
}

impl Record {
    pub fn read(&self, read_at: Timestamp) -> SlurmNode {
        let visible = self
            .jobs
            .iter()
            .filter(|job| !job.suspended && !job.completing)
            .count();
        let completing = self.jobs.iter().any(|job| job.completing);
        let base = if self.down {
            "DOWN"
        } else if visible > 0 {
            "MIXED"
        } else {
            "IDLE"
        };
        let flags = [
            (self.drain, "DRAIN"),
            (self.silent, "NOT_RESPONDING"),
            (completing, "COMPLETING"),
        ];
        let flags = flags.into_iter().filter_map(|(set, flag)| set.then_some(flag));
        SlurmNode {
            state: NodeState::read([base].into_iter().chain(flags)),
            allocated: u32::try_from(visible).unwrap(),
            reason: self.reason.clone(),
            address: String::new(),
            topology: String::new(),
            reservation: String::new(),
            features: vec![],
            active_features: vec![],
            registered: self.registered,
            read_at,
            outdated: false,
            work: None,
            extra: "pod=ns/w,node=m,nodeset=w/set".into(),
        }
    }
}
