//! Single decisions as tables, and a model of Slurm and Kubernetes in which every pass runs in an operator that knows
//! nothing of earlier passes, as if it restarted at every step.

use jiff::Timestamp;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;
use slurm_rest::node::decode_nodes;

use super::*;

const OURS: &str = QUIESCE_REASON;

fn node(states: &[&str], reason: &str, registered: bool) -> SlurmNode {
    let start = if registered { 7 } else { 0 };
    let json = json!({ "nodes": [{ "name": "n", "state": states, "reason": reason,
        "slurmd_start_time": { "set": registered, "number": start } }] });
    let list = decode_nodes(json.to_string().as_bytes()).unwrap();
    SlurmNode::from_rest(&list.items[0], Timestamp::UNIX_EPOCH)
}

fn full(nodes: &[(&str, SlurmNode)], jobs: usize) -> Reading {
    let nodes = nodes
        .iter()
        .map(|(name, node)| (NodeName::from(*name), node.clone()));
    Reading::Full {
        nodes: nodes.collect(),
        jobs,
    }
}

/// A change that waits.
fn changed(recorded: Option<&str>, slurm: Reading) -> Facts {
    Facts {
        change: Some("new".into()),
        is_taking_in: false,
        is_down: false,
        recorded: recorded.map(Record::parse),
        starting: BTreeSet::new(),
        slurm,
    }
}

/// A change that slurmctld was given.
fn switched(is_taking_in: bool, slurm: Reading) -> Facts {
    Facts {
        change: None,
        is_taking_in,
        ..changed(
            Some(if is_taking_in {
                "switched:new"
            } else {
                QUIESCE_OVER
            }),
            slurm,
        )
    }
}

fn record() -> Step {
    Step::Record("new".into())
}

fn names(nodes: &[&str]) -> Vec<NodeName> {
    nodes.iter().copied().map(NodeName::from).collect()
}

fn undrain(nodes: &[&str]) -> Step {
    Step::Restore {
        undrain: names(nodes),
        resume: vec![],
    }
}

#[rstest]
#[case::slurm_is_silent(None, Reading::Unknown("why".into()), Step::Wait(Wait::Silence("why".into())))]
#[case::jobs_run(None, Reading::Jobs(2), Step::Wait(Wait::Jobs(2)))]
#[case::the_intent_comes_first(None, Reading::Jobs(0), record())]
#[case::a_drain_is_there_without_the_intent(None, full(&[("a", node(&["IDLE", "DRAIN"], OURS, true))], 0), record())]
#[case::the_intent_was_for_another_change(Some("third"), full(&[("a", node(&["IDLE"], "", true))], 0), record())]
#[case::undrained_nodes(
    Some("new"),
    full(&[("a", node(&["IDLE"], "", true)), ("b", node(&["IDLE", "DRAIN"], OURS, true)), ("c", node(&["UNKNOWN"], "", false))], 0),
    Step::Drain(names(&["a", "c"]))
)]
#[case::what_others_took_out_of_service_is_left_alone(
    Some("new"),
    full(&[
        ("a", node(&["IDLE", "DRAIN"], "disk", true)),
        ("b", node(&["DOWN"], "fan", false)),
        ("c", node(&["IDLE", "FAIL"], "cable", true)),
        ("d", node(&["FUTURE"], "", false)),
        ("e", node(&["IDLE", "DRAIN"], "slurm-operator: Pod was cordoned", true)),
    ], 0),
    Step::Switch("new".into())
)]
#[case::an_undrain_is_under_way(Some("new"), full(&[("a", node(&["IDLE", "DRAIN", "UNDRAIN"], OURS, true))], 0), Step::Drain(names(&["a"])))]
#[case::all_are_drained(Some("new"), full(&[("a", node(&["IDLE", "DRAIN"], OURS, true))], 0), Step::Switch("new".into()))]
#[case::no_nodes(Some("new"), full(&[], 0), Step::Switch("new".into()))]
#[case::one_that_slurm_gave_up_may_come_back(Some("new"), full(&[("a", node(&["DOWN"], "Not responding", true))], 0), Step::Drain(names(&["a"])))]
#[case::a_job_was_faster(
    Some("new"),
    full(&[
        ("a", node(&["ALLOCATED", "DRAIN"], OURS, true)),
        ("b", node(&["IDLE", "DRAIN"], OURS, false)),
        ("c", node(&["IDLE", "DRAIN"], "disk", true)),
    ], 1),
    undrain(&["a", "b"])
)]
#[case::given_back(Some("new"), full(&[("a", node(&["ALLOCATED"], "", true))], 1), Step::Forget)]
#[case::and_forgotten(None, full(&[("a", node(&["ALLOCATED"], "", true))], 1), Step::Wait(Wait::Jobs(1)))]
#[case::what_went_down_is_no_reason_to_stay(None, full(&[("a", node(&["DOWN", "DRAIN"], OURS, false))], 1), Step::Wait(Wait::Jobs(1)))]
fn before_the_switch(#[case] recorded: Option<&str>, #[case] slurm: Reading, #[case] expected: Step) {
    assert_eq!(plan(&changed(recorded, slurm)), expected);
}

