//! What holds for every plan on any observation: the promises that a reader can check without knowing how plans are made.

use std::collections::{BTreeMap, BTreeSet};

use keelson_api::nodeset::ScalingMode;

use super::plan as plan_of;
use crate::{
    nodeset::facts::{Cause, Intent, NextRecord, Observed, Phase, Plan, PodFacts, Step, Strategy},
    slurm::facts::{Slurm, SlurmNode},
};

/// Panics with a sentence when a promise is broken.
pub fn check(observed: &Observed, plan: &Plan) {
    only_our_drains_are_undone(observed, plan);
    a_record_that_stays_is_noted(observed, plan);
    nobody_goes_without_proof(observed, plan);
    the_budget_holds(observed, plan);
    places_are_taken_once(observed, plan);
    the_busiest_stay(observed, plan);
    if observed.set.paused {
        assert_eq!(plan.steps, [], "paused means hands off");
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
            let ours = observed.slurm.node(node).is_some_and(SlurmNode::reason_is_ours);
            assert!(ours, "the drain of {node} is not ours to undo");
        }
    }
}

/// Else it would never be renewed.
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
        // Only what was asked after the decision was written down says anything of it.
        let later = |node: &SlurmNode| {
            let since = pod.intent.as_ref().map(|intent| intent.since);
            node.drained() && since.is_some_and(|since| node.read_at > since)
        };
        let proven = observed.slurm.is_known()
            && match observed.slurm.node(&pod.node) {
                Some(node) => later(node),
                // Nothing runs in it, and it never registered: there is nothing that Slurm could have forgotten.
                None => pod.intent.is_some() && (knows_anybody(observed) || nothing_runs_in(pod)),
            };
        assert!(over || proven, "{} was to go without proof", pod.name);
    }
}

fn nothing_runs_in(pod: &PodFacts) -> bool {
    !pod.running && pod.conditions.is_empty()
}

/// A Slurm that knows none of those at work has lost its state, and its silence about one of them proves nothing.
fn knows_anybody(observed: &Observed) -> bool {
    let at_work = |pod: &&PodFacts| !pod.terminating && pod.ready_since.is_some();
    let known = |pod: &PodFacts| observed.slurm.node(&pod.node).is_some();
    observed.pods.iter().filter(at_work).any(known)
}

fn is_available(observed: &Observed, pod: &PodFacts) -> bool {
    let usable = match &observed.slurm {
        Slurm::Unknown { .. } => true,
        Slurm::Known { nodes, .. } => nodes.get(&pod.node).is_some_and(SlurmNode::usable),
    };
    let works = pod.phase == Phase::Running && pod.ready_since.is_some() && usable;
    works && pod.intent.is_none() && !pod.terminating
}

/// What is available and is told to go in this plan, on top of what is out already. While Slurm is silent, nobody knows how many
/// those are.
fn the_budget_holds(observed: &Observed, plan: &Plan) {
    let max_unavailable = match observed.set.strategy {
        Strategy::Rolling { max_unavailable, .. } => usize::try_from(max_unavailable.max(1)).unwrap(),
        Strategy::OnDelete => 1,
        // In its window the whole fleet is out of service.
        Strategy::Scheduled { .. } => usize::MAX,
    };
    let available: Vec<&PodFacts> = observed
        .pods
        .iter()
        .filter(|pod| is_available(observed, pod))
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

/// Of workers that differ only in their jobs, the one whose jobs last longest is not the one to go.
fn the_busiest_stay(observed: &Observed, plan: &Plan) {
    let leaving: BTreeMap<&str, Cause> = intended(plan).collect();
    let busy = |pod: &PodFacts| observed.slurm.node(&pod.node).is_some_and(SlurmNode::busy);
    let alike = |pod: &&PodFacts| {
        pod.mode == ScalingMode::StatefulSet && is_available(observed, pod) && pod.machine.is_some()
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
