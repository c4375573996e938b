//! What `plan` decides, case by case. The promises for every case are in `plan_properties`.
#![allow(
    clippy::needless_pass_by_value,
    reason = "json! literals read better unborrowed"
)]

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use keelson_api::nodeset::{ClaimRetentionPolicy, DrainTimeoutAction, ScalingMode};
use pretty_assertions::assert_eq;

use crate::nodeset::facts::{
    Cause, ClaimFacts, ClaimOwner, Fit, Intent, Leaving, MachineFacts, Observed, Phase, Plan, PodFacts,
    PodId, SetFacts, Step, Strategy, Why,
};
use slurm_rest::node::NodeState;

use crate::slurm::{
    facts::{NodeName, Slurm, SlurmNode},
    jobs::Work,
};

/// What is decided, without what is merely shown on pods.
fn plan(observed: &Observed) -> Plan {
    let mut plan = super::plan(observed);
    plan.steps.retain(|step| !matches!(step, Step::Conditions { .. }));
    plan
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

pub fn set(replicas: u32) -> SetFacts {
    SetFacts {
        replicas,
        mode: ScalingMode::StatefulSet,
        revision: "new".into(),
        strategy: Strategy::Rolling {
            max_unavailable: 1,
            partition: 0,
        },
        drain_timeout: None,
        on_drain_timeout: DrainTimeoutAction::Wait,
        paused: false,
        leaving: Leaving::No,
        min_ready: Duration::ZERO,
        startup_limit: None,
        protect: true,
        claim_retention: ClaimRetentionPolicy::default(),
        pins: BTreeMap::new(),
    }
}

/// A healthy worker of the newest revision.
pub fn pod(ordinal: u32) -> PodFacts {
    PodFacts {
        name: format!("w-{ordinal}"),
        uid: format!("uid-{ordinal}"),
        mode: ScalingMode::StatefulSet,
        ordinal: Some(ordinal),
        node: NodeName(format!("w-{ordinal}")),
        revision: "new".into(),
        phase: Phase::Running,
        started: true,
        ready_since: Some(at(-600)),
        created: at(-660),
        terminating: false,
        machine: Some(format!("machine-{ordinal}")),
        target: Some(format!("machine-{ordinal}")),
        cordoned: false,
        intent: None,
        deletion_cost: 0,
        deadline: None,
        topology: None,
        conditions: BTreeMap::new(),
        protected: true,
        claims: vec![],
        orphan: false,
    }
}

pub fn node(words: &str) -> SlurmNode {
    SlurmNode {
        state: NodeState::read(words.split('+')),
        allocated: 0,
        registered: Some(at(-650)),
        reason: String::new(),
        address: String::new(),
        topology: String::new(),
        reservation: String::new(),
        features: vec![],
        active_features: vec![],
        read_at: at(0),
        outdated: false,
        work: Some(Work::default()),
    }
}

fn slurm(states: &[&str]) -> Slurm {
    let nodes = states.iter().enumerate().filter(|(_, words)| !words.is_empty());
    Slurm::Known {
        nodes: nodes
            .map(|(i, words)| (NodeName(format!("w-{i}")), node(words)))
            .collect(),
        since: None,
    }
}

fn observed(set: SetFacts, pods: Vec<PodFacts>, slurm: Slurm) -> Observed {
    Observed {
        set,
        pods,
        slurm,
        machines: BTreeMap::new(),
        now: at(0),
    }
}

fn id(ordinal: u32) -> PodId {
    pod(ordinal).id()
}

fn with_intent(mut pod: PodFacts, cause: Cause, since: Timestamp) -> PodFacts {
    pod.intent = Some(Intent { cause, since });
    pod
}

fn edit(slurm: &mut Slurm, name: &str, change: impl FnOnce(&mut SlurmNode)) {
    let Slurm::Known { nodes, .. } = slurm else {
        panic!("unknown")
    };
    change(nodes.get_mut(&NodeName::from(name)).unwrap());
}

fn ends_at(node: &mut SlurmNode, second: i64) {
    node.work = Some(Work {
        jobs: vec![1],
        until: Some(at(second)),
        wanted_by: vec![],
    });
}

fn create(ordinal: u32) -> Step {
    Step::Create {
        ordinal,
        machine: None,
    }
}

fn deletes(plan: &Plan) -> Vec<&Step> {
    plan.steps
        .iter()
        .filter(|step| {
            matches!(
                step,
                Step::Discard { .. } | Step::Force { .. } | Step::Replace { .. } | Step::Retire { .. }
            )
        })
        .collect()
}

#[test]
fn a_converged_set_plans_nothing() {
    let plan = plan(&observed(
        set(2),
        vec![pod(0), pod(1)],
        slurm(&["IDLE", "ALLOCATED"]),
    ));
    assert_eq!(plan, Plan::default());
}

#[test]
fn missing_workers_get_the_smallest_free_ordinals() {
    let plan = plan(&observed(
        set(4),
        vec![pod(1), pod(4)],
        slurm(&["", "IDLE", "", "", "IDLE"]),
    ));
    assert_eq!(plan.steps, [create(0), create(2)]);
}

#[test]
fn a_dying_pod_keeps_its_place() {
    let mut dying = pod(1);
    dying.terminating = true;
    assert_eq!(
        plan(&observed(set(2), vec![pod(0), dying], slurm(&["IDLE", "IDLE"]))).steps,
        []
    );
}

#[test]
fn no_more_start_at_once_than_allowed() {
    let mut starting = pod(0);
    starting.ready_since = None;
    let mut set = set(10);
    set.startup_limit = Some(3);
    let plan = plan(&observed(set, vec![starting], slurm(&[])));
    assert_eq!(plan.steps, [create(1), create(2)]);
}

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
            jobs: vec![7],
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
            .find(|step| matches!(step, Step::EndJobs { .. }))
    };
    assert_eq!(ended(60, DrainTimeoutAction::Wait), None);
    assert_eq!(ended(200, DrainTimeoutAction::Requeue), None);
    assert_eq!(
        ended(60, DrainTimeoutAction::Requeue),
        Some(Step::EndJobs {
            jobs: vec![7],
            requeue: true
        })
    );
    assert_eq!(
        ended(60, DrainTimeoutAction::Cancel),
        Some(Step::EndJobs {
            jobs: vec![7],
            requeue: false
        })
    );
}

