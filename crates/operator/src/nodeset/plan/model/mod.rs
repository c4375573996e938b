//! A model of Kubernetes and Slurm for tests: pods start, crash and terminate, jobs start and end, users scale, edit,
//! cordon and drain, Slurm stops answering, reads are late, and the operator is killed or acts on outdated state. Plans
//! are made and carried out by the same code as in a cluster, and invariants are checked on the way.

mod hands;
mod record;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use keelson_api::nodeset::{DrainTimeoutAction, ScalingMode};
use keelson_api::well_known::slurm::REASON_PREFIX;
use parking_lot::Mutex;

use self::{
    hands::Hands,
    record::{Job, Record},
};
use super::{
    super::status::outdated_nodes,
    needs_jobs, plan, promises,
    tests::{at, set},
};
use crate::{
    nodeset::{
        act::Act,
        facts::{
            Fit, KubeNodeFacts, Leaving, Observed, Paused, Phase, Plan, PodFacts, SetFacts, Start, Step,
            Strategy,
        },
    },
    slurm::{
        facts::{JobReading, NodeName, Slurm, SlurmNode},
        jobs::{self, JobList},
    },
};

pub const ADMIN: &str = "an administrator said so";

/// A slurmd that runs but is not visible in Kubernetes yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    /// The pod is bound to a Kubernetes node, but the watch has not delivered this yet.
    Bound,
    /// Its container runs, but the kubelet has not reported it yet.
    Started,
}

/// How the NodeSet is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cascade {
    Background,
    Foreground,
    Orphan,
}

/// The outdated nodes for the status: if all steps succeed, and if one fails.
type Notes = [BTreeMap<NodeName, String>; 2];

#[derive(Debug, Clone)]
pub struct World {
    pub set: SetFacts,
    pub pods: BTreeMap<String, PodFacts>,
    pub records: BTreeMap<String, Record>,
    pub kube_nodes: BTreeMap<String, KubeNodeFacts>,
    /// The last response from Slurm, which may be outdated; `None` while Slurm does not answer.
    pub seen: Option<BTreeMap<NodeName, SlurmNode>>,
    /// Slurm does not answer.
    pub silent: bool,
    /// Slurm does not list its jobs.
    pub jobs_fail: bool,
    /// Jobs that Slurm refused to requeue.
    pub refused: BTreeSet<String>,
    /// How far the workers' clocks are behind the API server's.
    pub clocks: SignedDuration,
    /// Workers that run but are not visible in Kubernetes yet, by UID of their pod.
    pub unseen: BTreeMap<String, Unseen>,
    tasks: u64,
    pub now: Timestamp,
    births: u32,
    /// The number of jobs on each node that still run although Slurm forgot them.
    pub forgotten: BTreeMap<String, usize>,
    /// The number of jobs killed by the operator's changes.
    pub lost: usize,
    /// Nodes whose outdated record could not be listed in the status in time: their worker crashed, it was being
    /// removed when the node configuration changed, or Slurm forgot them.
    pub unnoted: BTreeSet<String>,
    /// A plan that is not carried out yet, and the notes to write afterwards. They are dropped if other notes were
    /// written since, because an object has only one reconcile at a time.
    pub late: Option<(Plan, Option<Notes>)>,
}