#[rstest]
#[case::slurm_is_silent(true, Reading::Unknown("why".into()), Step::Wait(Wait::Silence("why".into())))]
#[case::the_old_slurmctld_is_still_there(true, full(&[("a", node(&["IDLE", "DRAIN"], OURS, true))], 0), Step::Wait(Wait::TakingIn))]
#[case::a_node_registered_with_the_old_slurmctld(true, full(&[("a", node(&["IDLE"], "", true))], 0), Step::Drain(names(&["a"])))]
#[case::not_back_yet(false, full(&[("a", node(&["IDLE", "DRAIN"], OURS, false))], 0), Step::Wait(Wait::Registration(names(&["a"]))))]
#[case::back(
    false,
    full(&[
        ("a", node(&["IDLE", "DRAIN"], OURS, true)),
        ("b", node(&["IDLE", "DRAIN"], OURS, false)),
        ("c", node(&["IDLE", "DRAIN"], "disk", true)),
    ], 0),
    undrain(&["a"])
)]
#[case::jobs_run_elsewhere(false, full(&[("a", node(&["IDLE", "DRAIN"], OURS, true)), ("b", node(&["MIXED"], "", true))], 1), undrain(&["a"]))]
#[case::was_down_and_is_back(
    false,
    full(&[("a", node(&["DOWN", "DRAIN"], OURS, true))], 0),
    Step::Restore { undrain: vec![], resume: names(&["a"]) }
)]
#[case::one_will_not_come_back(false, full(&[("a", node(&["DOWN", "DRAIN"], OURS, false))], 0), Step::Forget)]
#[case::an_old_reason_without_a_drain(false, full(&[("a", node(&["DOWN"], OURS, true))], 0), Step::Forget)]
#[case::all_are_back(false, full(&[("a", node(&["IDLE"], "", true)), ("c", node(&["IDLE", "DRAIN"], "disk", true))], 0), Step::Forget)]
fn after_the_switch(#[case] is_taking_in: bool, #[case] slurm: Reading, #[case] expected: Step) {
    assert_eq!(plan(&switched(is_taking_in, slurm)), expected);
}

#[rstest]
#[case::creation_goes_on(Some("new"), full(&[("a", node(&["IDLE", "DRAIN"], OURS, true))], 0), Step::Open)]
#[case::with_drains(Some(QUIESCE_OVER), full(&[("a", node(&["IDLE", "DRAIN"], OURS, true))], 0), undrain(&["a"]))]
#[case::without(Some(QUIESCE_OVER), full(&[("a", node(&["IDLE"], "", true))], 0), Step::Forget)]
#[case::never_begun(None, Reading::Jobs(0), Step::Nothing)]
fn when_the_change_was_taken_back(
    #[case] recorded: Option<&str>,
    #[case] slurm: Reading,
    #[case] expected: Step,
) {
    let facts = Facts {
        change: None,
        ..changed(recorded, slurm)
    };
    assert_eq!(plan(&facts), expected);
}

