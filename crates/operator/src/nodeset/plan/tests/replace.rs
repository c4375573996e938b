use std::time::Duration;

use jiff::SignedDuration;
use pretty_assertions::assert_eq;
use slurm_rest::node::NodeState;

use super::{at, deletes, edit, id, observed, plan, pod, set, slurm, with_intent};
use crate::nodeset::facts::{Cause, Intent, NextRecord, Observed, Plan, PodFacts, Step, Strategy, Why};
use crate::slurm::facts::{Slurm, SlurmNode};

fn old(ordinal: u32) -> PodFacts {
    PodFacts {
        revision: "old".into(),
        ..pod(ordinal)
    }
}

fn replaced(plan: &Plan) -> Vec<&str> {
    plan.steps
        .iter()
        .filter_map(|step| match step {
            Step::Intend {
                pod,
                intent:
                    Intent {
                        cause: Cause::Rollout,
                        ..
                    },
            } => Some(pod.name.as_str()),
            _ => None,
        })
        .collect()
}

#[test]
fn a_rollout_takes_as_many_as_the_budget_and_the_idle_first() {
    let mut set = set(4);
    set.strategy = Strategy::Rolling {
        max_unavailable: 2,
        partition: 0,
    };
    let slurm = slurm(&["IDLE", "ALLOCATED", "ALLOCATED", "IDLE"]);
    let plan = plan(&observed(set, (0..4).map(old).collect(), slurm));
    assert_eq!(replaced(&plan), ["w-0", "w-3"]);
}

#[test]
fn a_rollout_stops_while_a_new_worker_is_not_available() {
    let mut starting = pod(0);
    starting.ready_since = None;
    let plan = plan(&observed(
        set(3),
        vec![starting, old(1), old(2)],
        slurm(&["", "IDLE", "IDLE"]),
    ));
    assert_eq!(replaced(&plan), Vec::<&str>::new());
}

#[test]
fn an_old_worker_that_is_out_already_is_replaced_outside_the_budget() {
    let mut sick = old(1);
    sick.ready_since = None;
    let mut starting = pod(0);
    starting.ready_since = None;
    let plan = plan(&observed(
        set(3),
        vec![starting, sick, old(2)],
        slurm(&["", "DOWN", "IDLE"]),
    ));
    assert_eq!(replaced(&plan), ["w-1"]);
}

#[test]
fn a_worker_that_slurm_may_have_learnt_of_since_it_was_read_is_not_out() {
    let with = |ready_since| {
        let fresh = PodFacts {
            ready_since: Some(at(ready_since)),
            ..old(0)
        };
        let pods = vec![fresh, old(1), old(2)];
        plan(&observed(set(3), pods, slurm(&["", "IDLE", "IDLE"])))
    };
    assert_eq!(replaced(&with(-5)), Vec::<&str>::new());
    assert_eq!(replaced(&with(-600)), ["w-0"]);
}

#[test]
fn a_worker_that_was_to_go_until_now_does_not_count_as_available() {
    // Found by the exhaustive search: its drain may not be undone yet.
    let wanted_again = with_intent(pod(0), Cause::ScaleIn, at(-10));
    let unknown = Slurm::Unknown { why: "silent".into() };
    let plan = plan(&observed(set(2), vec![wanted_again, old(1)], unknown));
    assert_eq!(plan.steps, [Step::Forget { pod: id(0) }]);
}

#[test]
fn a_drained_old_worker_is_replaced_and_its_record_stays() {
    let leaving = with_intent(old(0), Cause::Rollout, at(-10));
    let plan = plan(&observed(
        set(2),
        vec![leaving, pod(1)],
        slurm(&["IDLE+DRAIN", "IDLE"]),
    ));
    assert_eq!(
        deletes(&plan),
        [&Step::Replace {
            pod: id(0),
            node: "w-0".into(),
            record: NextRecord::Stays,
        }]
    );
}

/// Plans for a worker of an older revision on a drained node, whose replacement registers with another configuration.
fn next_record(change: impl FnOnce(&mut SlurmNode)) -> Plan {
    let mut slurm = slurm(&["IDLE+DRAIN", "IDLE"]);
    edit(&mut slurm, "w-0", |node| {
        node.reason = "slurm-operator: update".into();
        change(node);
    });
    let leaving = PodFacts {
        reshaped: true,
        ..with_intent(old(0), Cause::Rollout, at(-10))
    };
    let mut set = set(2);
    set.records.insert("w-0".into(), "old".into());
    plan(&observed(set, vec![leaving, pod(1)], slurm))
}

