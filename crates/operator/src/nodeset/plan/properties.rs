//! What holds for every plan, whatever happens: a model of Kubernetes and Slurm in which pods start, crash and die, jobs
//! start and end, people scale, edit, cordon and drain, Slurm falls silent, and readings come late.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use keelson_api::nodeset::ScalingMode;
use keelson_api::well_known::slurm::REASON_PREFIX;
use proptest::prelude::*;
use slurm_rest::node::NodeState;

use super::{
    plan,
    tests::{at, pod, set},
};
use crate::{
    nodeset::facts::{
        Fit, Intent, Leaving, MachineFacts, Observed, Phase, Plan, PodFacts, SetFacts, Step, Strategy,
    },
    slurm::{
        facts::{NodeName, Slurm, SlurmNode},
        jobs::Work,
    },
};

const ADMIN: &str = "an administrator said so";

/// A node as slurmctld has it.
#[derive(Debug, Clone, Default)]
struct Record {
    drain: bool,
    down: bool,
    reason: String,
    jobs: u32,
    registered: Option<Timestamp>,
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
            features: vec![],
            active_features: vec![],
            registered: self.registered,
            read_at,
            outdated: false,
            work: Some(Work {
                jobs: (0..self.jobs.into()).collect(),
                ..Work::default()
            }),
        }
    }
}

#[derive(Debug, Clone)]
struct World {
    set: SetFacts,
    pods: BTreeMap<String, PodFacts>,
    records: BTreeMap<String, Record>,
    machines: BTreeMap<String, MachineFacts>,
    /// The last answer of Slurm, which may be old; none while it is silent.
    seen: Option<BTreeMap<NodeName, SlurmNode>>,
    now: Timestamp,
    births: u32,
    lost: u32,
}

#[derive(Debug, Clone)]
enum Event {
    Scale(u32),
    Edit,
    Budget(u32),
    MachineCordon(usize, bool),
    MachineFits(usize, Fit),
    PodCordon(usize, bool),
    AdminDrain(usize),
    AdminUndrain(usize),
    JobStarts(usize),
    JobsEnd(usize),
    Crash(usize),
    SlurmSilent,
    Pause(bool),
    Switch(ScalingMode),
    /// Time passes: pods start, die, register; Slurm is read.
    Settle,
    /// The operator looks and acts, only the first so many steps if it is killed in the middle.
    Act {
        killed_after: Option<usize>,
    },
}

fn events() -> impl Strategy_<Value = Vec<Event>> {
    let index = 0_usize..6;
    let event = prop_oneof![
        3 => (0_u32..6).prop_map(Event::Scale),
        2 => Just(Event::Edit),
        1 => (1_u32..4).prop_map(Event::Budget),
        1 => (index.clone(), any::<bool>()).prop_map(|(i, c)| Event::MachineCordon(i, c)),
        1 => (index.clone(), prop_oneof![Just(Fit::Run), Just(Fit::Stay), Just(Fit::No)])
            .prop_map(|(i, fit)| Event::MachineFits(i, fit)),
        1 => (index.clone(), any::<bool>()).prop_map(|(i, c)| Event::PodCordon(i, c)),
        1 => index.clone().prop_map(Event::AdminDrain),
        1 => index.clone().prop_map(Event::AdminUndrain),
        6 => index.clone().prop_map(Event::JobStarts),
        5 => index.clone().prop_map(Event::JobsEnd),
        1 => index.prop_map(Event::Crash),
        1 => Just(Event::SlurmSilent),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => prop_oneof![Just(ScalingMode::StatefulSet), Just(ScalingMode::DaemonSet)].prop_map(Event::Switch),
        8 => Just(Event::Settle),
        10 => proptest::option::weighted(0.3, 0_usize..4).prop_map(|killed_after| Event::Act { killed_after }),
    ];
    prop::collection::vec(event, 1..60)
}

use proptest::strategy::Strategy as Strategy_;