#[rstest]
#[case::not_known_yet(&[], Step::Wait(Wait::Starting(names(&["b"]))))]
#[case::registered(&[("b", node(&["IDLE", "DRAIN"], OURS, true))], Step::Switch("new".into()))]
fn a_worker_that_is_starting_is_waited_for(#[case] nodes: &[(&str, SlurmNode)], #[case] expected: Step) {
    let facts = Facts {
        starting: names(&["b"]).into_iter().collect(),
        ..changed(Some("new"), full(nodes, 0))
    };
    assert_eq!(plan(&facts), expected);
}

/// Without the annotation, drains may be those of a switch, and the old slurmctld may still run.
#[test]
fn drains_that_nobody_wrote_down_are_undone_when_slurmctld_has_restarted() {
    let slurm = full(&[("a", node(&["IDLE", "DRAIN"], OURS, true))], 0);
    for (is_taking_in, expected) in [(true, Step::Wait(Wait::TakingIn)), (false, undrain(&["a"]))] {
        let facts = Facts {
            recorded: None,
            ..switched(is_taking_in, slurm.clone())
        };
        assert_eq!(plan(&facts), expected);
    }
}

/// A later configuration change that kills no job must not drain the nodes again.
#[test]
fn what_slurmctld_takes_in_afterwards_drains_nothing() {
    let back = full(
        &[
            ("a", node(&["IDLE"], "", true)),
            ("b", node(&["IDLE", "DRAIN"], OURS, true)),
        ],
        0,
    );
    let facts = Facts {
        is_taking_in: true,
        ..switched(false, back)
    };
    assert_eq!(plan(&facts), undrain(&["b"]));
}

/// A slurmctld that did not survive what it was given can be given something else: no job has started since the drains.
#[rstest]
#[case::it_was_given_that("switched:bad", true, Step::Switch("new".into()))]
#[case::it_may_serve("switched:bad", false, Step::Wait(Wait::Silence("why".into())))]
#[case::it_was_given_nothing("bad", true, Step::Wait(Wait::Silence("why".into())))]
fn a_slurmctld_that_does_not_start_can_be_repaired(
    #[case] recorded: &str,
    #[case] is_down: bool,
    #[case] expected: Step,
) {
    let facts = Facts {
        is_down,
        is_taking_in: true,
        ..changed(Some(recorded), Reading::Unknown("why".into()))
    };
    assert_eq!(plan(&facts), expected);
}

/// Even while the old slurmctld still answers: the next one may not survive, and must be repairable.
#[test]
fn what_slurmctld_may_have_been_given_stays_on_record() {
    let drained = full(&[("a", node(&["IDLE", "DRAIN"], OURS, true))], 0);
    assert_eq!(
        plan(&changed(Some("switched:bad"), drained)),
        Step::Switch("new".into())
    );
}

/// Nothing is drained for a change that waits for a worker anyway.
#[test]
fn a_worker_that_does_not_come_up_keeps_no_node_drained() {
    let facts = Facts {
        starting: names(&["b"]).into_iter().collect(),
        ..changed(None, Reading::Jobs(0))
    };
    assert_eq!(plan(&facts), Step::Wait(Wait::Starting(names(&["b"]))));
}

/// Recorded before the nodes are resumed: nothing may assume afterwards that no job has started.
#[test]
fn a_job_ends_the_belief_that_nothing_has_started() {
    let busy = full(&[("a", node(&["ALLOCATED", "DRAIN"], OURS, true))], 1);
    assert_eq!(plan(&changed(Some("switched:bad"), busy)), record());
}

/// Slurm does not power up a drained node, so it would never register.
#[test]
fn a_powered_down_node_is_brought_back_as_it_is() {
    let asleep = full(&[("a", node(&["IDLE", "POWERED_DOWN", "DRAIN"], OURS, false))], 0);
    assert_eq!(plan(&switched(false, asleep)), undrain(&["a"]));
}