/// Plans for an up-to-date worker whose Slurm record describes its predecessor.
fn misknown(change: impl FnOnce(&mut SlurmNode)) -> Plan {
    let mut slurm = slurm(&["IDLE", "IDLE"]);
    edit(&mut slurm, "w-0", change);
    let known_as_before = PodFacts {
        reshaped: true,
        ..pod(0)
    };
    let mut set = set(2);
    set.records.insert("w-0".into(), "old".into());
    plan(&observed(set, vec![known_as_before, pod(1)], slurm))
}

#[test]
fn what_slurm_knows_of_a_node_is_renewed_when_nothing_stands_against_it() {
    assert_eq!(replaced(&misknown(|_| ())), ["w-0"]);
    let drained = |node: &mut SlurmNode| {
        node.state = NodeState::read(["IDLE", "DRAIN"].into_iter());
        node.reason = "broken fan".into();
    };
    let wanted = |node: &mut SlurmNode| node.work.as_mut().unwrap().wanted_by = vec![7];
    let reserved = |node: &mut SlurmNode| node.reservation = "maintenance".into();
    let unread = |node: &mut SlurmNode| node.work = None;
    for waits in [misknown(drained), misknown(reserved), misknown(unread)] {
        assert_eq!((replaced(&waits), waits.requeue_after), (vec![], None));
    }
    // Nothing else triggers a reconcile when the job is gone.
    let waits = misknown(wanted);
    assert_eq!(
        (replaced(&waits), waits.requeue_after),
        (vec![], Some(Duration::from_secs(30)))
    );
}

#[test]
fn a_record_stays_only_when_that_is_noted() {
    let mut slurm = slurm(&["IDLE+DRAIN", "IDLE"]);
    edit(&mut slurm, "w-0", |node| node.reason = "broken fan".into());
    let leaving = PodFacts {
        reshaped: true,
        ..with_intent(old(0), Cause::Rollout, at(-10))
    };
    let plan = plan(&observed(set(2), vec![leaving, pod(1)], slurm));
    assert_eq!(record(&plan), None);
    assert_eq!(plan.waits[0].why, Why::Reading);
}

fn record(plan: &Plan) -> Option<&NextRecord> {
    deletes(plan).into_iter().find_map(|step| match step {
        Step::Replace { record, .. } => Some(record),
        _ => None,
    })
}

#[test]
fn another_kind_of_node_gets_a_record_of_its_own() {
    assert_eq!(record(&next_record(|_| ())), Some(&NextRecord::Renewed));
}

#[test]
fn a_record_with_somebodys_drain_stays() {
    let plan = next_record(|node| node.reason = "broken fan".into());
    let why = "it was drained by someone else (broken fan)".into();
    assert_eq!(record(&plan), Some(&NextRecord::Kept { why }));
}

#[test]
fn a_record_in_a_reservation_stays() {
    let plan = next_record(|node| node.reservation = "course".into());
    let why = "it is in reservation course".into();
    assert_eq!(record(&plan), Some(&NextRecord::Kept { why }));
}

#[test]
fn a_record_that_a_pending_job_names_stays() {
    let plan = next_record(|node| node.work.as_mut().unwrap().wanted_by = vec![7]);
    let why = "pending job 7 requests it".into();
    assert_eq!(record(&plan), Some(&NextRecord::Kept { why }));
}

#[test]
fn nothing_is_renewed_before_it_is_known_what_jobs_want() {
    let plan = next_record(|node| node.work = None);
    assert_eq!(record(&plan), None);
    assert_eq!(plan.waits[0].why, Why::Reading);
}

#[test]
fn a_rollback_takes_the_drain_back() {
    let mut slurm = slurm(&["ALLOCATED+DRAIN", "IDLE"]);
    edit(&mut slurm, "w-0", |node| {
        node.reason = "slurm-operator: update".into();
    });
    let leaving = with_intent(pod(0), Cause::Rollout, at(-10));
    let steps = plan(&observed(set(2), vec![leaving, pod(1)], slurm)).steps;
    assert_eq!(
        steps,
        [Step::Forget { pod: id(0) }, Step::Undrain { node: "w-0".into() }]
    );
}

#[test]
fn ordinals_below_the_partition_keep_their_revision() {
    let mut set = set(2);
    set.strategy = Strategy::Rolling {
        max_unavailable: 2,
        partition: 1,
    };
    let plan = plan(&observed(set, vec![old(0), old(1)], slurm(&["IDLE", "IDLE"])));
    assert_eq!(replaced(&plan), ["w-1"]);
}

