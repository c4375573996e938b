use std::collections::BTreeMap;
use std::time::Duration;

use keelson_api::nodeset::ScalingMode;
use pretty_assertions::assert_eq;

use super::super::name_conflicts;
use super::{at, create, deletes, id, observed, plan, pod, set, slurm, with_intent};
use crate::nodeset::facts::{
    Cause, ClaimFacts, ClaimOwner, Fit, Intent, KubeNodeFacts, Leaving, Paused, Phase, Plan, PodFacts, Start,
    Step,
};
use crate::slurm::facts::Slurm;

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
fn a_great_many_are_not_made_without_looking_again() {
    let many = plan(&observed(set(100_000), vec![], slurm(&[])));
    assert_eq!(many.steps.len(), 200);
    assert_eq!(many.requeue_after, Some(Duration::ZERO));
    let few = plan(&observed(set(200), vec![], slurm(&[])));
    assert_eq!((few.steps.len(), few.requeue_after), (200, None));
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
fn a_worker_that_just_registered_is_not_taken_for_idle() {
    // Slurm was last read before the worker registered; it may have a job by now.
    let steps = plan(&observed(set(1), vec![pod(0), pod(1)], slurm(&["IDLE", ""]))).steps;
    let leaves = |pod| Step::Intend {
        pod,
        intent: Intent {
            cause: Cause::ScaleIn,
            since: at(0),
        },
    };
    assert!(
        steps.contains(&leaves(id(0))) && !steps.contains(&leaves(id(1))),
        "{steps:?}"
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
    set.paused = Some(Paused::Spec);
    let pods = vec![with_intent(pod(0), Cause::ScaleIn, at(-10))];
    assert_eq!(
        plan(&observed(set, pods, slurm(&["IDLE+DRAIN"]))),
        Plan::default()
    );
}

fn kube_node(name: &str, fit: Fit) -> (String, KubeNodeFacts) {
    let facts = KubeNodeFacts {
        fit,
        hostname: name.to_owned(),
        ..KubeNodeFacts::default()
    };
    (name.to_owned(), facts)
}

#[test]
fn a_worker_goes_back_to_its_machine_while_that_fits() {
    let mut set = set(3);
    set.pins = [(0, "a".to_owned()), (1, "b".to_owned()), (2, "gone".to_owned())].into();
    let mut observed = observed(set, vec![], slurm(&[]));
    observed.kube_nodes = [kube_node("a", Fit::Stay), kube_node("b", Fit::No)].into();
    let made: Vec<Option<String>> = plan(&observed)
        .steps
        .into_iter()
        .map(|step| match step {
            Step::Create { kube_node, .. } => kube_node,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(made, [Some("a".to_owned()), None, None]);
}

#[test]
fn a_worker_that_waits_for_a_machine_that_is_gone_is_made_anew_elsewhere() {
    let mut waiting = pod(0);
    waiting.start = Start::Never;
    waiting.phase = Phase::Pending;
    waiting.ready_since = None;
    waiting.kube_node = None;
    waiting.target = Some("gone".into());
    let mut observed = observed(set(1), vec![waiting], slurm(&[]));
    assert_eq!(deletes(&plan(&observed)), [&Step::Discard { pod: id(0) }]);
    observed.kube_nodes = [kube_node("gone", Fit::Stay)].into();
    assert_eq!(plan(&observed), Plan::default(), "it is back");
}

#[test]
fn workers_that_slurm_does_not_know_are_started_anew_a_few_at_a_time() {
    let pods = (0..8).map(pod).collect();
    // Slurm knows five of eight, so it has probably not lost its state.
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
    observed.kube_nodes = [
        kube_node("control-plane", Fit::Stay),
        kube_node("cordoned", Fit::Stay),
        kube_node("free", Fit::Run),
    ]
    .into();
    assert_eq!(observed.desired(), 2);
}

#[test]
fn machines_that_give_one_name_get_one_worker_and_are_told_of() {
    let mut set = set(0);
    set.mode = ScalingMode::DaemonSet;
    let mut facts = observed(set, vec![], slurm(&[]));
    for name in ["a", "b", "c"] {
        let hostname = if name == "c" { "c" } else { "same" };
        let kube_node = KubeNodeFacts {
            hostname: hostname.into(),
            ..KubeNodeFacts::default()
        };
        facts.kube_nodes.insert(name.into(), kube_node);
    }
    let made = plan(&facts).steps.len();
    assert_eq!(made, 2);
    assert_eq!(name_conflicts(&facts), BTreeMap::from([("same", vec!["a", "b"])]));
    // A Kubernetes node that cannot have a worker does not count; otherwise no update would ever have budget.
    assert_eq!(facts.desired(), 2);
}

#[test]
fn a_machine_that_another_nodeset_has_a_worker_on_gets_no_second_one() {
    let mut set = set(0);
    set.mode = ScalingMode::DaemonSet;
    let mut facts = observed(set, vec![], slurm(&[]));
    facts.kube_nodes = [kube_node("a", Fit::Run), kube_node("b", Fit::Run)].into();
    facts.taken.insert("a".into(), "slurm-worker-gpu-x".into());
    let expected = Step::CreateOn {
        kube_node: "b".into(),
        hostname: "b".into(),
    };
    assert_eq!(plan(&facts).steps, [expected]);
    assert_eq!(facts.desired(), 1);
}