#[test]
fn when_the_jobs_of_a_leaving_worker_end_is_written_on_it() {
    let mut slurm = slurm(&["IDLE", "MIXED+DRAIN"]);
    edit(&mut slurm, "w-1", |node| {
        node.work = Some(Work {
            jobs: vec![7],
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
    stuck.started = false;
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
fn a_node_that_a_steady_slurm_never_saw_is_believed_gone() {
    let leaving = with_intent(pod(0), Cause::ScaleIn, at(-10));
    let slurm = Slurm::Known {
        nodes: BTreeMap::new(),
        since: Some(at(-10_000)),
    };
    let plan = plan(&observed(set(0), vec![leaving], slurm));
    assert_eq!(
        deletes(&plan),
        [&Step::Retire {
            pod: id(0),
            node: "w-0".into()
        }]
    );
}

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
fn a_worker_that_was_to_go_until_now_does_not_count_as_available() {
    // Found by the search: its drain may not be undone yet.
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
            node: "w-0".into()
        }]
    );
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
fn a_cordoned_machine_drains_its_worker_and_uncordoning_undoes_it() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
    let cordoned = MachineFacts {
        cordoned: true,
        cordon_reason: Some("fan".into()),
        ..MachineFacts::default()
    };
    observed.machines.insert("machine-0".into(), cordoned);
    let drain = Step::Drain {
        node: "w-0".into(),
        reason: "slurm-operator: fan".into(),
    };
    assert_eq!(plan(&observed).steps, [drain]);

    observed.slurm = slurm(&["IDLE+DRAIN"]);
    edit(&mut observed.slurm, "w-0", |node| {
        node.reason = "slurm-operator: fan".into();
    });
    assert_eq!(
        plan(&observed).steps,
        [Step::Protect {
            pod: id(0),
            protected: false
        }]
    );

    observed
        .machines
        .insert("machine-0".into(), MachineFacts::default());
    observed.pods[0].protected = false;
    let steps = plan(&observed).steps;
    assert_eq!(
        steps,
        [
            Step::Undrain { node: "w-0".into() },
            Step::Protect {
                pod: id(0),
                protected: true
            }
        ]
    );
}

#[test]
fn a_persons_cordon_of_a_pod_stays() {
    let mut cordoned = pod(0);
    cordoned.cordoned = true;
    cordoned.protected = false;
    let mut slurm = slurm(&["IDLE+DRAIN"]);
    edit(&mut slurm, "w-0", |node| {
        node.reason = "slurm-operator: Pod was cordoned".into();
    });
    assert_eq!(plan(&observed(set(1), vec![cordoned], slurm)).steps, []);
}

#[test]
fn a_ready_worker_that_slurm_does_not_know_gets_time_and_is_then_replaced() {
    let young = PodFacts {
        ready_since: Some(at(-60)),
        ..pod(2)
    };
    let states = slurm(&["IDLE", "IDLE", ""]);
    assert_eq!(
        plan(&observed(set(3), vec![pod(0), pod(1), young], states.clone())).steps,
        []
    );
    let long = PodFacts {
        ready_since: Some(at(-600)),
        ..pod(2)
    };
    let steps = plan(&observed(set(3), vec![pod(0), pod(1), long], states)).steps;
    let since = at(0);
    assert_eq!(
        steps,
        [Step::Intend {
            pod: id(2),
            intent: Intent {
                cause: Cause::Unregistered,
                since
            }
        }]
    );
}

#[test]
fn a_deleted_set_drains_all_and_removes_what_is_drained() {
    let mut set = set(2);
    set.leaving = Leaving::Drain;
    let pods = vec![
        with_intent(pod(0), Cause::Deletion, at(-5)),
        with_intent(pod(1), Cause::Deletion, at(-5)),
    ];
    let plan = plan(&observed(set, pods, slurm(&["IDLE+DRAIN", "ALLOCATED+DRAIN"])));
    assert_eq!(
        deletes(&plan),
        [&Step::Retire {
            pod: id(0),
            node: "w-0".into()
        }]
    );
    assert_eq!(plan.waits.len(), 1);
}

#[test]
fn a_forced_deletion_asks_nobody() {
    let mut set = set(1);
    set.leaving = Leaving::Immediately;
    let pods = vec![with_intent(pod(0), Cause::Deletion, at(-5))];
    let plan = plan(&observed(set, pods, Slurm::Unknown { why: "down".into() }));
    assert_eq!(deletes(&plan), [&Step::Force { pod: id(0) }]);
}

#[test]
fn an_ended_pod_is_cleared_away() {
    let ended = PodFacts {
        phase: Phase::Ended,
        ready_since: None,
        ..pod(0)
    };
    let plan = plan(&observed(
        set(1),
        vec![ended],
        Slurm::Unknown { why: "down".into() },
    ));
    assert_eq!(plan.steps, [Step::Discard { pod: id(0) }]);
}

#[test]
fn paused_means_hands_off() {
    let mut set = set(0);
    set.paused = true;
    let pods = vec![with_intent(pod(0), Cause::ScaleIn, at(-10))];
    assert_eq!(
        plan(&observed(set, pods, slurm(&["IDLE+DRAIN"]))),
        Plan::default()
    );
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

fn shown(observed: &Observed) -> Option<Step> {
    super::plan(observed)
        .steps
        .into_iter()
        .find(|step| matches!(step, Step::Conditions { .. }))
}

#[test]
fn a_pod_shows_the_state_of_its_slurm_node() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["IDLE+DRAIN"]));
    edit(&mut observed.slurm, "w-0", |node| node.reason = "fan".into());
    observed.pods[0]
        .conditions
        .insert("SlurmNodeStateDown".into(), ("old".into(), Some(at(-1))));
    let set = BTreeMap::from([
        ("SlurmNodeStateDrain".to_owned(), "fan".to_owned()),
        ("SlurmNodeStateIdle".to_owned(), "fan".to_owned()),
    ]);
    assert_eq!(
        shown(&observed),
        Some(Step::Conditions {
            pod: id(0),
            set,
            drop: vec!["SlurmNodeStateDown".into()]
        })
    );
}