#[test]
fn the_new_worker_is_put_back_in_service_when_it_is_there() {
    let mut slurm = slurm(&["IDLE+DRAIN", "DOWN"]);
    edit(&mut slurm, "w-0", |node| {
        node.reason = "slurm-operator: update".into();
    });
    edit(&mut slurm, "w-1", |node| {
        node.reason = "slurm-operator: Pod is terminating".into();
    });
    let steps = plan(&observed(set(2), vec![pod(0), pod(1)], slurm.clone())).steps;
    assert!(steps.contains(&Step::Undrain { node: "w-0".into() }), "{steps:?}");
    assert!(steps.contains(&Step::Resume { node: "w-1".into() }), "{steps:?}");

    let mut starting = pod(0);
    starting.ready_since = None;
    let steps = plan(&observed(set(2), vec![starting, pod(1)], slurm)).steps;
    assert!(
        !steps.contains(&Step::Undrain { node: "w-0".into() }),
        "{steps:?}"
    );
}

#[test]
fn in_the_window_all_old_workers_go_together_and_before_it_none() {
    let mut set = set(3);
    set.strategy = Strategy::Scheduled {
        reservation: "maint".into(),
    };
    let mut facts = slurm(&["IDLE", "ALLOCATED", "IDLE"]);
    let pods: Vec<PodFacts> = vec![old(0), old(1), pod(2)];
    assert_eq!(
        plan(&observed(set.clone(), pods.clone(), facts.clone())).steps,
        []
    );

    for name in ["w-0", "w-1", "w-2"] {
        edit(&mut facts, name, |node| {
            node.reservation = "maint".into();
            node.state = NodeState::read(["IDLE", "MAINTENANCE"].into_iter());
        });
    }
    edit(&mut facts, "w-1", |node| node.allocated = 1);
    let now = plan(&observed(set.clone(), pods.clone(), facts.clone()));
    assert_eq!(replaced(&now), ["w-0", "w-1"]);
    assert_eq!(
        deletes(&now),
        [] as [&Step; 0],
        "jobs are waited for in the window too"
    );

    // A maintenance reservation by someone else is not the NodeSet's window.
    edit(&mut facts, "w-0", |node| node.reservation = "other".into());
    assert_eq!(replaced(&plan(&observed(set, pods, facts))), ["w-1"]);
}

#[test]
fn availability_counts_only_after_min_ready() {
    let mut set = set(2);
    set.min_ready = Duration::from_mins(1);
    let fresh = PodFacts {
        ready_since: Some(at(0) - SignedDuration::from_secs(30)),
        ..pod(0)
    };
    let plan = plan(&observed(set, vec![fresh, old(1)], slurm(&["IDLE", "IDLE"])));
    assert_eq!(replaced(&plan), Vec::<&str>::new());
}

/// Returns workers of an older revision that do not respond, for example because a network switch restarts.
fn silent_fleet(told: &[u32]) -> Observed {
    let pods = (0..4).map(|ordinal| {
        let mut pod = pod(ordinal);
        pod.revision = "old".into();
        if told.contains(&ordinal) {
            pod = with_intent(pod, Cause::Rollout, at(-10));
        }
        pod
    });
    observed(set(4), pods.collect(), slurm(&["IDLE+NOT_RESPONDING"; 4]))
}

fn told(plan: &Plan) -> usize {
    plan.steps
        .iter()
        .filter(|step| matches!(step, Step::Intend { .. }))
        .count()
}

#[test]
fn a_fleet_that_does_not_respond_for_a_moment_is_not_told_to_go() {
    assert_eq!(told(&plan(&silent_fleet(&[]))), 1);
}

#[test]
fn what_was_told_to_go_in_error_is_taken_back_while_no_drain_has_reached_slurm() {
    let plan = plan(&silent_fleet(&[0, 1, 2, 3]));
    let forgotten = plan
        .steps
        .iter()
        .filter(|step| matches!(step, Step::Forget { .. }));
    assert_eq!(forgotten.count(), 3);
    let drained = plan
        .steps
        .iter()
        .filter(|step| matches!(step, Step::Drain { .. }));
    assert_eq!(drained.count(), 1);
}

#[test]
fn time_that_makes_a_worker_available_is_not_missed() {
    let mut set = set(2);
    set.min_ready = Duration::from_secs(30);
    let mut fresh = pod(1);
    fresh.ready_since = Some(at(-10));
    let plan = plan(&observed(set, vec![pod(0), fresh], slurm(&["IDLE", "IDLE"])));
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(20)));
}

#[test]
fn time_that_makes_an_unregistered_worker_a_case_is_not_missed() {
    let mut fresh = pod(1);
    fresh.ready_since = Some(at(-100));
    let plan = plan(&observed(set(2), vec![pod(0), fresh], slurm(&["IDLE", ""])));
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(200)));
}
