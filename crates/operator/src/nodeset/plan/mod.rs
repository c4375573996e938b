//! Plans the next steps for the workers of a NodeSet. Pure, total, and independent of the order of its input.
//!
//! Invariants:
//! - a worker that may have jobs is removed only if Slurm, queried after the decision, reports it as drained and idle,
//!   or reports that it does not know the node while it knows the rest of the fleet;
//! - while Slurm does not answer, the plan waits;
//! - no step makes an available worker unavailable once the budget is used up;
//! - a drain that someone else set is never undone.

mod drain;
mod leftovers;
mod membership;
mod node_attributes;
mod order;
mod remove;
mod replace;

use std::{cell::OnceCell, collections::HashSet, time::Duration};

use jiff::Timestamp;
use keelson_api::nodeset::ScalingMode;

pub use self::{
    leftovers::due as leftovers, leftovers::of as records_of_the_gone, membership::name_conflicts,
    remove::serves,
};
use super::{
    claims,
    facts::{Cause, ClaimOwner, Intent, Leaving, Observed, Plan, PodFacts, SetFacts, Step, Why},
};
use crate::slurm::facts::{NodeName, Slurm, SlurmNode};

/// The maximum number of pods that one plan creates, and of informational steps in it. The next plan continues after
/// that.
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
        // A NodeSet that is being deleted adopts no pods: the garbage collector would remove the owner reference again.
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

/// Returns the plan while no changes may be made: it only protects workers from being deleted together with their
/// NodeSet.
pub fn hold(observed: &Observed) -> Plan {
    let mut draft = Draft::new(observed);
    if observed.set.leaving == Leaving::No {
        draft.adoptions();
    }
    draft.plan
}

/// Returns true if a decision depends on jobs, so the job list has to be read.
pub fn needs_jobs(observed: &Observed) -> bool {
    let Observed { set, pods, slurm, .. } = observed;
    let surplus = set.mode == ScalingMode::StatefulSet && pods.len() > observed.desired();
    let leaves = |pod: &PodFacts| pod.intent.is_some() || pod.revision != set.revision;
    // A drained worker loses its eviction protection once it has no jobs, whatever the reason of the drain.
    let drains = |pod: &PodFacts| set.protect && slurm.node(&pod.node).is_some_and(SlurmNode::draining);
    set.leaving != Leaving::No
        || surplus
        || !set.records.is_empty()
        || pods.iter().any(|pod| leaves(pod) || drains(pod))
        || leftovers::due(observed).any(|(_, node)| !node.outdated)
}

/// Returns the nodes whose next state decides something: those of workers that are to be removed, of workers that lose
/// their protection once they are drained, and of workers that are about to register.
pub fn awaited<'a>(observed: &'a Observed, plan: &'a Plan) -> impl Iterator<Item = NodeName> + 'a {
    let leave = plan.waits.iter().filter(|wait| depends_on_node(&wait.why));
    let stay = observed.pods.iter().filter(|pod| {
        let node = observed.slurm.node(&pod.node);
        let drains = node.is_some_and(|node| node.draining() && !node.proven_drained());
        // A record that stays when a worker is replaced shows the previous one until the next registers.
        let registers = pod.may_register(observed.now) && !node.is_some_and(|node| serves(pod, node));
        (pod.protected && drains) || registers
    });
    let leave = leave.map(|wait| &wait.node);
    leave.chain(stay.map(|pod| &pod.node)).cloned()
}

/// Returns true if a change of the worker's node may end the wait.
fn depends_on_node(why: &Why) -> bool {
    match why {
        Why::Reading
        | Why::Jobs { .. }
        | Why::Starting
        | Why::CannotRequeue { .. }
        | Why::Reserved { .. }
        | Why::SuspectLoss => true,
        Why::SlurmUnknown | Why::JobsUnread { .. } | Why::Wanted { .. } => false,
    }
}

/// A pod and its intent, including the decisions of this plan.
struct Worker<'a> {
    facts: &'a PodFacts,
    /// Its node as Slurm last reported it.
    node: Option<&'a SlurmNode>,
    intent: Option<Intent>,
}

impl Worker<'_> {
    fn intend(&mut self, cause: Cause, now: Timestamp) {
        // An existing intent keeps its time, because its drain is already in progress.
        let standing = self.intent.as_ref().or(self.facts.intent.as_ref());
        let since = standing.map_or(now, |intent| intent.since);
        self.intent = Some(Intent { cause, since });
    }

    fn leaves_for_good(&self) -> bool {
        self.intent.as_ref().is_some_and(|intent| intent.cause.for_good())
    }
}

/// A plan under construction.
struct Draft<'a> {
    set: &'a SetFacts,
    observed: &'a Observed,
    /// Pods that are not terminating, sorted by name.
    workers: Vec<Worker<'a>>,
    terminating: Vec<&'a PodFacts>,
    /// Whether Slurm's list lacks most workers, see `suspects_loss`.
    short_list: OnceCell<bool>,
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
                node: observed.slurm.node(&facts.node),
                intent: facts.intent.clone(),
            })
            .collect();
        Self {
            set: &observed.set,
            observed,
            workers,
            terminating,
            short_list: OnceCell::new(),
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

    /// Drops conditions of pods that this plan removes, and limits the other informational steps, so that urgent steps of
    /// the next plan do not wait for them.
    fn put_off(&mut self) {
        let removed = |step: &Step| match step {
            Step::Discard { pod }
            | Step::Force { pod }
            | Step::Replace { pod, .. }
            | Step::Retire { pod, .. } => Some(pod.uid.clone()),
            _ => None,
        };
        let removed: HashSet<String> = self.plan.steps.iter().filter_map(removed).collect();
        let mut told = 0;
        self.plan.steps.retain(|step| match step {
            Step::Conditions { pod, .. }
            | Step::Protect {
                pod,
                protected: false,
            } => {
                let is_told = !(matches!(step, Step::Conditions { .. }) && removed.contains(&pod.uid));
                told += usize::from(is_told);
                is_told && told <= AT_A_TIME
            }
            _ => true,
        });
        if told > AT_A_TIME {
            self.plan.look_within(Duration::ZERO);
        }
    }

    /// Sets the owners of claims before any worker is removed.
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

    /// Writes intents to the pods before any call to Slurm.
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
mod removal_calls;
#[cfg(test)]
pub(super) mod tests;
