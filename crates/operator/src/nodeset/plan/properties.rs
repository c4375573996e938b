//! Tests the invariants in random orders of events: a random walk over the model, with `proptest-state-machine`.
//!
//! Failing cases are stored in `proptest-regressions/` and run first from then on.

use jiff::SignedDuration;
use keelson_api::nodeset::{DrainTimeoutAction, ScalingMode};
use proptest::{prelude::*, strategy::Strategy as Strategy_};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use super::{
    model::{ADMIN, Cascade, Event, Unseen, World},
    plan,
};
use crate::nodeset::facts::{Fit, KubeNodeFacts, Leaving};

fn event() -> impl Strategy_<Value = Event> {
    let index = 0_usize..6;
    prop_oneof![
        3 => (0_u32..6).prop_map(Event::Scale),
        2 => Just(Event::Edit),
        1 => (1_u32..4).prop_map(Event::Budget),
        1 => (index.clone(), any::<bool>()).prop_map(|(i, c)| Event::MachineCordon(i, c)),
        1 => (index.clone(), prop_oneof![Just(Fit::Run), Just(Fit::Stay), Just(Fit::No)])
            .prop_map(|(i, fit)| Event::MachineFits(i, fit)),
        1 => (index.clone(), any::<bool>()).prop_map(|(i, c)| Event::PodCordon(i, c)),
        1 => index.clone().prop_map(Event::AdminDrain),
        1 => index.clone().prop_map(Event::AdminUndrain),
        1 => (index.clone(), any::<bool>()).prop_map(|(i, wanted)| Event::Insist(i, wanted)),
        6 => index.clone().prop_map(Event::JobStarts),
        5 => index.clone().prop_map(Event::JobsEnd),
        2 => index.clone().prop_map(Event::Suspend),
        1 => prop_oneof![
            Just(DrainTimeoutAction::Wait), Just(DrainTimeoutAction::Requeue), Just(DrainTimeoutAction::Cancel)
        ].prop_map(Event::OnTimeout),
        1 => Just(Event::JobsFail),
        2 => (index.clone(), any::<bool>()).prop_map(|(i, silent)| Event::Blip(i, silent)),
        1 => index.clone().prop_map(Event::GivenUp),
        2 => (index.clone(), prop_oneof![Just(Unseen::Bound), Just(Unseen::Started)])
            .prop_map(|(i, unseen)| Event::StartsUnseen(i, unseen)),
        1 => (-40_i64..40).prop_map(Event::Clocks),
        1 => (index.clone(), index.clone()).prop_map(|(i, of)| Event::SameName(i, of)),
        1 => prop_oneof![Just(Cascade::Background), Just(Cascade::Foreground), Just(Cascade::Orphan)]
            .prop_map(Event::Delete),
        1 => Just(Event::Recreate),
        1 => index.clone().prop_map(Event::Crash),
        2 => index.prop_map(Event::Restarts),
        1 => Just(Event::SlurmLosesState),
        1 => Just(Event::SlurmSilent),
        1 => Just(Event::SlurmForgets),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => prop_oneof![Just(ScalingMode::StatefulSet), Just(ScalingMode::DaemonSet)].prop_map(Event::Switch),
        8 => Just(Event::Settle),
        10 => proptest::option::weighted(0.3, 0_usize..12).prop_map(|killed_after| Event::Act { killed_after }),
        2 => Just(Event::LookOnly),
        2 => Just(Event::ActLate),
    ]
}

/// Allows any event at any time; the model decides what effect it has.
#[derive(Debug, Clone)]
struct Anything;

impl ReferenceStateMachine for Anything {
    type State = ();
    type Transition = Event;

    fn init_state() -> BoxedStrategy<()> {
        Just(()).boxed()
    }

    fn transitions((): &()) -> BoxedStrategy<Event> {
        event().boxed()
    }

    fn apply((): (), _: &Event) {}
}

struct Engine;

impl StateMachineTest for Engine {
    type SystemUnderTest = World;
    type Reference = Anything;

    fn init_test((): &()) -> World {
        World::new()
    }

    fn apply(mut world: World, (): &(), event: Event) -> World {
        world.happens(&event);
        // No job is lost, whatever happens and whenever the operator is killed.
        assert_eq!(world.lost, 0, "after {event:?}");
        world
    }

    /// Checks that the system reaches the desired state and then makes no more changes, once users and jobs make none.
    fn teardown(mut world: World, (): ()) {
        calm(&mut world);
        if world.set.leaving == Leaving::Drain {
            let gone = (0..60).any(|_| {
                world.now += SignedDuration::from_mins(6);
                world.settle();
                world.acts(None);
                world.pods.is_empty()
            });
            assert!(
                gone,
                "workers of a deleted NodeSet stay: {:#?}",
                plan(&world.observed())
            );
        }
        world.set.leaving = Leaving::No;
        let rested = (0..60).any(|_| {
            world.now += SignedDuration::from_mins(6);
            world.settle();
            world.acts(None).steps.is_empty()
        });
        assert!(rested, "still busy: {:#?}", plan(&world.observed()));
        let wanted = match world.set.mode {
            ScalingMode::StatefulSet => usize::try_from(world.set.replicas).unwrap(),
            ScalingMode::DaemonSet => 4,
        };
        assert_eq!(world.pods.len(), wanted);
        for pod in world.pods.values() {
            assert_eq!(pod.revision, world.set.revision);
            assert_eq!(pod.mode, world.set.mode);
            let record = world.records.get(&pod.node.0).unwrap();
            assert!(
                !record.drain && !record.down,
                "{} is out of service: {record:?}",
                pod.name
            );
            assert!(pod.protected);
            assert!(
                !world.differs(&record.made_by) || world.unnoted.contains(&pod.node.0),
                "{} was never renewed: {record:?}",
                pod.name
            );
        }
        rests_while_a_cordon_stands(&mut world);
        for name in world.records.keys() {
            let served = world.pods.values().any(|pod| pod.node.0 == *name);
            assert!(served, "{name} is a ghost");
        }
    }
}

/// Checks that a cordoned worker loses its protection once, and that nothing more is written after that.
fn rests_while_a_cordon_stands(world: &mut World) {
    for pod in world.pods.values_mut() {
        pod.cordoned = true;
    }
    let rested = (0..8).any(|_| {
        world.now += SignedDuration::from_mins(6);
        world.settle();
        world.acts(None).steps.is_empty()
    });
    assert!(rested, "still busy with a cordon: {:#?}", plan(&world.observed()));
    assert!(world.pods.values().all(|pod| !pod.protected));
}

/// Ends all jobs and reverts the changes of users.
fn calm(world: &mut World) {
    world.late = None;
    world.set.on_drain_timeout = DrainTimeoutAction::Wait;
    world.set.paused = None;
    for kube_node in &mut world.kube_nodes {
        *kube_node.1 = KubeNodeFacts {
            hostname: kube_node.0.clone(),
            ..KubeNodeFacts::default()
        };
    }
    for record in world.records.values_mut() {
        record.jobs.clear();
        record.silent = false;
        record.wanted = false;
        if record.reason == ADMIN {
            record.drain = false;
            record.down = false;
        }
    }
    for pod in world.pods.values_mut() {
        pod.cordoned = false;
    }
}

/// Runs at least 500 walks; `PROPTEST_CASES` can raise the number.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig {
        cases: config.cases.max(500),
        ..config
    }
}

prop_state_machine! {
    #![proptest_config(config())]

    #[test]
    fn no_job_is_lost_and_all_comes_to_rest(sequential 1..60 => Engine);
}
