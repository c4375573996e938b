//! Decides what happens next to the workers of a NodeSet. Pure, total, and the same for any order of its input.
//!
//! The rules that must never be broken:
//! - a worker in which a job may run is removed only when Slurm, asked after the decision, says drained and idle, or says
//!   that it does not know the node while it knows the rest of the fleet;
//! - no answer from Slurm means wait;
//! - no step takes an available worker out while as many as the budget allows are out already;
//! - a drain that somebody else made is never undone.

mod drain;
mod leftovers;
mod membership;
mod node_attributes;
mod order;
mod remove;
mod replace;

use std::time::Duration;

use jiff::Timestamp;
use keelson_api::nodeset::ScalingMode;

pub use self::{
    leftovers::due as leftovers, leftovers::of as records_of_the_gone, membership::name_conflicts,
    remove::serves,
};
use super::{
    claims,
    facts::{Cause, ClaimOwner, Intent, Leaving, Observed, Plan, PodFacts, SetFacts, Step},
};
use crate::slurm::facts::{Slurm, SlurmNode};

/// Calls to the API server that one plan asks for of what could go on for long. Then everything is looked at again.
const AT_A_TIME: usize = 200;

pub fn plan(observed: &Observed) -> Plan {
    if observed.set.leaving == Leaving::Orphan {
        return Plan::default();
    }
    if observed.set.paused.is_some() {
        return hold(observed);
    }
    let mut draft = Draft::new(observed);
    match observed.set.leaving {
        Leaving::No => {
            draft.choose_leavers();
            draft.choose_replacements();
            draft.create();
            draft.adoptions();
        }
        // Who is on the way out adopts nobody: the garbage collector would take the reference away again.
        Leaving::Drain | Leaving::Immediately | Leaving::Orphan => draft.intend_all(Cause::Deletion),
    }
    draft.intentions();
    draft.claims();
    draft.drains();
    draft.removals();
    draft.overdue_jobs();
    draft.leftovers();
    draft.deadlines();
    draft.protection();
    draft.descriptions();
    draft.put_off();
    draft.plan
}

/// What is done while nothing may be changed: workers are kept from being deleted together with their NodeSet.
pub fn hold(observed: &Observed) -> Plan {
    let mut draft = Draft::new(observed);
    if observed.set.leaving == Leaving::No {
        draft.adoptions();
    }
    draft.plan
}

/// Whether a decision depends on what jobs do, so that their list has to be read.
pub fn needs_jobs(observed: &Observed) -> bool {
    let Observed { set, pods, slurm, .. } = observed;
    let surplus = set.mode == ScalingMode::StatefulSet && pods.len() > observed.desired();
    let leaves = |pod: &PodFacts| pod.intent.is_some() || pod.revision != set.revision;
    // Whoever is drained for whatever reason loses its protection when no job is left.
    let drains = |pod: &PodFacts| set.protect && slurm.node(&pod.node).is_some_and(SlurmNode::draining);
    set.leaving != Leaving::No
        || surplus
        || !set.records.is_empty()
        || pods.iter().any(|pod| leaves(pod) || drains(pod))
        || leftovers::due(observed).next().is_some()
}

/// A pod and what is intended with it, after this plan's own decisions.
struct Worker<'a> {
    facts: &'a PodFacts,
    intent: Option<Intent>,
}

impl Worker<'_> {
    fn intend(&mut self, cause: Cause, now: Timestamp) {
        // An older intent keeps its time: the drain that goes with it is already under way.
        let standing = self.intent.as_ref().or(self.facts.intent.as_ref());
        let since = standing.map_or(now, |intent| intent.since);
        self.intent = Some(Intent { cause, since });
    }

    fn leaves_for_good(&self) -> bool {
        self.intent.as_ref().is_some_and(|intent| intent.cause.for_good())
    }
}

/// A plan in the making.
struct Draft<'a> {
    set: &'a SetFacts,
    observed: &'a Observed,
    /// Not terminating, by name.
    workers: Vec<Worker<'a>>,
    terminating: Vec<&'a PodFacts>,
    plan: Plan,
}

impl<'a> Draft<'a> {
    fn new(observed: &'a Observed) -> Self {
        let mut pods: Vec<&PodFacts> = observed.pods.iter().collect();
        pods.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
        let (terminating, alive): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| pod.terminating);
        let workers = alive
            .into_iter()
            .map(|facts| Worker {
                facts,
                intent: facts.intent.clone(),
            })
            .collect();
        Self {
            set: &observed.set,
            observed,
            workers,
            terminating,
            plan: Plan::default(),
        }
    }

    fn slurm(&self) -> &'a Slurm {
        &self.observed.slurm
    }

    fn intend_all(&mut self, cause: Cause) {
        for worker in &mut self.workers {
            worker.intend(cause, self.observed.now);
        }
    }

    fn adoptions(&mut self) {
        let loose = |worker: &&Worker<'_>| worker.facts.orphan || !worker.facts.anchored;
        let steps = self.workers.iter().filter(loose).map(|worker| Step::Adopt {
            pod: worker.facts.id(),
        });
        self.plan.steps.extend(steps);
    }

    /// What only tells others how things are goes in portions: whatever became urgent meanwhile goes before the rest.
    fn put_off(&mut self) {
        let mut told = 0;
        self.plan.steps.retain(|step| {
            let tells = matches!(
                step,
                Step::Conditions { .. } | Step::Protect { protected: false, .. }
            );
            told += usize::from(tells);
            !tells || told <= AT_A_TIME
        });
        if told > AT_A_TIME {
            self.plan.look_within(Duration::ZERO);
        }
    }

    /// With whom claims go is settled before anybody goes.
    fn claims(&mut self) {
        for worker in &self.workers {
            let pod = worker.facts.id();
            let leaves = worker.intent.as_ref().map(|intent| intent.cause);
            for claim in &worker.facts.claims {
                let wanted = if claim.foreign {
                    ClaimOwner::Nobody
                } else {
                    claims::owner(self.set.claim_retention, leaves, &pod)
                };
                if claim.owner != wanted {
                    self.plan.steps.push(Step::OwnClaim {
                        pod: pod.clone(),
                        claim: claim.name.clone(),
                        owner: wanted,
                    });
                }
            }
        }
    }

    /// What is intended is written on the pods before Slurm hears of it.
    fn intentions(&mut self) {
        for worker in self
            .workers
            .iter()
            .filter(|worker| worker.intent != worker.facts.intent)
        {
            let pod = worker.facts.id();
            self.plan.steps.push(match &worker.intent {
                Some(intent) => Step::Intend {
                    pod,
                    intent: intent.clone(),
                },
                None => Step::Forget { pod },
            });
        }
    }
}

#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod model;
#[cfg(test)]
mod promises;
#[cfg(test)]
mod properties;
#[cfg(test)]
pub(super) mod tests;