#[derive(Debug, Clone)]
pub enum Event {
    Scale(u32),
    Edit,
    Budget(u32),
    MachineCordon(usize, bool),
    MachineFits(usize, Fit),
    PodCordon(usize, bool),
    AdminDrain(usize),
    AdminUndrain(usize),
    /// A pending job requests the node, or no longer does.
    Insist(usize, bool),
    JobStarts(usize),
    JobsEnd(usize),
    /// A job is suspended or resumed. A node with only suspended jobs looks idle, but is not.
    Suspend(usize),
    /// Sets the action of `drain.timeout`, which then expires immediately.
    OnTimeout(DrainTimeoutAction),
    /// Slurm answers, but does not list its jobs.
    JobsFail,
    /// A worker briefly stops responding, or responds again.
    Blip(usize, bool),
    /// slurmctld sets a node down because its worker has not responded for a long time.
    GivenUp(usize),
    /// A worker starts and registers before Kubernetes reports it.
    StartsUnseen(usize, Unseen),
    /// The workers' clocks are this many seconds behind.
    Clocks(i64),
    /// A Kubernetes node requests the host name of another one.
    SameName(usize, usize),
    Delete(Cascade),
    /// The NodeSet is created again, after its workers are gone or were orphaned.
    Recreate,
    Crash(usize),
    SlurmSilent,
    /// Slurm answers with an empty node list, as after losing its state.
    SlurmForgets,
    /// Slurm loses its state for good: jobs that it does not know keep running.
    SlurmLosesState,
    /// slurmd exits, perhaps before it ever registered, and its container waits for a restart.
    Restarts(usize),
    Pause(bool),
    Switch(ScalingMode),
    /// Time passes: pods start, register or disappear, and Slurm is read.
    Settle,
    /// The operator makes a plan and carries it out, or is killed after this many calls.
    Act {
        killed_after: Option<usize>,
    },
    /// The operator makes a plan but carries it out only later, because its watches are behind.
    LookOnly,
    /// The operator carries out that plan.
    ActLate,
}

impl World {
    pub fn new() -> Self {
        let kube_node = |i: usize| {
            let name = format!("machine-{i}");
            let facts = KubeNodeFacts {
                hostname: name.clone(),
                ..KubeNodeFacts::default()
            };
            (name, facts)
        };
        Self {
            set: SetFacts {
                prune: true,
                ..set(3)
            },
            pods: BTreeMap::new(),
            records: BTreeMap::new(),
            kube_nodes: (0..4).map(kube_node).collect(),
            seen: Some(BTreeMap::new()),
            silent: false,
            jobs_fail: false,
            refused: BTreeSet::new(),
            clocks: SignedDuration::ZERO,
            unseen: BTreeMap::new(),
            tasks: 0,
            now: at(0),
            births: 0,
            forgotten: BTreeMap::new(),
            lost: 0,
            unnoted: BTreeSet::new(),
            late: None,
        }
    }

    pub fn observed(&self) -> Observed {
        let slurm = match &self.seen {
            Some(nodes) => Slurm::Known {
                nodes: nodes.clone(),
                jobs: JobReading::NotAsked,
            },
            None => Slurm::Unknown { why: "silent".into() },
        };
        let mut observed = Observed {
            set: self.set.clone(),
            pods: self.pods.values().cloned().map(|pod| self.shaped(pod)).collect(),
            slurm,
            kube_nodes: self.kube_nodes.clone(),
            taken: BTreeMap::new(),
            now: self.now,
        };
        if needs_jobs(&observed) {
            observed.slurm = observed.slurm.with_jobs(self.jobs());
        }
        observed
    }

    /// Lists the jobs as of now.
    fn jobs(&self) -> JobReading {
        if self.jobs_fail || self.silent {
            return JobReading::Failed {
                why: "no list".into(),
            };
        }
        let held = self
            .records
            .iter()
            .flat_map(|(name, record)| record.jobs.iter().map(move |job| job.listed(name)));
        let wanted = self.records.iter().filter(|(_, record)| record.wanted);
        let all: Vec<_> = held
            .chain(wanted.map(|(name, _)| record::insisting(name)))
            .collect();
        let mut by_node = jobs::by_node(&all).unwrap();
        for job in by_node.values_mut().flat_map(|work| &mut work.jobs) {
            job.refused = self.refused.contains(&job.address).then(|| "no".to_owned());
        }
        JobReading::Read(JobList {
            read_at: self.now,
            by_node: Arc::new(by_node),
        })
    }

