//! A model of Kubernetes and Slurm in which pods start, crash and die, jobs start and end, people scale, edit, cordon and
//! drain, Slurm falls silent, readings come late, and the operator is killed or acts on what is over. Plans are made and
//! carried out on it as the doing side does; what may never happen is checked on the way.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use keelson_api::nodeset::ScalingMode;
use keelson_api::well_known::slurm::REASON_PREFIX;
use slurm_rest::node::NodeState;

use super::{
    super::status::outdated_nodes,
    plan, promises,
    tests::{at, pod, set},
};
use crate::{
    nodeset::facts::{
        Fit, MachineFacts, NextRecord, Observed, Phase, Plan, PodFacts, PodId, SetFacts, Step, Strategy,
    },
    slurm::{
        facts::{NodeName, Slurm, SlurmNode},
        jobs::Work,
    },
};

pub const ADMIN: &str = "an administrator said so";

/// A node as slurmctld has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    pub drain: bool,
    pub down: bool,
    pub reason: String,
    pub jobs: u32,
    pub registered: Option<Timestamp>,
    /// The revision of the worker that it was made of.
    pub made_by: String,
    /// A pending job names the node.
    pub wanted: bool,
}

impl Record {
    fn read(&self, read_at: Timestamp) -> SlurmNode {
        let base = if self.down {
            "DOWN"
        } else if self.jobs > 0 {
            "MIXED"
        } else {
            "IDLE"
        };
        let words = [base].into_iter().chain(self.drain.then_some("DRAIN"));
        SlurmNode {
            state: NodeState::read(words),
            allocated: self.jobs,
            reason: self.reason.clone(),
            address: String::new(),
            topology: String::new(),
            reservation: String::new(),
            features: vec![],
            active_features: vec![],
            registered: self.registered,
            read_at,
            outdated: false,
            work: Some(Work {
                jobs: (0..self.jobs.into()).collect(),
                wanted_by: self.wanted.then_some(7).into_iter().collect(),
                ..Work::default()
            }),
        }
    }
}

/// What is noted when all steps were done, and when one failed.
type Notes = [BTreeMap<NodeName, String>; 2];

#[derive(Debug, Clone)]
pub struct World {
    pub set: SetFacts,
    pub pods: BTreeMap<String, PodFacts>,
    pub records: BTreeMap<String, Record>,
    pub machines: BTreeMap<String, MachineFacts>,
    /// The last answer of Slurm, which may be old; none while it is silent.
    pub seen: Option<BTreeMap<NodeName, SlurmNode>>,
    pub now: Timestamp,
    births: u32,
    /// Jobs that run on a node although Slurm forgot them.
    pub forgotten: BTreeMap<String, u32>,
    /// Jobs that ended because of what we did.
    pub lost: u32,
    /// Nodes of which nobody could note in time that their record is of another kind: their worker crashed, it was going when
    /// the kind changed, or Slurm forgot them.
    pub unnoted: BTreeSet<String>,
    /// A step failed since somebody last looked.
    failed: bool,
    /// A plan that was made and is not carried out yet, and what is noted when it was; nothing if something was noted
    /// since, as an object is reconciled by one at a time.
    pub late: Option<(Vec<Step>, Option<Notes>)>,
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
    /// A pending job insists on the node, or does so no longer.
    Insist(usize, bool),
    JobStarts(usize),
    JobsEnd(usize),
    Crash(usize),
    SlurmSilent,
    /// It answers that it knows nobody, as after the loss of its state.
    SlurmForgets,
    /// It lost its state for good: jobs go on of which it knows nothing.
    SlurmLosesState,
    /// slurmd ends, perhaps before it ever registered, and its container waits to be started again.
    Restarts(usize),
    Pause(bool),
    Switch(ScalingMode),
    /// Time passes: pods start, die, register; Slurm is read.
    Settle,
    /// The operator looks and acts, only the first so many steps if it is killed in the middle.
    Act {
        killed_after: Option<usize>,
    },
    /// The operator looks at what is now, and acts only later: its watches are behind.
    LookOnly,
    /// It acts on what it saw then.
    ActLate,
}

impl World {
    pub fn new() -> Self {
        let machine = |i: usize| {
            let name = format!("machine-{i}");
            let facts = MachineFacts {
                hostname: name.clone(),
                ..MachineFacts::default()
            };
            (name, facts)
        };
        Self {
            set: set(3),
            pods: BTreeMap::new(),
            records: BTreeMap::new(),
            machines: (0..4).map(machine).collect(),
            seen: Some(BTreeMap::new()),
            now: at(0),
            births: 0,
            forgotten: BTreeMap::new(),
            lost: 0,
            unnoted: BTreeSet::new(),
            failed: false,
            late: None,
        }
    }

