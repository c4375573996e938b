//! Checks invariants that every plan must satisfy for any observation. They can be understood without knowing how plans
//! are made.

use std::collections::{BTreeMap, BTreeSet};

use keelson_api::nodeset::{DrainTimeoutAction, ScalingMode};

use super::plan as plan_of;
use crate::{
    nodeset::facts::{Cause, Intent, NextRecord, Observed, Phase, Plan, PodFacts, Start, Step, Strategy},
    slurm::facts::{Slurm, SlurmNode},
};

/// Panics with a message if an invariant is violated.
pub fn check(observed: &Observed, plan: &Plan) {
    only_our_drains_are_undone(observed, plan);
    protection_ends_with_the_last_job(observed, plan);
    records_that_jobs_name_stay(observed, plan);
    jobs_are_ended_as_the_user_wrote(observed, plan);
    a_record_that_stays_is_noted(observed, plan);
    nobody_goes_without_proof(observed, plan);
    the_budget_holds(observed, plan);
    places_are_taken_once(observed, plan);
    the_busiest_stay(observed, plan);
    if observed.set.paused.is_some() {
        let adopts = |step: &Step| matches!(step, Step::Adopt { .. });
        assert!(plan.steps.iter().all(adopts), "paused means hands off");
    }
    let mut shuffled = observed.clone();
    shuffled.pods.reverse();
    assert_eq!(
        plan_of(&shuffled),
        *plan,
        "the order of the pods changed the plan"
    );
}

fn only_our_drains_are_undone(observed: &Observed, plan: &Plan) {
    for step in &plan.steps {
        if let Step::Undrain { node } | Step::Resume { node } = step {
            let silent = matches!(step, Step::Resume { .. })
                && observed.slurm.node(node).is_some_and(SlurmNode::was_silent);
            let ours = silent || observed.slurm.node(node).is_some_and(SlurmNode::reason_is_ours);
            assert!(ours, "the drain of {node} is not ours to undo");
        }
    }
}

fn protection_ends_with_the_last_job(observed: &Observed, plan: &Plan) {
    for step in &plan.steps {
        if let Step::Protect {
            pod: id,
            protected: false,
        } = step
        {
            let pod = observed.pods.iter().find(|pod| pod.id() == *id).unwrap();
            let node = observed.slurm.node(&pod.node).unwrap();
            let no_job = node.work.as_ref().is_some_and(|work| work.jobs.is_empty());
            assert!(node.drained() && no_job, "{} lost its protection", pod.name);
        }
    }
}

fn records_that_jobs_name_stay(observed: &Observed, plan: &Plan) {
    for step in &plan.steps {
        if let Step::Retire { node, .. } | Step::Prune { node } = step
            && let Some(known) = observed.slurm.node(node)
        {
            let unwanted = known.work.as_ref().is_some_and(|work| work.wanted_by.is_empty());
            assert!(unwanted, "a pending job names {node}");
        }
        if let Step::Prune { node } = step {
            assert!(
                observed.pods.iter().all(|pod| pod.node != *node),
                "{node} has a worker"
            );
        }
    }
}

fn jobs_are_ended_as_the_user_wrote(observed: &Observed, plan: &Plan) {
    for step in &plan.steps {
        let (action, addresses) = match step {
            Step::RequeueJobs { addresses } => (DrainTimeoutAction::Requeue, addresses),
            Step::CancelJobs { addresses } => (DrainTimeoutAction::Cancel, addresses),
            _ => continue,
        };
        assert_eq!(observed.set.on_drain_timeout, action);
        let once: BTreeSet<&String> = addresses.iter().collect();
        assert_eq!(once.len(), addresses.len(), "a job is asked once: {addresses:?}");
    }
}

/// Checks that the status lists a record that is kept. Otherwise the record would never be renewed.
fn a_record_that_stays_is_noted(observed: &Observed, plan: &Plan) {
    for step in &plan.steps {
        if let Step::Replace {
            node,
            record: NextRecord::Kept { .. },
            ..
        } = step
        {
            assert!(observed.set.records.contains_key(node), "{node} is forgotten");
        }
    }
}

