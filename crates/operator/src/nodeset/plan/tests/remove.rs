use std::time::Duration;

use keelson_api::nodeset::DrainTimeoutAction;
use pretty_assertions::assert_eq;

use super::{at, deletes, edit, ends_at, held_by, id, observed, plan, pod, set, slurm, with_intent};
use crate::nodeset::facts::{
    Cause, Intent, Leaving, NextRecord, Phase, Plan, PodFacts, SetFacts, Start, Step, Why,
};
use crate::slurm::facts::{JobReading, Slurm};
use crate::slurm::jobs::{HeldBy, Work};

#[test]
fn scale_in_marks_and_drains_before_anything_is_deleted() {
    let plan = plan(&observed(
        set(1),
        vec![pod(0), pod(1)],
        slurm(&["ALLOCATED", "IDLE"]),
    ));
    assert_eq!(
        plan.steps,
        [
            Step::Intend {
                pod: id(1),
                intent: Intent {
                    cause: Cause::ScaleIn,
                    since: at(0)
                }
            },
            Step::Drain {
                node: "w-1".into(),
                reason: "slurm-operator: Pod is pending termination for scale-in".into(),
            },
        ]
    );
}

#[test]
fn scale_in_takes_the_idle_and_then_the_one_whose_jobs_end_first() {
    let mut slurm = slurm(&["ALLOCATED", "ALLOCATED", "IDLE", "ALLOCATED"]);
    edit(&mut slurm, "w-0", |node| ends_at(node, 500));
    edit(&mut slurm, "w-1", |node| ends_at(node, 100));
    let plan = plan(&observed(set(2), (0..4).map(pod).collect(), slurm));
    let leaving: Vec<_> = plan
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Intend { pod, .. } => Some(pod.name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(leaving, ["w-1", "w-2"]);
}

#[test]
fn a_busy_worker_is_waited_for() {
    let mut slurm = slurm(&["IDLE", "ALLOCATED+DRAIN"]);
    edit(&mut slurm, "w-1", |node| ends_at(node, 100));
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-10));
    let plan = plan(&observed(set(1), vec![pod(0), leaving], slurm));
    assert_eq!(deletes(&plan), Vec::<&Step>::new());
    assert_eq!(plan.waits[0].why, Why::Jobs { until: Some(at(100)) });
}

#[test]
fn a_node_that_a_pending_job_insists_on_stays_for_it() {
    let mut slurm = slurm(&["IDLE", "IDLE+DRAIN"]);
    edit(&mut slurm, "w-1", |node| {
        node.work = Some(Work {
            wanted_by: vec![7],
            ..Work::default()
        });
    });
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-10));
    let waiting = plan(&observed(set(1), vec![pod(0), leaving.clone()], slurm.clone()));
    assert_eq!(deletes(&waiting), Vec::<&Step>::new());
    assert_eq!(waiting.waits[0].why, Why::Wanted { jobs: vec![7] });

    edit(&mut slurm, "w-1", |node| node.work = None);
    let unread = plan(&observed(set(1), vec![pod(0), leaving], slurm));
    assert_eq!(deletes(&unread), Vec::<&Step>::new());
}

#[test]
fn jobs_are_ended_only_when_the_user_wrote_so_and_the_time_is_over() {
    let mut slurm = slurm(&["IDLE", "MIXED+DRAIN"]);
    edit(&mut slurm, "w-1", |node| {
        node.work = Some(Work {
            jobs: vec![held_by("7")],
            ..Work::default()
        });
    });
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-100));
    let ended = |timeout: u64, action: DrainTimeoutAction| {
        let mut set = set(1);
        set.drain_timeout = Some(Duration::from_secs(timeout));
        set.on_drain_timeout = action;
        let plan = plan(&observed(set, vec![pod(0), leaving.clone()], slurm.clone()));
        plan.steps
            .into_iter()
            .find(|step| matches!(step, Step::RequeueJobs { .. } | Step::CancelJobs { .. }))
    };
    assert_eq!(ended(60, DrainTimeoutAction::Wait), None);
    assert_eq!(ended(200, DrainTimeoutAction::Requeue), None);
    assert_eq!(
        ended(60, DrainTimeoutAction::Requeue),
        Some(Step::RequeueJobs {
            addresses: vec!["7".into()]
        })
    );
    assert_eq!(
        ended(60, DrainTimeoutAction::Cancel),
        Some(Step::CancelJobs {
            addresses: vec!["7".into()]
        })
    );
}

