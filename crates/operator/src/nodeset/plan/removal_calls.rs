//! Tests the calls that remove workers and records: slow answers, no answers, and their number.

use std::time::Duration;

use super::{
    exhaustive::at_work,
    model::{Event, World},
};

const ACT: Event = Event::Act { killed_after: None };

/// slurmd registers again while Slurm's answer to the deletion of its record is on the way, and gets a job.
#[tokio::test(start_paused = true)]
async fn a_worker_whose_record_was_deleted_long_ago_is_asked_for_again() {
    let back = [Event::Settle, Event::JobStarts(0)];
    // The number of workers, how long the answer takes, and how many workers stay.
    for (workers, seconds, stays) in [(2, 2, 0), (2, 4, 1), (1, 16, 1)] {
        let mut world = at_work();
        let few = Event::Scale(2 - workers);
        for event in [few, ACT, Event::Settle] {
            world.happens(&event);
        }
        let events = if stays == 0 { &[][..] } else { &back[..] };
        world.acts_slowly(Duration::from_secs(seconds), events).await;
        assert_eq!(world.lost, 0, "{workers} workers, after {seconds} s");
        let left = world.pods.values().filter(|pod| !pod.terminating).count();
        let others = usize::try_from(2 - workers).unwrap();
        assert_eq!(left, stays + others, "{workers} workers, after {seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_stops_when_slurm_does_not_answer() {
    let mut world = World::new();
    world.kube_nodes.clear();
    world.set.replicas = 80;
    for _ in 0..3 {
        world.happens(&ACT);
        world.happens(&Event::Settle);
    }
    for event in [Event::Scale(0), ACT, Event::Settle] {
        world.happens(&event);
    }
    // Slurm stops answering after the first of three batches.
    let silent = [Event::SlurmSilent];
    let failures = world.acts_slowly(Duration::from_secs(1), &silent).await;
    assert_eq!(failures, 1, "it goes on");
    assert_eq!(world.lost, 0);
    assert_eq!(world.pods.values().filter(|pod| !pod.terminating).count(), 48);
}

#[test]
fn leftover_records_are_deleted_by_host_list() {
    let mut world = at_work();
    let served = world.records.clone();
    let left = served.values().next().unwrap().clone();
    for index in 10..50 {
        world.records.insert(format!("w-{index}"), left.clone());
    }
    world.happens(&Event::Settle);
    // Two batches, and a read and a deletion for each: there is no fifth call.
    world.acts(Some(4));
    assert_eq!(
        world.records.keys().collect::<Vec<_>>(),
        served.keys().collect::<Vec<_>>()
    );
}