    fn shaped(&self, pod: PodFacts) -> PodFacts {
        let made_by = self.set.records.get(&pod.node).unwrap_or(&pod.revision);
        PodFacts {
            reshaped: self.differs(made_by),
            ..pod
        }
    }

    /// Returns true if workers of this revision register with another node configuration. In this model, every other
    /// edit changes it.
    pub fn differs(&self, revision: &str) -> bool {
        revision.len().abs_diff(self.set.revision.len()) % 2 == 1
    }

    fn nth_pod(&mut self, index: usize) -> Option<&mut PodFacts> {
        let count = self.pods.len().max(1);
        self.pods.values_mut().nth(index % count)
    }

    fn nth_record(&mut self, index: usize) -> Option<&mut Record> {
        let count = self.records.len().max(1);
        self.records.values_mut().nth(index % count)
    }

    pub fn happens(&mut self, event: &Event) {
        self.now += SignedDuration::from_secs(1);
        match event {
            Event::Scale(replicas) => self.set.replicas = *replicas,
            Event::Edit => {
                self.set.revision.push('x');
                let staying = self.pods.values().filter(|pod| !pod.terminating);
                let served: BTreeSet<&String> = staying.map(|pod| &pod.node.0).collect();
                let unserved = self.records.keys().filter(|node| !served.contains(node));
                self.unnoted.extend(unserved.cloned());
            }
            Event::Budget(budget) => {
                self.set.strategy = Strategy::Rolling {
                    max_unavailable: *budget,
                    partition: 0,
                };
            }
            Event::MachineCordon(index, cordoned) => {
                if let Some(kube_node) = self.kube_nodes.values_mut().nth(index % 4) {
                    kube_node.cordoned = *cordoned;
                }
            }
            Event::MachineFits(index, fit) => {
                if let Some(kube_node) = self.kube_nodes.values_mut().nth(index % 4) {
                    kube_node.fit = *fit;
                }
            }
            Event::PodCordon(index, cordoned) => {
                if let Some(pod) = self.nth_pod(*index) {
                    pod.cordoned = *cordoned;
                }
            }
            Event::AdminDrain(index) => {
                if let Some(record) = self.nth_record(*index) {
                    record.drain = true;
                    record.reason = ADMIN.into();
                }
            }
            Event::AdminUndrain(index) => {
                if let Some(record) = self.nth_record(*index) {
                    record.drain = false;
                }
            }
            Event::Insist(index, wanted) => {
                if let Some(record) = self.nth_record(*index) {
                    record.wanted = *wanted;
                }
            }
            Event::JobStarts(index) => self.start_job(*index),
            Event::JobsEnd(index) => {
                if let Some(record) = self.nth_record(*index) {
                    record.jobs.clear();
                }
            }
            Event::Suspend(index) => {
                let job = self.nth_record(*index).and_then(|record| record.jobs.first_mut());
                if let Some(job) = job.filter(|job| !job.completing) {
                    job.suspended = !job.suspended;
                }
            }
            Event::OnTimeout(action) => {
                self.set.on_drain_timeout = *action;
                // A plan is carried out in the second in which it is made, so the setting cannot change in between.
                self.late = None;
                self.set.drain_timeout = Some(Duration::ZERO);
            }
            Event::JobsFail => self.jobs_fail = true,
            Event::Blip(index, silent) => {
                if let Some(record) = self.nth_record(*index) {
                    record.silent = *silent;
                }
            }
            Event::GivenUp(index) => {
                if let Some(record) = self.nth_record(*index).filter(|record| record.silent) {
                    record.down = true;
                    if !record.drain {
                        record.reason = "Not responding".into();
                    }
                    // Its jobs are lost, but not because of the operator.
                    record.jobs.clear();
                }
            }
            Event::StartsUnseen(index, unseen) => self.start_unseen(*index, *unseen),
            Event::Clocks(behind) => self.clocks = SignedDuration::from_secs(*behind),
            Event::SameName(index, of) => {
                let name = format!("machine-{}", of % 4);
                if let Some(kube_node) = self.kube_nodes.values_mut().nth(index % 4) {
                    kube_node.hostname = name;
                }
            }
            Event::Delete(cascade) => self.delete(*cascade),
            Event::Recreate => {
                if self.set.leaving == Leaving::Orphan || self.pods.is_empty() {
                    self.set.leaving = Leaving::No;
                }
            }
            Event::Crash(index) => {
                if let Some(pod) = self.nth_pod(*index) {
                    pod.phase = Phase::Ended;
                    pod.ready_since = None;
                    let (name, uid) = (pod.node.0.clone(), pod.uid.clone());
                    self.unseen.remove(&uid);
                    // Its jobs are lost, but not because of the operator.
                    self.forgotten.remove(&name);
                    if let Some(record) = self.records.get_mut(&name) {
                        record.jobs.clear();
                        record.down = true;
                        if !record.drain {
                            record.reason = "Not responding".into();
                        }
                    }
                }
            }
            Event::SlurmSilent => {
                self.seen = None;
                self.silent = true;
            }
            Event::SlurmForgets => {
                self.unnoted.extend(self.records.keys().cloned());
                self.seen = Some(BTreeMap::new());
            }
            Event::SlurmLosesState => {
                self.unnoted.extend(self.records.keys().cloned());
                for (name, record) in std::mem::take(&mut self.records) {
                    *self.forgotten.entry(name).or_default() += record.jobs.len();
                }
                self.seen = Some(BTreeMap::new());
                // A plan is carried out in the second in which it is made; slurmctld takes longer to restart.
                self.late = None;
            }
            Event::Restarts(index) => self.restart(*index),
            Event::Pause(paused) => self.set.paused = paused.then_some(Paused::Spec),
            Event::Switch(mode) => self.set.mode = *mode,
            Event::Settle => self.settle(),
            Event::Act { killed_after } => drop(self.acts(*killed_after)),
            Event::LookOnly => {
                let plan = self.looks();
                let notes = self.notes(&plan);
                self.late = Some((plan, Some(notes)));
            }
            Event::ActLate => {
                if let Some((plan, notes)) = self.late.take() {
                    let acted = self.carry_out(&plan, None);
                    if let (Some(failed), Some(notes)) = (acted, notes) {
                        self.note(notes, failed);
                    }
                }
            }
        }
    }