#[test]
fn when_the_jobs_of_a_leaving_worker_end_is_written_on_it() {
    let mut slurm = slurm(&["IDLE", "MIXED+DRAIN"]);
    edit(&mut slurm, "w-1", |node| {
        node.work = Some(Work {
            jobs: vec![held_by("7")],
            until: Some(at(100)),
            wanted_by: vec![],
        });
    });
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-10));
    let steps = plan(&observed(set(1), vec![pod(0), leaving], slurm)).steps;
    assert_eq!(
        steps,
        [Step::Deadline {
            pod: id(1),
            at: Some(at(100))
        }]
    );
}

#[test]
fn a_drained_worker_leaves_by_way_of_slurm() {
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-10));
    let plan = plan(&observed(
        set(1),
        vec![pod(0), leaving],
        slurm(&["IDLE", "IDLE+DRAIN"]),
    ));
    assert_eq!(
        deletes(&plan),
        [&Step::Retire {
            pod: id(1),
            node: "w-1".into()
        }]
    );
}

#[test]
fn a_reading_older_than_the_intent_proves_nothing() {
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-10));
    let mut slurm = slurm(&["IDLE", "IDLE+DRAIN"]);
    edit(&mut slurm, "w-1", |node| node.read_at = at(-11));
    let plan = plan(&observed(set(1), vec![pod(0), leaving], slurm));
    assert_eq!(deletes(&plan), Vec::<&Step>::new());
    assert_eq!(plan.waits[0].why, Why::Reading);
}

#[test]
fn what_we_changed_ourselves_is_read_again_before_the_next_step() {
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-10));
    let mut slurm = slurm(&["IDLE", "IDLE+DRAIN"]);
    edit(&mut slurm, "w-1", |node| node.outdated = true);
    let waiting = plan(&observed(set(1), vec![pod(0), leaving], slurm.clone()));
    assert_eq!(deletes(&waiting), Vec::<&Step>::new());
    assert_eq!(waiting.waits[0].why, Why::Reading);

    edit(&mut slurm, "w-1", |node| node.reason = "slurm-operator: x".into());
    assert_eq!(plan(&observed(set(2), vec![pod(0), pod(1)], slurm)).steps, []);
}

#[test]
fn no_answer_from_slurm_means_wait() {
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-10));
    let unknown = Slurm::Unknown { why: "down".into() };
    let plan = plan(&observed(set(1), vec![pod(0), leaving], unknown));
    assert_eq!(plan.steps, []);
    assert_eq!(plan.waits[0].why, Why::SlurmUnknown);
}

#[test]
fn a_worker_that_never_started_needs_no_answer() {
    let mut stuck = with_intent(pod(1), Cause::ScaleIn, at(-10));
    stuck.start = Start::Never;
    stuck.phase = Phase::Pending;
    stuck.ready_since = None;
    let plan = plan(&observed(
        set(1),
        vec![pod(0), stuck],
        Slurm::Unknown { why: "down".into() },
    ));
    assert_eq!(plan.steps, [Step::Discard { pod: id(1) }]);
}

#[test]
fn a_cancelled_scale_in_is_undone_with_its_drain() {
    let mut slurm = slurm(&["IDLE", "IDLE+DRAIN"]);
    edit(&mut slurm, "w-1", |node| node.reason = "slurm-operator: x".into());
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-10));
    let steps = plan(&observed(set(2), vec![pod(0), leaving], slurm)).steps;
    assert!(steps.contains(&Step::Forget { pod: id(1) }), "{steps:?}");
    assert!(steps.contains(&Step::Undrain { node: "w-1".into() }), "{steps:?}");
    assert!(
        !steps
            .iter()
            .any(|step| matches!(step, Step::Retire { .. } | Step::Replace { .. })),
        "{steps:?}"
    );
}

#[test]
fn a_drain_of_somebody_else_is_never_undone() {
    let mut slurm = slurm(&["IDLE", "IDLE+DRAIN"]);
    edit(&mut slurm, "w-1", |node| node.reason = "broken fan".into());
    let mut second = pod(1);
    second.protected = false;
    assert_eq!(plan(&observed(set(2), vec![pod(0), second], slurm)).steps, []);
}

#[test]
fn a_slurm_that_lost_its_state_deletes_nothing() {
    let pods = (0..4)
        .map(|i| with_intent(pod(i), Cause::ScaleIn, at(-10)))
        .collect();
    let plan = plan(&observed(set(0), pods, slurm(&["IDLE+DRAIN"])));
    assert_eq!(
        deletes(&plan),
        [&Step::Retire {
            pod: id(0),
            node: "w-0".into()
        }]
    );
    assert_eq!(plan.waits.len(), 3);
    assert!(plan.waits.iter().all(|wait| wait.why == Why::SuspectLoss));
}