fn nobody_goes_without_proof(observed: &Observed, plan: &Plan) {
    for step in &plan.steps {
        let (Step::Discard { pod: id } | Step::Replace { pod: id, .. } | Step::Retire { pod: id, .. }) = step
        else {
            continue;
        };
        let pod = observed.pods.iter().find(|pod| pod.id() == *id).unwrap();
        let over = pod.is_empty();
        let since = pod.intent.as_ref().map(|intent| intent.since);
        // Only a read after the decision was written proves anything about the node and its jobs.
        let later = |node: &SlurmNode| {
            let no_job = node.work.as_ref().is_some_and(|work| work.jobs.is_empty());
            node.drained() && no_job && since.is_some_and(|since| node.read_at > since)
        };
        let unheld = since.is_some_and(|since| observed.slurm.nobody_holds(&pod.node, since));
        let proven = observed.slurm.is_known()
            && match observed.slurm.node(&pod.node) {
                Some(node) => later(node),
                // Nothing runs in the pod and it never registered, so there is nothing that Slurm could have forgotten.
                None => unheld && (knows_anybody(observed) || nothing_runs_in(pod)),
            };
        assert!(over || proven, "{} was to go without proof", pod.name);
    }
}

fn nothing_runs_in(pod: &PodFacts) -> bool {
    pod.start != Start::Perhaps && !pod.running && pod.conditions.is_empty()
}

/// Returns true if Slurm knows at least one ready worker. Otherwise it may have lost its state, and the absence of a
/// worker from its node list proves nothing.
fn knows_anybody(observed: &Observed) -> bool {
    let at_work = |pod: &&PodFacts| !pod.terminating && pod.ready_since.is_some();
    let known = |pod: &PodFacts| observed.slurm.node(&pod.node).is_some();
    observed.pods.iter().filter(at_work).any(known)
}

/// Returns true if the worker could accept a job now and stays: it has no intent, or this plan removes the intent.
fn stays_available(observed: &Observed, plan: &Plan, pod: &PodFacts) -> bool {
    let stays = PodFacts {
        intent: None,
        ..pod.clone()
    };
    let forgotten = plan.steps.contains(&Step::Forget { pod: pod.id() });
    is_available(observed, if forgotten { &stays } else { pod })
}

fn is_available(observed: &Observed, pod: &PodFacts) -> bool {
    let usable = match &observed.slurm {
        Slurm::Unknown { .. } => true,
        Slurm::Known { nodes, .. } => nodes.get(&pod.node).is_some_and(SlurmNode::usable),
    };
    let works = pod.phase == Phase::Running && pod.ready_since.is_some() && usable;
    works && pod.intent.is_none() && !pod.terminating
}