impl World {
    fn new() -> Self {
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
            lost: 0,
        }
    }

    fn observed(&self) -> Observed {
        let slurm = match &self.seen {
            Some(nodes) => Slurm::Known {
                nodes: nodes.clone(),
                since: None,
            },
            None => Slurm::Unknown { why: "silent".into() },
        };
        Observed {
            set: self.set.clone(),
            pods: self.pods.values().cloned().collect(),
            slurm,
            machines: self.machines.clone(),
            now: self.now,
        }
    }

    fn nth_pod(&mut self, index: usize) -> Option<&mut PodFacts> {
        let count = self.pods.len().max(1);
        self.pods.values_mut().nth(index % count)
    }

    fn nth_record(&mut self, index: usize) -> Option<&mut Record> {
        let count = self.records.len().max(1);
        self.records.values_mut().nth(index % count)
    }

    fn happens(&mut self, event: &Event) {
        self.now += SignedDuration::from_secs(1);
        match event {
            Event::Scale(replicas) => self.set.replicas = *replicas,
            Event::Edit => self.set.revision.push('x'),
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
                    if let Some(record) = self.records.get_mut(&name) {
                        record.jobs = 0;
                        record.down = true;
                    }
                }
            }
            Event::SlurmSilent => self.seen = None,
            Event::Pause(paused) => self.set.paused = *paused,
            Event::Switch(mode) => self.set.mode = *mode,
            Event::Settle => self.settle(),
            Event::Act { .. } => {}
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

    fn settle(&mut self) {
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
            pod.ready_since = Some(now);
            let record = self.records.entry(pod.node.0.clone()).or_default();
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

    /// Does what the plan says, as the doing side does it, and checks what may never happen.
    fn acts(&mut self, killed_after: Option<usize>) -> Plan {
        let observed = self.observed();
        let plan = plan(&observed);
        check(&observed, &plan);
        let mut steps = plan.steps.clone();
        steps.sort_by_key(phase);
        for step in steps.iter().take(killed_after.unwrap_or(usize::MAX)) {
            self.carry_out(step);
        }
        plan
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
            Step::Intend { pod, intent } => self.on_pod(&pod.name, |pod| pod.intent = Some(intent.clone())),
            Step::Forget { pod } => self.on_pod(&pod.name, |pod| pod.intent = None),
            Step::Protect { pod, protected } => self.on_pod(&pod.name, |pod| pod.protected = *protected),
            Step::Drain { node, reason } => self.on_record(node, |record| {
                record.drain = true;
                record.reason.clone_from(reason);
            }),
            // The last look: somebody may have made the drain theirs since it was read.
            Step::Undrain { node } => self.on_record(node, |record| {
                record.drain &= !record.reason.starts_with(REASON_PREFIX);
            }),
            Step::Deadline { pod, at } => self.on_pod(&pod.name, |pod| pod.deadline = *at),
            Step::Adopt { pod } => self.on_pod(&pod.name, |pod| pod.orphan = false),
            Step::OwnClaim { .. } | Step::Topology { .. } | Step::PlaceNode { .. } | Step::SetFeatures { .. } => {}
            Step::Conditions { pod, set, drop } => {
                let now = self.now;
                self.on_pod(&pod.name, |pod| {
                    pod.conditions.retain(|kind, _| !drop.contains(kind));
                    pod.conditions
                        .extend(set.iter().map(|(k, m)| (k.clone(), (m.clone(), Some(now)))));
                });
            }
            Step::EndJobs { .. } => panic!("nobody wrote that jobs may be ended"),
            Step::Resume { node } => self.on_record(node, |record| {
                record.down &= !record.reason.starts_with(REASON_PREFIX);
            }),
            Step::Discard { pod } => self.remove(&pod.name, &pod.uid, false),
            // The last look before the deletion.
            Step::Replace { pod, node } => {
                let drained = self
                    .records
                    .get(&node.0)
                    .is_none_or(|r| r.read(self.now).drained());
                if drained {
                    self.remove(&pod.name, &pod.uid, false);
                }
            }
            // Slurm refuses to forget a node with a job on it.
            Step::Retire { pod, node } => {
                let busy = self.records.get(&node.0).is_some_and(|record| record.jobs > 0);
                if !busy {
                    self.records.remove(&node.0);
                    self.remove(&pod.name, &pod.uid, true);
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
        born.ready_since = None;
        born.created = self.now;
        self.pods.insert(born.name.clone(), born);
    }

    fn on_pod(&mut self, name: &str, change: impl FnOnce(&mut PodFacts)) {
        if let Some(pod) = self.pods.get_mut(name) {
            change(pod);
        }
    }

    fn on_record(&mut self, node: &NodeName, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.records.get_mut(&node.0) {
            change(record);
        }
    }

    fn remove(&mut self, name: &str, uid: &str, _record_gone: bool) {
        let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == uid) else {
            return;
        };
        let node = pod.node.0.clone();
        if pod.phase != Phase::Ended && pod.started {
            // The promise: no job is killed by a change that we make.
            self.lost += self.records.get(&node).map_or(0, |record| record.jobs);
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
        Step::Discard { .. } | Step::Replace { .. } | Step::Retire { .. } => 2,
        Step::Create { .. } | Step::CreateOn { .. } => 3,
    }
}

fn check(observed: &Observed, plan: &Plan) {
    let destructive: Vec<&str> = plan
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Discard { pod } | Step::Replace { pod, .. } | Step::Retire { pod, .. } => {
                Some(pod.name.as_str())
            }
            _ => None,
        })
        .collect();
    for step in &plan.steps {
        if let Step::Undrain { node } | Step::Resume { node } = step {
            assert!(
                observed.slurm.node(node).unwrap().reason_is_ours(),
                "the drain of {node} is not ours to undo"
            );
        }
    }
    if observed.set.paused {
        assert_eq!(plan.steps, [], "paused means hands off");
    }
    for name in &destructive {
        let pod = observed.pods.iter().find(|pod| pod.name == *name).unwrap();
        let over = pod.phase == Phase::Ended || !pod.started;
        let node = observed.slurm.node(&pod.node);
        let proven = observed.slurm.is_known() && node.is_none_or(SlurmNode::drained);
        assert!(over || proven, "{name} was to go without proof");
    }
    // Budget: what is available and is told to go in this plan, on top of what is out already.
    let max_unavailable = match observed.set.strategy {
        Strategy::Rolling { max_unavailable, .. } => usize::try_from(max_unavailable.max(1)).unwrap(),
        Strategy::OnDelete => 1,
    };
    let available = |pod: &&PodFacts| {
        let usable = match &observed.slurm {
            Slurm::Unknown { .. } => true,
            Slurm::Known { nodes, .. } => nodes.get(&pod.node).is_some_and(SlurmNode::usable),
        };
        pod.phase == Phase::Running
            && pod.ready_since.is_some()
            && usable
            && pod.intent.is_none()
            && !pod.terminating
    };
    let taken = plan.steps.iter().filter(|step| match step {
        Step::Intend {
            pod,
            intent: Intent { cause, .. },
        } => {
            use crate::nodeset::facts::Cause;
            let budgeted = matches!(cause, Cause::Rollout | Cause::ModeSwitch | Cause::Unregistered);
            budgeted
                && observed
                    .pods
                    .iter()
                    .filter(available)
                    .any(|facts| facts.name == pod.name)
        }
        _ => false,
    });
    let taken = taken.count();
    let desired = observed.desired();
    let out = desired.saturating_sub(observed.pods.iter().filter(available).count());
    assert!(
        taken == 0 || out + taken <= max_unavailable,
        "budget exceeded: {out} + {taken} > {max_unavailable}"
    );

    let mut ordinals = BTreeSet::new();
    for pod in &observed.pods {
        ordinals.extend(pod.ordinal);
    }
    for step in &plan.steps {
        if let Step::Create { ordinal, .. } = step {
            assert!(ordinals.insert(*ordinal), "ordinal {ordinal} twice");
        }
    }
    let mut shuffled = observed.clone();
    shuffled.pods.reverse();
    assert_eq!(
        super::plan(&shuffled),
        *plan,
        "the order of the pods changed the plan"
    );
}

