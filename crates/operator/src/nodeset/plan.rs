//! Decides what happens next to the workers of a NodeSet. Pure, total, and the same for any order of its input.
//!
//! The rules that must never be broken:
//! - a worker in which a job may run is removed only when Slurm, asked after the decision, says drained and idle, or says
//!   that it does not know the node while it knows the rest of the fleet;
//! - no answer from Slurm means wait;
//! - no step takes an available worker out while as many as the budget allows are out already;
//! - a drain that somebody else made is never undone.

use std::collections::BTreeSet;

use jiff::Timestamp;
use keelson_api::{nodeset::ScalingMode, well_known::slurm::REASON_PREFIX};

use super::{
    facts::{Cause, Intent, Leaving, Observed, Phase, Plan, PodFacts, SetFacts, Step, Strategy, Wait, Why},
    order::rank,
};
use crate::slurm::facts::{Slurm, SlurmNode};

/// A ready worker that Slurm does not know gets this long to register before it is started anew.
const REGISTRATION_GRACE: jiff::SignedDuration = jiff::SignedDuration::from_mins(5);

pub fn plan(observed: &Observed) -> Plan {
    if observed.set.paused {
        return Plan::default();
    }
    let mut draft = Draft::new(observed);
    match observed.set.leaving {
        Leaving::No => {
            draft.choose_leavers();
            draft.choose_replacements();
            draft.create();
        }
        Leaving::Drain | Leaving::Immediately => draft.intend_all(Cause::Deletion),
    }
    draft.intentions();
    draft.drains();
    draft.removals();
    draft.protection();
    draft.plan
}