#[test]
fn a_worker_that_never_registered_and_does_not_run_goes() {
    let leaving = |running: bool| {
        let mut pod = with_intent(pod(0), Cause::Deletion, at(-10));
        pod.ready_since = None;
        pod.running = running;
        pod
    };
    let planned = |pod: PodFacts, slurm: Slurm| {
        let set = SetFacts {
            leaving: Leaving::Drain,
            ..set(1)
        };
        plan(&observed(set, vec![pod], slurm))
    };
    let gone = planned(leaving(false), slurm(&[]));
    assert_eq!(
        deletes(&gone),
        [&Step::Retire {
            pod: id(0),
            node: "w-0".into()
        }]
    );
    // A worker that may be running may have jobs that Slurm forgot.
    let running = planned(leaving(true), slurm(&[]));
    assert_eq!(deletes(&running), Vec::<&Step>::new());
    assert_eq!(running.waits[0].why, Why::SuspectLoss);
    // So may a worker that was registered once, because the kubelet's report may be outdated.
    let mut registered = leaving(false);
    let shown = ("SlurmNodeStateIdle".to_owned(), (String::new(), None));
    registered.conditions = [shown].into();
    assert_eq!(deletes(&planned(registered, slurm(&[]))), Vec::<&Step>::new());
    // Without an answer from Slurm, nothing is proven.
    let silent = planned(leaving(false), Slurm::Unknown { why: "down".into() });
    assert_eq!(deletes(&silent), Vec::<&Step>::new());
    assert_eq!(silent.waits[0].why, Why::SlurmUnknown);
}

/// Plans the scale-in of a worker whose `drain.timeout` has expired.
fn overdue(action: DrainTimeoutAction, jobs: Vec<HeldBy>, wanted_by: Vec<u64>) -> Plan {
    let states = if jobs.is_empty() {
        "IDLE+DRAIN"
    } else {
        "MIXED+DRAIN"
    };
    let mut slurm = slurm(&["IDLE", states]);
    edit(&mut slurm, "w-1", |node| {
        node.work = Some(Work {
            jobs,
            until: None,
            wanted_by,
        });
    });
    let mut set = set(1);
    set.drain_timeout = Some(Duration::from_mins(1));
    set.on_drain_timeout = action;
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-100));
    plan(&observed(set, vec![pod(0), leaving], slurm))
}

#[test]
fn requeue_waits_for_jobs_that_cannot_be_requeued_and_says_so() {
    let never = HeldBy {
        requeue: None,
        ..held_by("7")
    };
    let refused = HeldBy {
        refused: Some("Slurm said no".into()),
        ..held_by("8")
    };
    let completing = HeldBy {
        completing: true,
        ..held_by("9")
    };
    let plan = overdue(
        DrainTimeoutAction::Requeue,
        vec![refused, never, completing, held_by("10")],
        vec![],
    );
    let asked = plan.steps.iter().find_map(|step| match step {
        Step::RequeueJobs { addresses } => Some(addresses.clone()),
        _ => None,
    });
    assert_eq!(asked, Some(vec!["10".to_owned()]));
    assert!(
        !plan
            .steps
            .iter()
            .any(|step| matches!(step, Step::CancelJobs { .. }))
    );
    let why = Why::CannotRequeue {
        jobs: vec!["8".into(), "7".into()],
        why: "Slurm said no".into(),
    };
    assert_eq!(plan.waits[0].why, why);
}

#[test]
fn a_job_on_two_leaving_workers_is_asked_once() {
    let mut slurm = slurm(&["MIXED+DRAIN", "MIXED+DRAIN"]);
    for name in ["w-0", "w-1"] {
        edit(&mut slurm, name, |node| {
            node.work = Some(Work {
                jobs: vec![held_by("7_1")],
                ..Work::default()
            });
        });
    }
    let mut set = set(0);
    set.drain_timeout = Some(Duration::ZERO);
    set.on_drain_timeout = DrainTimeoutAction::Requeue;
    let leaving = [0, 1].map(|ordinal| with_intent(pod(ordinal), Cause::ScaleIn, at(-100)));
    let plan = plan(&observed(set, leaving.into(), slurm));
    let asked: Vec<_> = plan
        .steps
        .iter()
        .filter(|step| matches!(step, Step::RequeueJobs { .. }))
        .collect();
    let once = Step::RequeueJobs {
        addresses: vec!["7_1".into()],
    };
    assert_eq!(asked, [&once]);
}