#[test]
fn jobs_that_come_and_go_are_shown_only_now_and_then() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["MIXED"]));
    observed.pods[0]
        .conditions
        .insert("SlurmNodeStateIdle".into(), (String::new(), Some(at(-10))));
    assert_eq!(shown(&observed), None);
    assert_eq!(super::plan(&observed).look_again, Some(Duration::from_secs(20)));
    observed.pods[0]
        .conditions
        .insert("SlurmNodeStateIdle".into(), (String::new(), Some(at(-30))));
    assert!(shown(&observed).is_some());
}

#[test]
fn without_an_answer_from_slurm_what_is_shown_stays() {
    let mut observed = observed(set(1), vec![pod(0)], Slurm::Unknown { why: "down".into() });
    observed.pods[0]
        .conditions
        .insert("SlurmNodeStateIdle".into(), (String::new(), None));
    assert_eq!(shown(&observed), None);
}

#[test]
fn slurm_learns_the_machines_topology_and_features() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
    edit(&mut observed.slurm, "w-0", |node| {
        node.features = vec!["gpu".into(), "k8s/old".into()];
        node.active_features.clone_from(&node.features);
    });
    let machine = MachineFacts {
        topology: Some("topo-switch:s1".into()),
        features: vec!["k8s/a100".into()],
        ..MachineFacts::default()
    };
    observed.machines.insert("machine-0".into(), machine);
    let features = vec!["gpu".to_owned(), "k8s/a100".to_owned()];
    assert_eq!(
        plan(&observed).steps,
        [
            Step::Topology {
                pod: id(0),
                topology: Some("topo-switch:s1".into())
            },
            Step::PlaceNode {
                node: "w-0".into(),
                topology: "topo-switch:s1".into()
            },
            Step::SetFeatures {
                node: "w-0".into(),
                active: features.clone(),
                features
            },
        ]
    );
}