    pub fn observed(&self) -> Observed {
        let slurm = match &self.seen {
            Some(nodes) => Slurm::Known { nodes: nodes.clone() },
            None => Slurm::Unknown { why: "silent".into() },
        };
        Observed {
            set: self.set.clone(),
            pods: self.pods.values().cloned().map(|pod| self.shaped(pod)).collect(),
            slurm,
            machines: self.machines.clone(),
            now: self.now,
        }
    }

    fn shaped(&self, pod: PodFacts) -> PodFacts {
        let made_by = self.set.records.get(&pod.node).unwrap_or(&pod.revision);
        PodFacts {
            reshaped: self.differs(made_by),
            ..pod
        }
    }

    /// Every other edit makes another kind of node of the workers.
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
                if let Some(machine) = self.machines.values_mut().nth(index % 4) {
                    machine.cordoned = *cordoned;
                }
            }
            Event::MachineFits(index, fit) => {
                if let Some(machine) = self.machines.values_mut().nth(index % 4) {
                    machine.fit = *fit;
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
                    record.jobs = 0;
                }
            }
            Event::Crash(index) => {
                if let Some(pod) = self.nth_pod(*index) {
                    pod.phase = Phase::Ended;
                    pod.ready_since = None;
                    let name = pod.node.0.clone();
                    // Its jobs are lost, and not by us.
                    self.forgotten.remove(&name);
                    if let Some(record) = self.records.get_mut(&name) {
                        record.jobs = 0;
                        record.down = true;
                    }
                }
            }
            Event::SlurmSilent => self.seen = None,
            Event::SlurmForgets => {
                self.unnoted.extend(self.records.keys().cloned());
                self.seen = Some(BTreeMap::new());
            }
            Event::SlurmLosesState => {
                self.unnoted.extend(self.records.keys().cloned());
                for (name, record) in std::mem::take(&mut self.records) {
                    *self.forgotten.entry(name).or_default() += record.jobs;
                }
                self.seen = Some(BTreeMap::new());
                // A plan is carried out in the second that it is made in; slurmctld takes longer to start again.
                self.late = None;
            }
            Event::Restarts(index) => self.restart(*index),
            Event::Pause(paused) => self.set.paused = *paused,
            Event::Switch(mode) => self.set.mode = *mode,
            Event::Settle => self.settle(),
            Event::Act { killed_after } => drop(self.acts(*killed_after)),
            Event::LookOnly => {
                let plan = self.looks();
                let notes = self.notes(&plan);
                self.late = Some((plan.steps, Some(notes)));
            }
            Event::ActLate => {
                if let Some((steps, notes)) = self.late.take() {
                    self.carry_all_out(&steps);
                    if let Some(notes) = notes {
                        self.note(notes);
                    }
                }
            }
        }
    }

    fn restart(&mut self, index: usize) {
        let Some(pod) = self.nth_pod(index).filter(|pod| pod.phase != Phase::Ended) else {
            return;
        };
        if pod.phase == Phase::Pending {
            pod.machine = pod.target.clone().or_else(|| Some("machine-0".to_owned()));
            pod.target = pod.machine.clone();
        }
        pod.phase = Phase::Running;
        pod.started = true;
        pod.running = false;
        pod.ready_since = None;
        let name = pod.node.0.clone();
        // Its jobs are lost, and not by us.
        self.forgotten.remove(&name);
        if let Some(record) = self.records.get_mut(&name) {
            record.jobs = 0;
        }
    }

    /// Slurm gives work to whoever takes it.
    fn start_job(&mut self, index: usize) {
        let served: BTreeSet<String> = self
            .pods
            .values()
            .filter(|pod| pod.ready_since.is_some())
            .map(|pod| pod.node.0.clone())
            .collect();
        let free: Vec<&mut Record> = self
            .records
            .iter_mut()
            .filter(|(name, record)| served.contains(*name) && !record.drain && !record.down)
            .map(|(_, record)| record)
            .collect();
        let count = free.len().max(1);
        if let Some(record) = free.into_iter().nth(index % count) {
            record.jobs += 1;
        }
    }

    pub fn settle(&mut self) {
        let now = self.now;
        self.pods.retain(|_, pod| !pod.terminating);
        for pod in self.pods.values_mut().filter(|pod| pod.phase == Phase::Pending) {
            if pod.machine.is_none() {
                pod.machine = pod
                    .target
                    .clone()
                    .or_else(|| Some(format!("machine-{}", self.births % 4)));
                pod.target = pod.machine.clone();
            }
            pod.phase = Phase::Running;
            pod.started = true;
            pod.running = false;
        }
        for pod in self.pods.values_mut().filter(|pod| pod.phase == Phase::Running) {
            if pod.running && self.records.contains_key(&pod.node.0) {
                continue;
            }
            if !pod.running {
                pod.running = true;
                pod.ready_since = Some(now);
            }
            // A slurmctld that knows nothing of the jobs of a node that registers ends them itself.
            self.forgotten.remove(&pod.node.0);
            let record = self.records.entry(pod.node.0.clone()).or_insert_with(|| Record {
                made_by: pod.revision.clone(),
                ..Record::default()
            });
            record.registered = Some(now);
            // A node that comes back is up; who drained it decides whether it takes jobs.
            record.down = false;
        }
        self.seen = Some(
            self.records
                .iter()
                .map(|(name, record)| (NodeName(name.clone()), record.read(now)))
                .collect(),
        );
    }

    /// Makes a plan and checks what it may never say. Its steps are in the order in which the doing side works.
    fn looks(&self) -> Plan {
        let observed = self.observed();
        let mut plan = plan(&observed);
        promises::check(&observed, &plan);
        plan.steps.sort_by_key(phase);
        plan
    }

    /// Does what the plan says, as the doing side does it.
    pub fn acts(&mut self, killed_after: Option<usize>) -> Plan {
        let plan = self.looks();
        let notes = self.notes(&plan);
        let done = killed_after.unwrap_or(usize::MAX).min(plan.steps.len());
        self.carry_all_out(&plan.steps[..done]);
        // The status is written last.
        if killed_after.is_none() {
            self.note(notes);
        }
        plan
    }

    fn notes(&self, plan: &Plan) -> Notes {
        let observed = self.observed();
        [false, true].map(|failed| outdated_nodes(&observed, plan, failed))
    }

    fn note(&mut self, [done, failed]: Notes) {
        self.set.records = if self.failed { failed } else { done };
        if let Some((_, notes)) = &mut self.late {
            *notes = None;
        }
    }

    fn carry_all_out(&mut self, steps: &[Step]) {
        self.failed = false;
        for step in steps {
            self.carry_out(step);
        }
    }

    fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Create { ordinal, .. } => {
                self.births += 1;
                let mut born = pod(*ordinal);
                born.machine = None;
                born.target = None;
                self.bear(born);
            }
            Step::CreateOn { machine, hostname } => {
                self.births += 1;
                let mut born = pod(0);
                born.name = format!("d-{}", self.births);
                born.ordinal = None;
                born.mode = ScalingMode::DaemonSet;
                born.node = NodeName(hostname.clone());
                born.machine = None;
                born.target = Some(machine.clone());
                self.bear(born);
            }
            Step::Intend { pod, intent } => self.on_pod(pod, |pod| pod.intent = Some(intent.clone())),
            Step::Forget { pod } => self.on_pod(pod, |pod| pod.intent = None),
            Step::Protect { pod, protected } => self.on_pod(pod, |pod| pod.protected = *protected),
            Step::Drain { node, reason } => self.on_record(node, |record| {
                record.drain = true;
                record.reason.clone_from(reason);
            }),
            // The last look: somebody may have made the drain theirs since it was read.
            Step::Undrain { node } => self.on_record(node, |record| {
                record.drain &= !record.reason.starts_with(REASON_PREFIX);
            }),
            Step::Deadline { pod, at } => self.on_pod(pod, |pod| pod.deadline = *at),
            Step::Adopt { pod } => self.on_pod(pod, |pod| pod.orphan = false),
            Step::OwnClaim { .. }
            | Step::Topology { .. }
            | Step::PlaceNode { .. }
            | Step::SetFeatures { .. } => {}
            Step::Conditions { pod, set, drop } => {
                let now = self.now;
                self.on_pod(pod, |pod| {
                    pod.conditions.retain(|kind, _| !drop.contains(kind));
                    pod.conditions
                        .extend(set.iter().map(|(k, m)| (k.clone(), (m.clone(), Some(now)))));
                });
            }
            Step::EndJobs { .. } => panic!("nobody wrote that jobs may be ended"),
            Step::Resume { node } => self.on_record(node, |record| {
                record.down &= !record.reason.starts_with(REASON_PREFIX);
            }),
            // The last look, and a deletion only of the pod as it was looked at.
            Step::Discard { pod } => {
                if let Some(known) = self.pods.get(&pod.name).filter(|pod| pod.is_empty()) {
                    if !self.set.records.contains_key(&known.node) {
                        self.unnoted.insert(known.node.0.clone());
                    }
                    self.remove(&pod.name, &pod.uid);
                }
            }
            Step::Force { .. } => panic!("nobody wrote that jobs may be killed"),
            // The last look before the deletion.
            Step::Replace { pod, node, record } => {
                let now = self.records.get(&node.0).map(|record| record.read(self.now));
                let known = self.pods.get(&pod.name);
                let renews = *record == NextRecord::Renewed;
                let as_planned = |now: &SlurmNode| now.drained() && (now.reason_is_ours() || !renews);
                if !now.as_ref().is_none_or(as_planned) {
                    self.failed |= renews;
                } else if known.is_some_and(|known| known.uid == pod.uid && !known.terminating) {
                    self.remove(&pod.name, &pod.uid);
                    if renews {
                        self.records.remove(&node.0);
                        // What was read before says nothing any more.
                        let seen = self.seen.as_mut().and_then(|seen| seen.get_mut(node));
                        if let Some(seen) = seen {
                            seen.outdated = true;
                        }
                    }
                }
            }
            // Slurm refuses to forget a node with a job on it.
            Step::Retire { pod, node } => {
                let busy = self.records.get(&node.0).is_some_and(|record| record.jobs > 0);
                let known = self.pods.get(&pod.name);
                if !busy && known.is_some_and(|known| known.uid == pod.uid && !known.terminating) {
                    // In this order, so that a job on it counts as lost.
                    self.remove(&pod.name, &pod.uid);
                    self.records.remove(&node.0);
                }
            }
        }
    }

    fn bear(&mut self, mut born: PodFacts) {
        // POST answers "already exists" while its predecessor is dying.
        if self.pods.contains_key(&born.name) {
            return;
        }
        born.uid = format!("uid-{}", self.births);
        born.revision.clone_from(&self.set.revision);
        born.phase = Phase::Pending;
        born.started = false;
        born.running = false;
        born.ready_since = None;
        born.created = self.now;
        self.pods.insert(born.name.clone(), born);
    }

    fn on_pod(&mut self, id: &PodId, change: impl FnOnce(&mut PodFacts)) {
        // A patch carries the uid that was looked at.
        if let Some(pod) = self.pods.get_mut(&id.name).filter(|pod| pod.uid == id.uid) {
            change(pod);
        }
    }

    fn on_record(&mut self, node: &NodeName, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.records.get_mut(&node.0) {
            change(record);
        }
    }

    fn remove(&mut self, name: &str, uid: &str) {
        let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == uid) else {
            return;
        };
        let node = pod.node.0.clone();
        if pod.phase != Phase::Ended && pod.started {
            // The promise: no job is killed by a change that we make.
            self.lost += self.records.get(&node).map_or(0, |record| record.jobs);
            self.lost += self.forgotten.remove(&node).unwrap_or(0);
        }
        let pod = self.pods.get_mut(name).unwrap();
        pod.terminating = true;
        pod.ready_since = None;
        self.on_record(&NodeName(node), |record| {
            // What its pre-stop hook says.
            record.down = true;
            if !record.drain {
                record.reason = "slurm-operator: Pod is terminating".into();
            }
        });
    }
}

/// The order in which the doing side works.
fn phase(step: &Step) -> u8 {
    match step {
        Step::Intend { .. }
        | Step::Forget { .. }
        | Step::Protect { .. }
        | Step::Adopt { .. }
        | Step::OwnClaim { .. }
        | Step::Deadline { .. }
        | Step::Topology { .. }
        | Step::Conditions { .. } => 0,
        Step::Drain { .. }
        | Step::Undrain { .. }
        | Step::Resume { .. }
        | Step::PlaceNode { .. }
        | Step::SetFeatures { .. }
        | Step::EndJobs { .. } => 1,
        Step::Discard { .. } | Step::Force { .. } | Step::Replace { .. } | Step::Retire { .. } => 2,
        Step::Create { .. } | Step::CreateOn { .. } => 3,
    }
}