/// Checks that the available workers marked in this plan, plus those already out of service, stay within the budget.
/// While Slurm does not answer, it is unknown how many are out of service, so no available worker may be marked.
fn the_budget_holds(observed: &Observed, plan: &Plan) {
    let max_unavailable = match observed.set.strategy {
        Strategy::Rolling { max_unavailable, .. } => usize::try_from(max_unavailable.max(1)).unwrap(),
        Strategy::OnDelete => 1,
        // In a maintenance window the whole fleet is out of service.
        Strategy::Scheduled { .. } => usize::MAX,
    };
    let available: Vec<&PodFacts> = observed
        .pods
        .iter()
        .filter(|pod| stays_available(observed, plan, pod))
        .collect();
    let taken = intended(plan)
        .filter(|(_, cause)| matches!(cause, Cause::Rollout | Cause::ModeSwitch | Cause::Unregistered))
        .filter(|(name, _)| available.iter().any(|pod| pod.name == *name))
        .count();
    let out = observed.desired().saturating_sub(available.len());
    assert!(
        taken == 0 || (observed.slurm.is_known() && out + taken <= max_unavailable),
        "budget exceeded: {out} + {taken} > {max_unavailable}"
    );
    // Workers that are only briefly out of service must not all be marked either.
    let replaced = |cause: &Cause| matches!(cause, Cause::Rollout | Cause::ModeSwitch | Cause::Unregistered);
    let told: BTreeMap<&str, Cause> = intended(plan).filter(|(_, cause)| replaced(cause)).collect();
    let newly = |pod: &&PodFacts| {
        let standing = pod.intent.as_ref().is_some_and(|intent| replaced(&intent.cause));
        told.contains_key(pod.name.as_str()) && !standing && !pod.is_empty()
    };
    let forgotten = |pod: &PodFacts| plan.steps.contains(&Step::Forget { pod: pod.id() });
    let going = observed.pods.iter().filter(|pod| {
        let standing = pod.intent.as_ref().is_some_and(|intent| replaced(&intent.cause));
        let other = intended(plan).any(|(name, cause)| name == pod.name && !replaced(&cause));
        let stays_told = standing && !other && !forgotten(pod) && !pod.terminating;
        stays_told || told.contains_key(pod.name.as_str())
    });
    let going = going.filter(|pod| !pod.is_empty()).count();
    assert!(
        !observed.pods.iter().any(|pod| newly(&pod)) || going <= max_unavailable,
        "{going} are told to go, {max_unavailable} may"
    );
}

fn intended(plan: &Plan) -> impl Iterator<Item = (&str, Cause)> {
    plan.steps.iter().filter_map(|step| match step {
        Step::Intend {
            pod,
            intent: Intent { cause, .. },
        } => Some((pod.name.as_str(), *cause)),
        _ => None,
    })
}

fn places_are_taken_once(observed: &Observed, plan: &Plan) {
    let mut ordinals: BTreeSet<u32> = observed.pods.iter().filter_map(|pod| pod.ordinal).collect();
    let mut names: BTreeSet<&str> = observed.pods.iter().map(|pod| pod.node.0.as_str()).collect();
    let mut made = 0;
    for step in &plan.steps {
        match step {
            Step::Create { ordinal, .. } => {
                made += 1;
                assert!(ordinals.insert(*ordinal), "ordinal {ordinal} twice");
            }
            Step::CreateOn { hostname, .. } => {
                assert!(names.insert(hostname), "two workers called {hostname}");
            }
            _ => {}
        }
    }
    if observed.set.mode == ScalingMode::StatefulSet {
        let own = observed
            .pods
            .iter()
            .filter(|pod| pod.mode == ScalingMode::StatefulSet);
        let many = own.count();
        assert!(
            made == 0 || many + made <= observed.desired(),
            "more than asked for"
        );
    }
}

/// Checks that no busy worker is scaled in while an idle one, otherwise alike, stays.
fn the_busiest_stay(observed: &Observed, plan: &Plan) {
    let leaving: BTreeMap<&str, Cause> = intended(plan).collect();
    let busy = |pod: &PodFacts| observed.slurm.node(&pod.node).is_some_and(SlurmNode::busy);
    let alike = |pod: &&PodFacts| {
        pod.mode == ScalingMode::StatefulSet && is_available(observed, pod) && pod.kube_node.is_some()
    };
    let taken = |pod: &PodFacts| leaving.get(pod.name.as_str()) == Some(&Cause::ScaleIn);
    let an_idle_one_stays = observed
        .pods
        .iter()
        .filter(alike)
        .any(|pod| !busy(pod) && !leaving.contains_key(pod.name.as_str()));
    let a_busy_one_goes = observed
        .pods
        .iter()
        .filter(alike)
        .any(|pod| busy(pod) && taken(pod));
    assert!(
        !(an_idle_one_stays && a_busy_one_goes),
        "a busy worker was told to go while an idle one stays"
    );
}