#[test]
fn a_topology_and_features_that_nobody_wrote_are_left_alone() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
    edit(&mut observed.slurm, "w-0", |node| {
        node.topology = "default:s0".into();
        node.features = vec!["gpu".into()];
        node.active_features = vec![];
    });
    observed
        .machines
        .insert("machine-0".into(), MachineFacts::default());
    assert_eq!(plan(&observed).steps, []);
}

fn machine(name: &str, fit: Fit) -> (String, MachineFacts) {
    let facts = MachineFacts {
        fit,
        hostname: name.to_owned(),
        ..MachineFacts::default()
    };
    (name.to_owned(), facts)
}

#[test]
fn a_worker_goes_back_to_its_machine_while_that_fits() {
    let mut set = set(3);
    set.pins = [(0, "a".to_owned()), (1, "b".to_owned()), (2, "gone".to_owned())].into();
    let mut observed = observed(set, vec![], slurm(&[]));
    observed.machines = [machine("a", Fit::Stay), machine("b", Fit::No)].into();
    let made: Vec<Option<String>> = plan(&observed)
        .steps
        .into_iter()
        .map(|step| match step {
            Step::Create { machine, .. } => machine,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(made, [Some("a".to_owned()), None, None]);
}

#[test]
fn a_worker_that_waits_for_a_machine_that_is_gone_is_made_anew_elsewhere() {
    let mut waiting = pod(0);
    waiting.started = false;
    waiting.phase = Phase::Pending;
    waiting.ready_since = None;
    waiting.machine = None;
    waiting.target = Some("gone".into());
    let mut observed = observed(set(1), vec![waiting], slurm(&[]));
    assert_eq!(deletes(&plan(&observed)), [&Step::Discard { pod: id(0) }]);
    observed.machines = [machine("gone", Fit::Stay)].into();
    assert_eq!(plan(&observed), Plan::default(), "it is back");
}

#[test]
fn workers_that_slurm_does_not_know_are_started_anew_a_few_at_a_time() {
    let pods = (0..8).map(pod).collect();
    // Five of eight are known, so that nothing speaks for a lost state.
    let states = ["IDLE", "IDLE", "IDLE", "IDLE", "IDLE", "", "", ""];
    let plan = plan(&observed(set(8), pods, slurm(&states)));
    let marked = plan
        .steps
        .iter()
        .filter(|step| matches!(step, Step::Intend { intent, .. } if intent.cause == Cause::Unregistered))
        .count();
    assert_eq!(marked, 1);
}

#[test]
fn a_claim_goes_with_its_worker_only_when_that_leaves_for_good_and_the_user_wants_it() {
    let mut leaving = pod(1);
    leaving.claims = vec![ClaimFacts {
        name: "scratch-w-1".into(),
        owner: ClaimOwner::Nobody,
        foreign: false,
    }];
    let mut set = set(1);
    set.claim_retention.when_scaled = keelson_api::controller::ClaimPolicy::Delete;
    let observed = observed(set, vec![pod(0), leaving], slurm(&["IDLE", "IDLE"]));
    let plan = plan(&observed);
    let owned = Step::OwnClaim {
        pod: id(1),
        claim: "scratch-w-1".into(),
        owner: ClaimOwner::Pod(id(1)),
    };
    assert!(plan.steps.contains(&owned), "{:?}", plan.steps);
    assert_eq!(
        deletes(&plan),
        [] as [&Step; 0],
        "its owner is settled before it goes"
    );
}

#[test]
fn a_pod_that_nobody_is_in_charge_of_is_taken_over_as_it_is() {
    let mut orphan = pod(0);
    orphan.orphan = true;
    let plan = plan(&observed(set(1), vec![orphan], slurm(&["MIXED"])));
    assert_eq!(plan.steps, [Step::Adopt { pod: id(0) }]);
}

#[test]
fn a_machine_that_takes_no_new_worker_counts_only_while_one_is_there() {
    let mut set = set(0);
    set.mode = ScalingMode::DaemonSet;
    let mut there = pod(0);
    there.mode = ScalingMode::DaemonSet;
    there.ordinal = None;
    there.target = Some("cordoned".into());
    let mut observed = observed(set, vec![there], slurm(&["IDLE"]));
    observed.machines = [
        machine("control-plane", Fit::Stay),
        machine("cordoned", Fit::Stay),
        machine("free", Fit::Run),
    ]
    .into();
    assert_eq!(observed.desired(), 2);
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

    // Somebody else's maintenance is no window of ours.
    edit(&mut facts, "w-0", |node| node.reservation = "other".into());
    assert_eq!(replaced(&plan(&observed(set, pods, facts))), ["w-1"]);
}
