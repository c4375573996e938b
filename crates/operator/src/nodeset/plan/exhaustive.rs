//! Tests how workers are removed and replaced, in *every* order of events at small sizes.
//!
//! A breadth-first search over the same model as the random walk. `plan` is a pure function of values, so the search
//! needs no more than a set of visited states; a model-checking crate would need the same model. Within the few seconds
//! of a walk, times are compared but durations are never measured, so states that differ only in elapsed time are
//! treated as one.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use jiff::Timestamp;
use keelson_api::nodeset::DrainTimeoutAction;

use super::{
    model::{Cascade, Event, Unseen, World},
    tests::at,
};
use crate::nodeset::facts::{Leaving, Start, Step};

/// Tries every sequence of up to `depth` events and checks that no job is lost. Fails if it visits too few states,
/// because it would then prove nothing.
fn explore(start: &World, events: &[Event], depth: usize, at_least: usize) {
    let mut seen = HashSet::from([canonical(start)]);
    let mut edge = vec![(start.clone(), vec![])];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (world, path) in &edge {
            for event in events {
                let mut after = world.clone();
                after.happens(event);
                let path: Vec<&Event> = path.iter().copied().chain([event]).collect();
                assert_eq!(after.lost, 0, "a job was lost by {path:?}");
                if seen.insert(canonical(&after)) {
                    next.push((after, path));
                }
            }
        }
        edge = next;
    }
    assert!(seen.len() > at_least, "the search saw only {} states", seen.len());
}

/// Returns the state as text, with each time replaced by its position in the order of times.
fn canonical(world: &World) -> String {
    let mut world = world.clone();
    for pod in world.pods.values_mut() {
        // Only whether the pod ever had a condition matters, not which one.
        let shown = pod.conditions.pop_first().map(|_| Default::default());
        pod.conditions = shown.into_iter().collect();
        pod.uid = String::new();
    }
    let mut instants: BTreeSet<Timestamp> = BTreeSet::new();
    let pods = world.pods.values();
    for pod in pods {
        instants.insert(pod.created);
        instants.extend(pod.ready_since);
        instants.extend(pod.intent.as_ref().map(|intent| intent.since));
        instants.extend(pod.registered_before);
    }
    instants.extend(world.records.values().filter_map(|record| record.registered));
    for node in world.seen.iter().flat_map(|seen| seen.values()) {
        instants.insert(node.read_at);
        instants.extend(node.registered);
    }
    let order: Vec<Timestamp> = instants.into_iter().collect();
    let place =
        |instant: Timestamp| at(i64::try_from(order.partition_point(|known| *known < instant)).unwrap());
    for pod in world.pods.values_mut() {
        pod.created = place(pod.created);
        pod.ready_since = pod.ready_since.map(place);
        pod.registered_before = pod.registered_before.map(place);
        if let Some(intent) = &mut pod.intent {
            intent.since = place(intent.since);
        }
    }
    for record in world.records.values_mut() {
        record.registered = record.registered.map(place);
    }
    for node in world.seen.iter_mut().flat_map(|seen| seen.values_mut()) {
        node.read_at = place(node.read_at);
        node.registered = node.registered.map(place);
    }
    for record in world.records.values_mut() {
        // The task number does not matter.
        record.jobs.iter_mut().for_each(|job| job.task = 0);
    }
    let World {
        set,
        pods,
        records,
        kube_nodes,
        seen,
        silent,
        jobs_fail,
        forgotten,
        unseen,
        late,
        ..
    } = &world;
    let unseen: Vec<_> = unseen.values().collect();
    format!(
        "{set:?} {pods:?} {records:?} {forgotten:?} {kube_nodes:?} {seen:?} {silent} {jobs_fail} {unseen:?} {late:?}"
    )
}

/// Returns a world with two workers in service.
pub fn at_work() -> World {
    let mut world = World::new();
    world.kube_nodes.clear();
    world.set.replicas = 2;
    for _ in 0..3 {
        world.happens(&Event::Act { killed_after: None });
        world.happens(&Event::Settle);
    }
    assert_eq!(world.records.len(), 2);
    world
}

const ACT: Event = Event::Act { killed_after: None };
const KILLED: Event = Event::Act {
    killed_after: Some(1),
};

/// Returns the search depth: `KEELSON_SEARCH_DEPTH`, or else `standard`.
fn depth(standard: usize) -> usize {
    let asked = std::env::var("KEELSON_SEARCH_DEPTH");
    asked.ok().and_then(|text| text.parse().ok()).unwrap_or(standard)
}

#[test]
fn a_worker_leaves_without_a_job_in_every_order_of_events() {
    let events = [
        Event::Scale(1),
        Event::Scale(2),
        Event::JobStarts(0),
        Event::JobStarts(1),
        Event::JobsEnd(1),
        Event::Settle,
        Event::SlurmSilent,
        Event::SlurmForgets,
        Event::LookOnly,
        Event::ActLate,
        ACT,
        KILLED,
    ];
    explore(&at_work(), &events, depth(6), 1_000);
}