#[rstest]
#[case("key-1.configuration-2", Record::Drained("key-1.configuration-2".into()))]
#[case("switched:key-1", Record::Switched("key-1".into()))]
#[case("in-use", Record::Over)]
fn a_record_is_read_as_it_was_written(#[case] text: &str, #[case] record: Record) {
    assert_eq!(Record::parse(text), record);
    assert_eq!(record.to_string(), text);
}

const NODES: usize = 3;

#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
struct ModelNode {
    /// Whether Slurm has a record of it.
    known: bool,
    drain: Option<&'static str>,
    down: bool,
    registered: bool,
    job: bool,
}

impl ModelNode {
    fn takes_jobs(&self) -> bool {
        self.drain.is_none() && !self.down && self.registered && !self.job
    }

    fn reading(&self) -> SlurmNode {
        let base = match self {
            Self { down: true, .. } => "DOWN",
            Self { job: true, .. } => "ALLOCATED",
            _ => "IDLE",
        };
        let mut states = vec![base];
        states.extend(self.drain.map(|_| "DRAIN"));
        let gave_up = if self.down { "Not responding" } else { "" };
        node(&states, self.drain.unwrap_or(gave_up), self.registered)
    }
}

#[derive(Debug, Clone)]
struct World {
    nodes: Vec<ModelNode>,
    /// What slurmctld should run with: a key, or a configuration that no job survives.
    wanted: u8,
    /// What it was given.
    given: u8,
    /// What it runs with.
    runs_with: u8,
    /// Whether it has refused what it was given.
    refused: bool,
    /// Whether it has not answered to another change yet, one that kills no job.
    other_change: bool,
    recorded: Option<Record>,
    silent: bool,
}

/// Events besides the operator's own work.
#[derive(Debug, Clone, Copy)]
enum Event {
    Start(usize),
    End(usize),
    /// A person's drain, or its end.
    PersonDrains(usize),
    PersonResumes(usize),
    Wants(u8),
    SlurmctldIsBack,
    /// slurmctld refuses a configuration and keeps the previous one.
    SlurmctldRefuses,
    OtherChange(bool),
    WorkerIsBack(usize),
    /// A new worker of that name is created, and has not registered yet.
    WorkerIsMade(usize),
    GoesDown(usize),
    Silence(bool),
    AnnotationIsLost,
}

impl World {
    fn new() -> Self {
        let idle = ModelNode {
            known: true,
            registered: true,
            ..ModelNode::default()
        };
        Self {
            nodes: vec![idle; NODES],
            wanted: 0,
            given: 0,
            runs_with: 0,
            refused: false,
            other_change: false,
            recorded: None,
            silent: false,
        }
    }

    fn is_switching(&self) -> bool {
        self.runs_with != self.given && !self.refused
    }