/// A pod and what is intended with it, after this plan's own decisions.
struct Worker<'a> {
    facts: &'a PodFacts,
    intent: Option<Intent>,
}

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

    fn intend(worker: &mut Worker<'_>, cause: Cause, now: Timestamp) {
        // An older intent keeps its time: the drain that goes with it is already under way.
        let since = worker.intent.as_ref().map_or(now, |intent| intent.since);
        worker.intent = Some(Intent { cause, since });
    }

    fn intend_all(&mut self, cause: Cause) {
        for worker in &mut self.workers {
            Self::intend(worker, cause, self.observed.now);
        }
    }

    /// Surplus workers and those of the other mode leave; whoever is wanted again stays.
    fn choose_leavers(&mut self) {
        let now = self.observed.now;
        let mode = self.set.mode;
        for worker in self.workers.iter_mut().filter(|worker| worker.facts.mode != mode) {
            Self::intend(worker, Cause::ModeSwitch, now);
        }
        if mode != ScalingMode::StatefulSet {
            return;
        }
        let slurm = self.slurm();
        let mut own: Vec<&mut Worker<'_>> = self
            .workers
            .iter_mut()
            .filter(|worker| worker.facts.mode == mode)
            .collect();
        let surplus = own
            .len()
            .saturating_sub(usize::try_from(self.set.replicas).unwrap_or(usize::MAX));
        // Those that are leaving already come first, so that a busy afternoon does not move the drain around.
        own.sort_by_cached_key(|worker| {
            let leaving = worker
                .intent
                .as_ref()
                .is_some_and(|intent| intent.cause.for_good());
            (!leaving, rank(worker.facts, slurm))
        });
        for (position, worker) in own.into_iter().enumerate() {
            if position < surplus {
                Self::intend(worker, Cause::ScaleIn, now);
            } else if worker
                .intent
                .as_ref()
                .is_some_and(|intent| intent.cause.for_good())
            {
                worker.intent = None;
            }
        }
    }

    /// Workers of an older revision, and those that Slurm does not know, are replaced within the budget.
    fn choose_replacements(&mut self) {
        let now = self.observed.now;
        let set = self.set;
        for index in 0..self.workers.len() {
            let Some(worker) = self.workers.get(index) else {
                continue;
            };
            let wanted = self.replacement_cause(worker);
            let Some(worker) = self.workers.get_mut(index) else {
                continue;
            };
            let standing = worker.intent.as_ref().map(|intent| intent.cause);
            if wanted.is_none() && standing.is_some_and(|cause| !cause.for_good()) {
                worker.intent = None;
            }
        }
        let max_unavailable = match set.strategy {
            Strategy::Rolling { max_unavailable, .. } => max_unavailable.max(1),
            Strategy::OnDelete => 1,
        };
        let available = self
            .workers
            .iter()
            .filter(|worker| self.is_available(worker))
            .count();
        let out = usize::try_from(set.replicas)
            .unwrap_or(usize::MAX)
            .saturating_sub(available);
        let mut allowance = usize::try_from(max_unavailable)
            .unwrap_or(usize::MAX)
            .saturating_sub(out);

        let mut candidates: Vec<usize> = (0..self.workers.len())
            .filter(|index| {
                self.workers
                    .get(*index)
                    .is_some_and(|worker| worker.intent.is_none() && self.replacement_cause(worker).is_some())
            })
            .collect();
        candidates.sort_by_cached_key(|index| {
            self.workers
                .get(*index)
                .map(|worker| rank(worker.facts, self.slurm()))
        });
        for index in candidates {
            let Some(worker) = self.workers.get(index) else {
                continue;
            };
            let Some(cause) = self.replacement_cause(worker) else {
                continue;
            };
            // A worker that is out of service already can be replaced without making anything worse.
            if self.is_available(worker) {
                if allowance == 0 {
                    continue;
                }
                allowance -= 1;
            }
            if let Some(worker) = self.workers.get_mut(index) {
                Self::intend(worker, cause, now);
            }
        }
    }

    fn replacement_cause(&self, worker: &Worker<'_>) -> Option<Cause> {
        let pod = worker.facts;
        if pod.mode != self.set.mode
            || worker
                .intent
                .as_ref()
                .is_some_and(|intent| intent.cause.for_good())
        {
            return None;
        }
        match self.set.strategy {
            Strategy::Rolling { partition, .. }
                if pod.revision != self.set.revision
                    && pod.ordinal.is_none_or(|ordinal| ordinal >= partition) =>
            {
                return Some(Cause::Rollout);
            }
            Strategy::Rolling { .. } | Strategy::OnDelete => {}
        }
        let unknown = self.slurm().is_known() && self.slurm().node(&pod.node).is_none();
        let long_ready = pod
            .ready_since
            .is_some_and(|since| self.observed.now.duration_since(since) >= REGISTRATION_GRACE);
        (unknown && long_ready && !self.suspects_loss(pod)).then_some(Cause::Unregistered)
    }

    /// Could take a job now, as far as anybody knows, and is meant to stay.
    fn is_available(&self, worker: &Worker<'_>) -> bool {
        let pod = worker.facts;
        let min_ready =
            jiff::SignedDuration::try_from(self.set.min_ready).unwrap_or(jiff::SignedDuration::MAX);
        let ready = pod
            .ready_since
            .is_some_and(|since| self.observed.now.duration_since(since) >= min_ready);
        let usable = match self.slurm() {
            Slurm::Unknown { .. } => true,
            Slurm::Known { nodes, .. } => nodes.get(&pod.node).is_some_and(SlurmNode::usable),
        };
        pod.mode == self.set.mode && pod.phase == Phase::Running && ready && usable && worker.intent.is_none()
    }

    fn create(&mut self) {
        if self.set.mode != ScalingMode::StatefulSet {
            return;
        }
        // A dying pod keeps its place: the one that follows has the same name.
        let here = |pod: &PodFacts| pod.mode == ScalingMode::StatefulSet;
        let present = self.workers.iter().filter(|worker| here(worker.facts)).count()
            + self.terminating.iter().filter(|pod| here(pod)).count();
        let replicas = usize::try_from(self.set.replicas).unwrap_or(usize::MAX);
        let mut missing = replicas.saturating_sub(present);
        if let Some(limit) = self.set.startup_limit {
            let starting = self
                .workers
                .iter()
                .filter(|worker| worker.facts.ready_since.is_none())
                .count();
            missing = missing.min(
                usize::try_from(limit)
                    .unwrap_or(usize::MAX)
                    .saturating_sub(starting),
            );
        }
        let taken: BTreeSet<u32> = self.observed.pods.iter().filter_map(|pod| pod.ordinal).collect();
        let free = (0..u32::MAX).filter(|ordinal| !taken.contains(ordinal));
        self.plan
            .steps
            .extend(free.take(missing).map(|ordinal| Step::Create { ordinal }));
    }

    fn intentions(&mut self) {
        for worker in &self.workers {
            if worker.intent == worker.facts.intent {
                continue;
            }
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

    fn drains(&mut self) {
        for worker in &self.workers {
            let Some(node) = self
                .slurm()
                .node(&worker.facts.node)
                .filter(|node| !node.outdated)
            else {
                continue;
            };
            let name = worker.facts.node.clone();
            match self.drain_reason(worker) {
                Some(_) if node.draining() => {}
                Some(reason) => self.plan.steps.push(Step::Drain {
                    node: name,
                    reason: format!("{REASON_PREFIX}{reason}"),
                }),
                None if is_back(worker.facts, node) && node.reason_is_ours() => {
                    if node.draining() {
                        self.plan.steps.push(Step::Undrain { node: name });
                    } else if node.down() {
                        self.plan.steps.push(Step::Resume { node: name });
                    }
                }
                None => {}
            }
        }
    }

    fn drain_reason(&self, worker: &Worker<'_>) -> Option<String> {
        let pod = worker.facts;
        let id = format!("Pod ({}/{})", self.set.namespace, pod.name);
        if let Some(intent) = &worker.intent {
            return Some(match intent.cause {
                Cause::ScaleIn => format!("{id} is pending termination for scale-in"),
                Cause::ModeSwitch => format!("{id} is pending termination for a switch of the scaling mode"),
                Cause::Deletion => format!("{id} is pending termination for deletion of its NodeSet"),
                Cause::Rollout => format!("{id} is pending termination for an update"),
                Cause::Unregistered => format!("{id} is pending termination to register again"),
            });
        }
        let machine = pod
            .machine
            .as_ref()
            .and_then(|name| Some((name, self.observed.machines.get(name)?)));
        match machine {
            Some((name, machine)) if machine.cordoned => Some(match &machine.cordon_reason {
                Some(reason) => reason.clone(),
                None => format!("Node ({name}) was cordoned, {id} must be cordoned"),
            }),
            _ => pod.cordoned.then(|| format!("{id} was cordoned")),
        }
    }

    fn removals(&mut self) {
        let mut steps = Vec::new();
        let mut waits = Vec::new();
        for worker in &self.workers {
            let pod = worker.facts;
            if pod.phase == Phase::Ended {
                steps.push(Step::Discard { pod: pod.id() });
                continue;
            }
            let Some(intent) = &worker.intent else { continue };
            // An intent that is not written yet has no drain behind it that survives a restart.
            if worker.facts.intent.as_ref() != Some(intent) && pod.started {
                if let Some(why) = self.may_go(pod, intent).err() {
                    waits.push(Wait {
                        pod: pod.name.clone(),
                        node: pod.node.clone(),
                        why,
                    });
                }
                continue;
            }
            match self.may_go(pod, intent) {
                Ok(step) => steps.push(step),
                Err(why) => waits.push(Wait {
                    pod: pod.name.clone(),
                    node: pod.node.clone(),
                    why,
                }),
            }
        }
        self.plan.steps.extend(steps);
        self.plan.waits.extend(waits);
    }

    /// The step that removes the pod, or what stands against it.
    fn may_go(&self, pod: &PodFacts, intent: &Intent) -> Result<Step, Why> {
        if !pod.started || self.set.leaving == Leaving::Immediately {
            return Ok(Step::Discard { pod: pod.id() });
        }
        let nodes = match self.slurm() {
            Slurm::Unknown { .. } => return Err(Why::SlurmUnknown),
            Slurm::Known { nodes, .. } => nodes,
        };
        let gone = |pod: &PodFacts| {
            let (pod, node) = (pod.id(), pod.node.clone());
            if intent.cause.for_good() {
                Step::Retire { pod, node }
            } else {
                Step::Replace { pod, node }
            }
        };
        match nodes.get(&pod.node) {
            None if self.suspects_loss(pod) => Err(Why::SuspectLoss),
            None => Ok(gone(pod)),
            Some(node) if node.outdated => Err(Why::Reading),
            Some(node) if node.busy() => Err(Why::Jobs {
                until: node.busy_until,
            }),
            Some(node) if node.drained() && node.read_at > intent.since => Ok(gone(pod)),
            Some(_) => Err(Why::Reading),
        }
    }

    /// Whether the absence of this worker from Slurm's list proves nothing: a slurmctld that lost its state has an empty
    /// or short list, while jobs go on running.
    fn suspects_loss(&self, pod: &PodFacts) -> bool {
        if let Slurm::Known {
            since: Some(since), ..
        } = self.slurm()
            && *since < pod.created
        {
            return false;
        }
        let (mut expected, mut known) = (0_usize, 0_usize);
        for worker in self
            .workers
            .iter()
            .filter(|worker| worker.facts.ready_since.is_some())
        {
            expected += 1;
            known += usize::from(self.slurm().node(&worker.facts.node).is_some());
        }
        known == 0 || known * 2 < expected
    }

    fn protection(&mut self) {
        for worker in &self.workers {
            let pod = worker.facts;
            // What goes back to work in this plan is protected before the first job can start on it.
            let returning = self.plan.steps.contains(&Step::Undrain {
                node: pod.node.clone(),
            });
            let drained = self
                .slurm()
                .node(&pod.node)
                .is_some_and(|node| node.drained() && !node.outdated);
            let wanted = self.set.protect && (returning || !drained);
            if wanted != pod.protected && pod.phase != Phase::Ended {
                self.plan.steps.push(Step::Protect {
                    pod: pod.id(),
                    protected: wanted,
                });
            }
        }
    }
}

/// Whether the node is served by this pod, so that a drain that made way for it has done its work.
fn is_back(pod: &PodFacts, node: &SlurmNode) -> bool {
    let serves = node.registered.is_some_and(|since| since >= pod.created);
    serves && pod.ready_since.is_some() && node.state.is_responding()
}