proptest! {
    // PROPTEST_CASES=10000 for a longer search.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(500), ..ProptestConfig::default() })]

    /// No job is lost, whatever happens and wherever the operator is killed.
    #[test]
    fn no_job_is_lost_by_what_we_do(events in events()) {
        let mut world = World::new();
        for event in &events {
            world.happens(event);
            if let Event::Act { killed_after } = event {
                world.acts(*killed_after);
            }
            prop_assert_eq!(world.lost, 0, "after {:?}", event);
        }
    }

    /// When people and jobs leave it alone, it comes to rest with what was asked for, and then does nothing.
    #[test]
    fn it_converges_and_then_rests(events in events()) {
        let mut world = World::new();
        for event in &events {
            world.happens(event);
            if let Event::Act { killed_after } = event {
                world.acts(*killed_after);
            }
        }
        world.set.paused = false;
        for machine in world.machines.values_mut() {
            *machine = MachineFacts { hostname: machine.hostname.clone(), ..MachineFacts::default() };
        }
        for record in world.records.values_mut() {
            record.jobs = 0;
            if record.reason == ADMIN {
                record.drain = false;
                record.down = false;
            }
        }
        for pod in world.pods.values_mut() {
            pod.cordoned = false;
        }
        let mut rested = false;
        for _ in 0..60 {
            world.now += SignedDuration::from_mins(6);
            world.settle();
            if world.acts(None).steps.is_empty() {
                rested = true;
                break;
            }
        }
        prop_assert!(rested, "still busy: {:#?}", plan(&world.observed()));
        let wanted = match world.set.mode {
            ScalingMode::StatefulSet => usize::try_from(world.set.replicas).unwrap(),
            ScalingMode::DaemonSet => 4,
        };
        prop_assert_eq!(world.pods.len(), wanted);
        for pod in world.pods.values() {
            prop_assert_eq!(&pod.revision, &world.set.revision);
            prop_assert_eq!(pod.mode, world.set.mode);
            let record = world.records.get(&pod.node.0).unwrap();
            prop_assert!(!record.drain && !record.down, "{} is out of service: {:?}", pod.name, record);
            prop_assert!(pod.protected);
        }
        prop_assert_eq!(world.set.leaving, Leaving::No);
    }
}