    fn creates(&self) -> bool {
        !self.is_switching()
            && self
                .recorded
                .as_ref()
                .is_none_or(|recorded| *recorded == Record::Over)
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Start(i) if self.nodes[i].takes_jobs() => self.nodes[i].job = true,
            Event::End(i) => self.nodes[i].job = false,
            Event::PersonDrains(i) if self.nodes[i].known && self.nodes[i].drain.is_none() => {
                self.nodes[i].drain = Some("disk");
            }
            // A person who resumes a node during the switch cannot be protected.
            Event::PersonResumes(i) if !self.is_switching() && self.nodes[i].drain == Some("disk") => {
                self.nodes[i].drain = None;
            }
            Event::Wants(wanted) => self.wanted = wanted,
            Event::SlurmctldIsBack if self.is_switching() => {
                assert!(self.nodes.iter().all(|node| !node.job), "a job is lost: {self:?}");
                self.runs_with = self.given;
                self.nodes.iter_mut().for_each(|node| node.registered = false);
            }
            Event::SlurmctldRefuses if self.is_switching() => self.refused = true,
            Event::OtherChange(on) => self.other_change = on,
            // A slurmd with the old key reaches the old slurmctld as long as that runs.
            Event::WorkerIsBack(i) => {
                self.nodes[i].known = true;
                self.nodes[i].registered = true;
                // As with ReturnToService=2, except for drained nodes.
                self.nodes[i].down &= self.nodes[i].drain.is_some();
            }
            // Worker creation is blocked from the record on until the new key is in use. A person who removes the
            // record while slurmctld restarts cannot be protected.
            Event::WorkerIsMade(i)
                if self.creates() && self.nodes[i].drain.is_none() && !self.nodes[i].job =>
            {
                self.nodes[i] = ModelNode::default();
            }
            Event::GoesDown(i) if self.nodes[i].known && !self.nodes[i].job => self.nodes[i].down = true,
            Event::Silence(silent) => self.silent = silent,
            Event::AnnotationIsLost => self.recorded = None,
            Event::Start(_)
            | Event::PersonDrains(_)
            | Event::PersonResumes(_)
            | Event::SlurmctldIsBack
            | Event::SlurmctldRefuses
            | Event::WorkerIsMade(_)
            | Event::GoesDown(_) => {}
        }
    }

    /// Runs one pass, with one event between the two readings and another before the step.
    fn pass(&mut self, meanwhile: [Event; 2]) -> Step {
        let name = |change: u8| change.to_string();
        let names_of = |is: fn(&ModelNode) -> bool| -> BTreeSet<NodeName> {
            let found = self.nodes.iter().enumerate().filter(|(_, node)| is(node));
            found.map(|(i, _)| NodeName(i.to_string())).collect()
        };
        // A worker that never registered has no record.
        let known = self.nodes.iter().enumerate().filter(|(_, node)| node.known);
        let nodes: BTreeMap<NodeName, SlurmNode> = known
            .map(|(i, node)| (NodeName(i.to_string()), node.reading()))
            .collect();
        let starting = names_of(|node| !node.known);
        let begun = self.recorded.is_some() || nodes.values().any(is_due);
        self.happens(meanwhile[0]);
        let jobs = self.nodes.iter().filter(|node| node.job).count();
        if self.refused && self.wanted == self.runs_with {
            // Going back to what it runs with is no change.
            self.given = self.wanted;
            self.refused = false;
        }
        let facts = Facts {
            change: (self.wanted != self.given).then(|| name(self.wanted)),
            is_taking_in: self.is_switching() || self.other_change,
            is_down: self.is_switching() && self.silent,
            recorded: self.recorded.clone(),
            starting,
            slurm: match (self.silent, begun) {
                (true, _) => Reading::Unknown("silent".into()),
                (false, true) => Reading::Full { nodes, jobs },
                (false, false) => Reading::Jobs(jobs),
            },
        };
        self.happens(meanwhile[1]);
        let step = plan(&facts);
        self.take(&step);
        step
    }

    fn take(&mut self, step: &Step) {
        let index = |name: &NodeName| name.0.parse::<usize>().unwrap();
        match step {
            Step::Nothing | Step::Wait(_) => {}
            Step::Record(change) => self.recorded = Some(Record::Drained(change.clone())),
            Step::Open => self.recorded = Some(Record::Over),
            Step::Forget => self.recorded = None,
            Step::Drain(names) => {
                assert!(self.recorded.is_some(), "drained before that was written down");
                for name in names {
                    self.nodes[index(name)].drain = Some(OURS);
                }
            }
            Step::Restore { undrain, resume } => {
                for name in undrain.iter().chain(resume) {
                    let node = &mut self.nodes[index(name)];
                    assert_eq!(node.drain, Some(OURS), "brought back what is not ours");
                    node.drain = None;
                    node.down &= !resume.contains(name);
                }
            }
            Step::Switch(change) => {
                assert!(
                    self.nodes.iter().all(|node| !node.job),
                    "switched while a job runs: {self:?}"
                );
                assert!(self.recorded.is_some(), "switched before that was written down");
                self.recorded = Some(Record::Switched(change.clone()));
                self.given = self.wanted;
                self.refused = false;
            }
        }
    }

    /// Makes everything happen that the operator waits for.
    fn settle(&mut self) {
        self.silent = false;
        self.other_change = false;
        for _ in 0..20 {
            for i in 0..NODES {
                self.nodes[i].job = false;
            }
            self.happens(Event::SlurmctldIsBack);
            for i in 0..NODES {
                self.happens(Event::WorkerIsBack(i));
            }
            let none = Event::Silence(false);
            if self.pass([none; 2]) == Step::Nothing {
                return;
            }
        }
        panic!("it comes to no end: {self:?}");
    }
}