    /// Deletes the NodeSet, and does to its workers what the garbage collector does.
    fn delete(&mut self, cascade: Cascade) {
        if self.set.leaving != Leaving::No {
            return;
        }
        match cascade {
            Cascade::Background => self.set.leaving = Leaving::Drain,
            Cascade::Foreground => {
                self.set.leaving = Leaving::Drain;
                for name in self.pods.keys().cloned().collect::<Vec<_>>() {
                    let pod = self.pods.get_mut(&name).unwrap();
                    if pod.anchored {
                        pod.orphan = true;
                    } else if !pod.terminating {
                        self.remove(&name);
                    }
                }
            }
            Cascade::Orphan => {
                self.set.leaving = Leaving::Orphan;
                for pod in self.pods.values_mut() {
                    pod.orphan = true;
                }
            }
        }
    }

    fn start_unseen(&mut self, index: usize, unseen: Unseen) {
        let (now, clocks) = (self.now, self.clocks);
        let Some(pod) = self.nth_pod(index) else { return };
        if pod.phase != Phase::Pending || pod.terminating || pod.start != Start::Never {
            return;
        }
        if unseen == Unseen::Started {
            pod.kube_node = pod.target.clone().or_else(|| Some("machine-0".to_owned()));
            pod.target = pod.kube_node.clone();
            pod.start = Start::Perhaps;
        }
        let (uid, node, revision) = (pod.uid.clone(), pod.node.0.clone(), pod.revision.clone());
        self.unseen.insert(uid, unseen);
        self.forgotten.remove(&node);
        self.register(&node, &revision, now - clocks);
    }

