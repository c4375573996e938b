//! Which nodes are read one by one, and when the jobs are read.

use jiff::SignedDuration;
use rstest::rstest;

use super::{super::awaited, *};
use crate::nodeset::facts::{REGISTRATION_GRACE, Wait, Why};

fn awaits(observed: &Observed) -> bool {
    awaited(observed, &Plan::default()).next().is_some()
}

#[rstest]
#[case(Why::Reading, true)]
#[case(Why::Jobs { until: None }, true)]
#[case(Why::Starting, true)]
#[case(Why::CannotRequeue { jobs: vec![], why: String::new() }, true)]
#[case(Why::Reserved { reservation: String::new() }, true)]
#[case(Why::SuspectLoss, true)]
#[case(Why::SlurmUnknown, false)]
#[case(Why::JobsUnread { why: String::new() }, false)]
#[case(Why::Wanted { jobs: vec![] }, false)]
fn the_nodes_of_workers_that_leave_are_awaited(#[case] why: Why, #[case] expected: bool) {
    let seen = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
    let wait = Wait {
        pod: "w-0".into(),
        node: "w-0".into(),
        why,
    };
    let plan = Plan {
        waits: vec![wait],
        ..Plan::default()
    };
    let names: Vec<NodeName> = awaited(&seen, &plan).collect();
    assert_eq!(names == ["w-0".into()], expected, "{names:?}");
}

#[rstest]
#[case::in_service("IDLE", true, false)]
#[case::busy("MIXED+DRAIN", true, true)]
#[case::drained("IDLE+DRAIN", true, false)]
#[case::unprotected("MIXED+DRAIN", false, false)]
fn a_worker_that_is_drained_by_a_cordon_is_awaited_until_it_loses_its_protection(
    #[case] words: &str,
    #[case] protected: bool,
    #[case] expected: bool,
) {
    let worker = PodFacts { protected, ..pod(0) };
    let mut seen = observed(set(1), vec![worker], slurm(&[words]));
    assert_eq!(awaits(&seen), expected);
    // A suspended job is only in the list of jobs.
    edit(&mut seen.slurm, "w-0", |node| ends_at(node, 60));
    assert_eq!(awaits(&seen), protected && words.contains("DRAIN"));
}

#[test]
fn a_worker_that_is_about_to_register_is_awaited() {
    let born = PodFacts {
        created: at(-5),
        ready_since: None,
        ..pod(0)
    };
    // The record of the previous worker, and the record of this one.
    let before = observed(set(1), vec![born.clone()], slurm(&["DOWN"]));
    assert!(awaits(&before));
    let mut after = before.clone();
    edit(&mut after.slurm, "w-0", |node| node.registered = Some(at(-1)));
    assert!(!awaits(&after));

    let unknown = |pod: PodFacts| observed(set(1), vec![pod], slurm(&[]));
    assert!(awaits(&unknown(born.clone())));
    let mut late = unknown(born.clone());
    late.now = born.created + REGISTRATION_GRACE + SignedDuration::from_secs(1);
    assert!(!awaits(&late));
    let unscheduled = PodFacts {
        start: Start::Never,
        phase: Phase::Pending,
        ..born
    };
    assert!(!awaits(&unknown(unscheduled)), "thousands may be pending");
}

#[test]
fn the_jobs_are_read_for_a_leftover_record_once_it_is_read_again() {
    let mut seen = observed(set(1), vec![pod(0)], slurm(&["IDLE", "DOWN"]));
    assert!(super::super::needs_jobs(&seen));
    edit(&mut seen.slurm, "w-1", |node| node.outdated = true);
    assert!(!super::super::needs_jobs(&seen));
}