fn job_events() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..NODES).prop_map(Event::Start),
        1 => (0..NODES).prop_map(Event::End),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => job_events(),
        2 => (0..NODES).prop_map(Event::End),
        1 => (0..NODES).prop_map(Event::PersonDrains),
        1 => (0..NODES).prop_map(Event::PersonResumes),
        1 => (0_u8..3).prop_map(Event::Wants),
        2 => Just(Event::SlurmctldIsBack),
        1 => Just(Event::SlurmctldRefuses),
        1 => any::<bool>().prop_map(Event::OtherChange),
        2 => (0..NODES).prop_map(Event::WorkerIsBack),
        1 => (0..NODES).prop_map(Event::WorkerIsMade),
        1 => (0..NODES).prop_map(Event::GoesDown),
        1 => any::<bool>().prop_map(Event::Silence),
        1 => Just(Event::AnnotationIsLost),
    ]
}

proptest! {
    #[test]
    fn no_job_is_lost_and_only_ours_is_undone(
        walk in prop::collection::vec((events(), job_events(), job_events(), any::<bool>()), 1..60)
    ) {
        let mut world = World::new();
        for (event, first, second, passes) in walk {
            world.happens(event);
            if passes {
                let persons = |nodes: &[ModelNode]| -> Vec<bool> {
                    nodes.iter().map(|node| node.drain == Some("disk")).collect()
                };
                let theirs = persons(&world.nodes);
                world.pass([first, second]);
                prop_assert_eq!(persons(&world.nodes), theirs);
            }
        }
        let theirs: Vec<bool> = world.nodes.iter().map(|node| node.drain == Some("disk")).collect();
        world.settle();
        prop_assert_eq!(world.given, world.wanted);
        prop_assert_eq!(world.recorded, None);
        for (node, theirs) in world.nodes.iter().zip(theirs) {
            prop_assert_eq!(node.drain, theirs.then_some("disk"));
        }
    }
}

/// The whole sequence of steps.
#[test]
fn a_change_takes_these_steps() {
    let mut world = World::new();
    world.nodes[2].drain = Some("disk");
    world.happens(Event::Wants(1));
    world.happens(Event::Start(0));
    let none = [Event::Silence(false); 2];
    assert_eq!(world.pass(none), Step::Wait(Wait::Jobs(1)));
    world.happens(Event::End(0));
    assert_eq!(world.pass(none), Step::Record("1".into()));
    // One job starts between the readings and the drain.
    let late = [Event::Silence(false), Event::Start(1)];
    assert_eq!(world.pass(late), Step::Drain(names(&["0", "1"])));
    assert_eq!(world.pass(none), undrain(&["0", "1"]));
    assert_eq!(world.pass(none), Step::Forget);
    assert_eq!(world.pass(none), Step::Wait(Wait::Jobs(1)));
    world.happens(Event::End(1));
    assert_eq!(world.pass(none), Step::Record("1".into()));
    assert_eq!(world.pass(none), Step::Drain(names(&["0", "1"])));
    assert_eq!(world.pass(none), Step::Switch("1".into()));
    assert_eq!(world.pass(none), Step::Wait(Wait::TakingIn));
    world.happens(Event::SlurmctldIsBack);
    assert_eq!(world.pass(none), Step::Open);
    assert_eq!(
        world.pass(none),
        Step::Wait(Wait::Registration(names(&["0", "1"])))
    );
    world.happens(Event::WorkerIsBack(1));
    assert_eq!(world.pass(none), undrain(&["1"]));
    world.happens(Event::WorkerIsBack(0));
    assert_eq!(world.pass(none), undrain(&["0"]));
    assert_eq!(world.pass(none), Step::Forget);
    assert_eq!(world.pass(none), Step::Nothing);
    assert_eq!(world.nodes[2].drain, Some("disk"));
}