#[test]
fn a_pending_job_keeps_the_record_also_when_the_workers_time_is_over() {
    let plan = overdue(DrainTimeoutAction::Requeue, vec![], vec![7]);
    let goes = Step::Replace {
        pod: id(1),
        node: "w-1".into(),
        record: NextRecord::Stays,
    };
    assert_eq!(deletes(&plan), [&goes]);
}

#[test]
fn the_record_of_a_worker_that_is_gone_stays_for_a_pending_job_and_goes_after_it() {
    let mut slurm = slurm(&["IDLE", "DOWN+DRAIN"]);
    edit(&mut slurm, "w-1", |node| {
        node.reason = "slurm-operator: Pod is terminating".into();
        node.work = Some(Work {
            wanted_by: vec![7],
            ..Work::default()
        });
    });
    let kept = plan(&observed(set(1), vec![pod(0)], slurm.clone()));
    assert_eq!(kept.steps, []);
    assert_eq!(kept.kept[0].node, "w-1".into());
    assert!(kept.kept[0].why.contains("pending job 7"), "{:?}", kept.kept);

    edit(&mut slurm, "w-1", |node| node.work = Some(Work::default()));
    let gone = plan(&observed(set(1), vec![pod(0)], slurm.clone()));
    assert_eq!(gone.steps, [Step::Prune { node: "w-1".into() }]);

    // A record of another NodeSet is kept, and so is one that someone else drained.
    edit(&mut slurm, "w-1", |node| node.extra = "nodeset=w/another".into());
    assert_eq!(plan(&observed(set(1), vec![pod(0)], slurm.clone())).steps, []);
    edit(&mut slurm, "w-1", |node| {
        node.extra = "nodeset=w/set".into();
        node.reason = "bad disk".into();
    });
    assert_eq!(plan(&observed(set(1), vec![pod(0)], slurm)).steps, []);
}

#[test]
fn nobody_goes_while_the_list_of_jobs_cannot_be_read() {
    let slurm = slurm(&["IDLE", "IDLE+DRAIN"]).with_jobs(JobReading::Failed { why: "no".into() });
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-100));
    let plan = plan(&observed(set(1), vec![pod(0), leaving], slurm));
    assert_eq!(deletes(&plan), Vec::<&Step>::new());
    assert_eq!(plan.waits[0].why, Why::JobsUnread { why: "no".into() });
}

#[test]
fn a_suspended_job_holds_a_node_that_looks_idle() {
    let mut slurm = slurm(&["IDLE", "IDLE+DRAIN"]);
    edit(&mut slurm, "w-1", |node| {
        node.work = Some(Work {
            jobs: vec![held_by("7")],
            ..Work::default()
        });
    });
    let leaving = with_intent(pod(1), Cause::ScaleIn, at(-100));
    let plan = plan(&observed(set(1), vec![pod(0), leaving], slurm));
    assert_eq!(deletes(&plan), Vec::<&Step>::new());
    assert_eq!(plan.waits[0].why, Why::Jobs { until: None });
}

#[test]
fn a_worker_that_may_be_starting_is_asked_for() {
    let mut starting = with_intent(pod(1), Cause::ScaleIn, at(-100));
    starting.start = Start::Perhaps;
    starting.ready_since = None;
    starting.running = false;
    let silent = Slurm::Unknown { why: "silent".into() };
    let waiting = plan(&observed(set(1), vec![pod(0), starting.clone()], silent));
    assert_eq!(deletes(&waiting), Vec::<&Step>::new());
    let known = plan(&observed(
        set(1),
        vec![pod(0), starting],
        slurm(&["IDLE", "MIXED"]),
    ));
    assert_eq!(deletes(&known), Vec::<&Step>::new());
}

#[test]
fn a_rollout_that_renumbers_retires_the_old_name() {
    let mut old = with_intent(pod(2), Cause::Rollout, at(-100));
    old.revision = "old".into();
    let facts = observed(
        set(2),
        vec![pod(0), old.clone()],
        slurm(&["IDLE", "", "IDLE+DRAIN"]),
    );
    let retires = Step::Retire {
        pod: id(2),
        node: "w-2".into(),
    };
    assert_eq!(deletes(&plan(&facts)), [&retires]);
    // Without a gap below it, the ordinal is reused.
    let facts = observed(
        set(3),
        vec![pod(0), pod(1), old],
        slurm(&["IDLE", "IDLE", "IDLE+DRAIN"]),
    );
    assert!(matches!(deletes(&plan(&facts))[..], [Step::Replace { .. }]));
}