    fn register(&mut self, node: &str, revision: &str, at: Timestamp) {
        let record = self.records.entry(node.to_owned()).or_insert_with(|| Record {
            made_by: revision.to_owned(),
            ..Record::default()
        });
        record.registered = Some(at);
        record.silent = false;
        // The jobs of the previous slurmd are lost, but not because of the operator.
        record.jobs.clear();
    }

    fn restart(&mut self, index: usize) {
        let Some(pod) = self.nth_pod(index).filter(|pod| pod.phase != Phase::Ended) else {
            return;
        };
        if pod.phase == Phase::Pending {
            pod.kube_node = pod.target.clone().or_else(|| Some("machine-0".to_owned()));
            pod.target = pod.kube_node.clone();
        }
        pod.phase = Phase::Running;
        pod.start = Start::Yes;
        pod.running = false;
        pod.ready_since = None;
        let (name, uid) = (pod.node.0.clone(), pod.uid.clone());
        self.unseen.remove(&uid);
        // Its jobs are lost, but not because of the operator.
        self.forgotten.remove(&name);
        if let Some(record) = self.records.get_mut(&name) {
            record.jobs.clear();
        }
    }

    /// Starts a job on one of the nodes that accept jobs.
    fn start_job(&mut self, index: usize) {
        let served: BTreeSet<String> = self
            .pods
            .values()
            .filter(|pod| pod.ready_since.is_some() || self.unseen.contains_key(&pod.uid))
            .map(|pod| pod.node.0.clone())
            .collect();
        self.tasks += 1;
        let job = Job {
            task: self.tasks,
            requeue: index.is_multiple_of(2),
            suspended: false,
            completing: false,
        };
        let free: Vec<&mut Record> = self
            .records
            .iter_mut()
            .filter(|(name, record)| {
                served.contains(*name) && !record.drain && !record.down && !record.silent
            })
            .map(|(_, record)| record)
            .collect();
        let count = free.len().max(1);
        if let Some(record) = free.into_iter().nth(index % count) {
            record.jobs.push(job);
        }
    }

    pub fn settle(&mut self) {
        let (now, clocks) = (self.now, self.clocks);
        self.silent = false;
        self.jobs_fail = false;
        self.pods.retain(|_, pod| !pod.terminating);
        for pod in self.pods.values_mut().filter(|pod| pod.phase == Phase::Pending) {
            if pod.kube_node.is_none() {
                pod.kube_node = pod
                    .target
                    .clone()
                    .or_else(|| Some(format!("machine-{}", self.births % 4)));
                pod.target = pod.kube_node.clone();
            }
            pod.phase = Phase::Running;
            pod.start = Start::Yes;
            pod.running = false;
        }
        for record in self.records.values_mut() {
            record.jobs.retain(|job| !job.completing);
        }
        let running: Vec<String> = self.pods.keys().cloned().collect();
        for name in running {
            let pod = self.pods.get_mut(&name).unwrap();
            let known = self.records.contains_key(&pod.node.0);
            if pod.phase != Phase::Running || (pod.running && known) {
                continue;
            }
            let starts = !pod.running && self.unseen.remove(&pod.uid).is_none();
            if !pod.running {
                pod.running = true;
                pod.ready_since = Some(now);
            }
            let (node, revision) = (pod.node.0.clone(), pod.revision.clone());
            // When a node registers, slurmctld itself kills the jobs on it that it does not know.
            self.forgotten.remove(&node);
            if starts || !known {
                self.register(&node, &revision, now - clocks);
            }
        }
        for (name, record) in &mut self.records {
            let serves = |pod: &PodFacts| pod.node.0 == *name && pod.running && pod.phase == Phase::Running;
            // A node whose worker is gone does not respond.
            record.silent |= !self.pods.values().any(serves);
        }
        self.seen = Some(
            self.records
                .iter()
                .map(|(name, record)| (NodeName(name.clone()), record.read(now)))
                .collect(),
        );
    }