#[test]
fn a_rollout_and_its_rollback_lose_no_job_in_every_order_of_events() {
    let events = [
        Event::Edit,
        Event::JobStarts(0),
        Event::JobStarts(1),
        Event::JobsEnd(0),
        Event::AdminDrain(1),
        Event::AdminUndrain(1),
        Event::Settle,
        Event::SlurmSilent,
        Event::SlurmForgets,
        Event::LookOnly,
        Event::ActLate,
        ACT,
        KILLED,
    ];
    explore(&at_work(), &events, depth(6), 1_000);
}

#[test]
fn a_worker_that_starts_again_and_again_loses_no_job_in_every_order_of_events() {
    let events = [
        Event::Scale(0),
        Event::Scale(2),
        Event::Restarts(0),
        Event::Restarts(1),
        Event::JobStarts(0),
        Event::Settle,
        Event::SlurmForgets,
        Event::SlurmLosesState,
        Event::LookOnly,
        Event::ActLate,
        ACT,
        KILLED,
    ];
    let mut unborn = at_work();
    unborn.records.clear();
    unborn.seen = Some(BTreeMap::new());
    for pod in unborn.pods.values_mut() {
        pod.phase = crate::nodeset::facts::Phase::Pending;
        pod.start = Start::Never;
        pod.running = false;
        pod.ready_since = None;
        pod.conditions = BTreeMap::new();
    }
    for start in [at_work(), unborn] {
        explore(&start, &events, depth(6), 1_000);
    }
}

#[test]
fn a_removal_that_comes_late_is_stopped_by_what_slurm_says_then() {
    let events = [
        Event::Scale(2),
        Event::AdminUndrain(0),
        Event::AdminUndrain(1),
        Event::JobStarts(0),
        Event::JobStarts(1),
        Event::Settle,
        Event::ActLate,
        ACT,
        KILLED,
    ];
    // Scaling to zero removes several workers, whose records are deleted in one call.
    for (change, leavers) in [(Event::Scale(0), 2), (Event::Scale(1), 1), (Event::Edit, 1)] {
        let mut start = at_work();
        for event in [change, ACT, Event::Settle, Event::LookOnly] {
            start.happens(&event);
        }
        let goes = |step: &&Step| matches!(step, Step::Retire { .. } | Step::Replace { .. });
        let late = start.late.as_ref().map(|(plan, _)| &plan.steps);
        assert_eq!(
            late.into_iter().flatten().filter(goes).count(),
            leavers,
            "{:?}",
            start.late
        );
        explore(&start, &events, depth(4), 100);
    }
}

#[test]
fn a_suspended_or_hidden_job_is_never_lost_in_every_order_of_events() {
    let events = [
        Event::Scale(1),
        Event::Edit,
        Event::JobStarts(0),
        Event::JobStarts(1),
        Event::Suspend(0),
        Event::Suspend(1),
        Event::JobsFail,
        Event::Settle,
        Event::LookOnly,
        Event::ActLate,
        ACT,
        KILLED,
    ];
    explore(&at_work(), &events, depth(6), 1_000);
}

#[test]
fn a_worker_that_starts_unseen_is_asked_for_in_every_order_of_events() {
    let events = [
        Event::Scale(1),
        Event::Scale(3),
        Event::StartsUnseen(2, Unseen::Bound),
        Event::StartsUnseen(2, Unseen::Started),
        Event::JobStarts(2),
        Event::JobStarts(0),
        Event::Settle,
        Event::SlurmSilent,
        Event::LookOnly,
        Event::ActLate,
        ACT,
        KILLED,
    ];
    explore(&at_work(), &events, depth(6), 1_000);
}

#[test]
fn a_deletion_in_any_mode_loses_no_job_in_every_order_of_events() {
    let events = [
        Event::Delete(Cascade::Background),
        Event::Delete(Cascade::Foreground),
        Event::Delete(Cascade::Orphan),
        Event::Recreate,
        Event::JobStarts(0),
        Event::JobStarts(1),
        Event::JobsEnd(0),
        Event::OnTimeout(DrainTimeoutAction::Requeue),
        Event::Settle,
        Event::SlurmSilent,
        ACT,
        KILLED,
    ];
    explore(&at_work(), &events, depth(6), 1_000);
}

#[test]
fn workers_that_are_left_alone_stay_as_they_are() {
    let mut world = at_work();
    for event in [
        Event::JobStarts(0),
        Event::Delete(Cascade::Orphan),
        ACT,
        Event::Settle,
        ACT,
    ] {
        world.happens(&event);
    }
    assert_eq!(world.set.leaving, Leaving::Orphan);
    assert_eq!(world.pods.len(), 2);
    assert!(world.records.values().all(|record| !record.drain));
    world.happens(&Event::Recreate);
    world.happens(&ACT);
    assert!(world.pods.values().all(|pod| !pod.orphan && pod.intent.is_none()));
}