    /// Makes a plan and checks the invariants.
    fn looks(&self) -> Plan {
        let observed = self.observed();
        let plan = plan(&observed);
        promises::check(&observed, &plan);
        plan
    }

    /// Makes a plan and carries it out, until the operator is killed.
    pub fn acts(&mut self, killed_after: Option<usize>) -> Plan {
        // The jobs are listed in the reconcile that requeues them, and an object has only one reconcile at a time: an
        // earlier one does not requeue them after this one has.
        if let Some((late, _)) = &mut self.late {
            late.steps
                .retain(|step| !matches!(step, Step::RequeueJobs { .. }));
        }
        let plan = self.looks();
        let notes = self.notes(&plan);
        // The status is written last.
        if let Some(failed) = self.carry_out(&plan, killed_after) {
            self.note(notes, failed);
        }
        plan
    }

    fn notes(&self, plan: &Plan) -> Notes {
        let observed = self.observed();
        [false, true].map(|failed| outdated_nodes(&observed, plan, failed))
    }

    fn note(&mut self, [done, undone]: Notes, failed: bool) {
        self.set.records = if failed { undone } else { done };
        if let Some((_, notes)) = &mut self.late {
            *notes = None;
        }
    }

    /// Makes a plan and carries it out while Slurm's answer to the first deletion of records takes this long; these events
    /// happen before the answer. Returns the number of failures.
    pub async fn acts_slowly(&mut self, takes: Duration, events: &[Event]) -> usize {
        let plan = self.looks();
        let hands = Hands {
            world: Mutex::new(self),
            left: Mutex::default(),
            slow: Mutex::new(Some((takes, events.to_vec()))),
        };
        let act = Act {
            workers: &hands,
            slurm: Some(&hands),
        };
        let acted = act.run(&plan).await;
        assert!(hands.slow.lock().is_none(), "no record was deleted");
        acted.failures.len()
    }

    /// Carries out a plan. Returns whether a step failed, or `None` if the operator was killed on the way.
    fn carry_out(&mut self, plan: &Plan, killed_after: Option<usize>) -> Option<bool> {
        for step in &plan.steps {
            if let Step::Discard { pod } = step
                && let Some(known) = self.pods.get(&pod.name)
                && !self.set.records.contains_key(&known.node)
            {
                self.unnoted.insert(known.node.0.clone());
            }
        }
        let hands = Hands {
            world: Mutex::new(self),
            left: Mutex::new(killed_after),
            slow: Mutex::default(),
        };
        let act = Act {
            workers: &hands,
            slurm: Some(&hands),
        };
        let acted = act.run(plan).now_or_never()?;
        Some(!acted.failures.is_empty())
    }

    fn remove(&mut self, name: &str) {
        let pod = self.pods.get_mut(name).unwrap();
        let node = pod.node.0.clone();
        let runs = pod.start == Start::Yes || self.unseen.remove(&pod.uid).is_some();
        pod.terminating = true;
        pod.ready_since = None;
        if pod.phase != Phase::Ended && runs {
            // The invariant: no change by the operator kills a job.
            let jobs = self.records.get(&node).map_or(&[][..], |record| &record.jobs);
            self.lost += jobs.iter().filter(|job| !job.completing).count();
            self.lost += self.forgotten.remove(&node).unwrap_or(0);
        }
        if let Some(record) = self.records.get_mut(&node) {
            // The preStop hook sets this, unless someone else drained the node.
            if !record.drain || record.reason.starts_with(REASON_PREFIX) {
                record.down = true;
                record.reason = "slurm-operator: Pod is terminating".into();
            }
        }
    }
}
