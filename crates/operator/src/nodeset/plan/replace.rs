//! Workers that are to be made anew, within the budget: those of an older revision or of the other scaling mode, and
//! those that Slurm does not know.

use std::time::Duration;

use jiff::SignedDuration;

use super::{Draft, Worker, order::rank};
use crate::{
    nodeset::facts::{Cause, Phase, PodFacts, REGISTRATION_GRACE, Strategy},
    slurm::facts::{Slurm, SlurmNode},
};

/// How often it is looked whether a job still names a node.
const JOBS_GO: Duration = Duration::from_secs(30);

/// Whether the worker is made anew, which waits for room; who leaves for good does not.
pub(super) fn replaces(cause: Cause) -> bool {
    cause == Cause::ModeSwitch || !cause.for_good()
}

/// What it costs to have a worker made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cost {
    /// One that could take a job.
    Available,
    /// One that may come back to its jobs: a node that does not respond for a moment loses nothing.
    Unavailable,
    /// No job can be in it.
    Nothing,
}

/// How many more workers may be told to go.
#[derive(Debug)]
struct Room {
    available: usize,
    unavailable: usize,
    unregistered: usize,
}

impl Room {
    /// Takes the room that a worker needs; false when there is none.
    fn take(&mut self, cause: Cause, cost: Cost) -> bool {
        let mut needed = Vec::new();
        if cause == Cause::Unregistered {
            needed.push(&mut self.unregistered);
        }
        match cost {
            Cost::Available => needed.extend([&mut self.available, &mut self.unavailable]),
            Cost::Unavailable => needed.push(&mut self.unavailable),
            Cost::Nothing => {}
        }
        if needed.iter().any(|left| **left == 0) {
            return false;
        }
        for left in needed {
            *left -= 1;
        }
        true
    }
}

impl Draft<'_> {
    pub(super) fn choose_replacements(&mut self) {
        self.look_for_the_end_of_jobs();
        self.look_when_time_makes_a_difference();
        let causes: Vec<Option<Cause>> = self
            .workers
            .iter()
            .map(|worker| self.replacement_cause(worker))
            .collect();
        let undecided: Vec<bool> = self
            .workers
            .iter()
            .map(|worker| self.is_undecided(worker))
            .collect();
        for ((worker, cause), undecided) in self.workers.iter_mut().zip(&causes).zip(undecided) {
            let replaces = worker
                .intent
                .as_ref()
                .is_some_and(|intent| replaces(intent.cause));
            if replaces && (cause.is_none() || undecided) {
                worker.intent = None;
            }
        }
        let mut room = self.room();
        let costs: Vec<Cost> = self.workers.iter().map(|worker| self.cost(worker)).collect();
        let (slurm, now) = (self.slurm(), self.observed.now);
        let scheduled = matches!(self.set.strategy, Strategy::Scheduled { .. });
        let mut candidates: Vec<(&mut Worker<'_>, Cause, Cost)> = self
            .workers
            .iter_mut()
            .zip(causes)
            .zip(costs)
            .filter_map(|((worker, cause), cost)| Some((worker, cause?, cost)))
            .filter(|(worker, ..)| worker.intent.is_none())
            .collect();
        // Who was told already comes first, so that the choice does not move around.
        candidates
            .sort_by_cached_key(|(worker, ..)| (worker.facts.intent.is_none(), rank(worker.facts, slurm)));
        for (worker, cause, cost) in candidates {
            // In a maintenance window nobody can use the nodes anyway.
            let in_window = cause == Cause::Rollout && scheduled;
            if in_window || room.take(cause, cost) {
                worker.intend(cause, now);
            }
        }
    }

    /// How many may be told to go now.
    fn room(&self) -> Room {
        let max_unavailable = match &self.set.strategy {
            Strategy::Rolling { max_unavailable, .. } => (*max_unavailable).max(1),
            Strategy::OnDelete | Strategy::Scheduled { .. } => 1,
        };
        let limit = usize::try_from(max_unavailable).unwrap_or(usize::MAX);
        let available = self
            .workers
            .iter()
            .filter(|worker| self.is_available(worker))
            .count();
        let out = self.observed.desired().saturating_sub(available);
        let told = |of: fn(Cause) -> bool| {
            let causes = self.workers.iter().filter_map(|worker| worker.intent.as_ref());
            causes.filter(|intent| of(intent.cause)).count()
        };
        // Who is out of service is known only while Slurm answers: a new pod may be ready and its node still drained.
        let known = self.slurm().is_known();
        let left = |taken: usize| if known { limit.saturating_sub(taken) } else { 0 };
        Room {
            available: left(out),
            unavailable: left(told(replaces)),
            // A fleet is not started anew at once because Slurm has a bad day.
            unregistered: limit.saturating_sub(told(|cause| cause == Cause::Unregistered)),
        }
    }

    fn cost(&self, worker: &Worker<'_>) -> Cost {
        if self.is_available(worker) || self.is_registering(worker) {
            Cost::Available
        } else if self.may_hold_jobs(worker.facts) {
            Cost::Unavailable
        } else {
            Cost::Nothing
        }
    }

    /// Whether a worker was told to go and no drain has reached Slurm: whether it goes is decided anew.
    fn is_undecided(&self, worker: &Worker<'_>) -> bool {
        let Some(intent) = &worker.facts.intent else {
            return false;
        };
        let node = self.slurm().node(&worker.facts.node);
        node.is_some_and(|node| !node.outdated && !node.draining() && node.read_at > intent.since)
    }

    /// Time alone makes a worker available, or one that has not registered a case for a restart.
    fn look_when_time_makes_a_difference(&mut self) {
        let now = self.observed.now;
        let min_ready = SignedDuration::try_from(self.set.min_ready).unwrap_or(SignedDuration::MAX);
        let mut times = Vec::new();
        for worker in &self.workers {
            let Some(since) = worker.facts.ready_since else {
                continue;
            };
            let ready = now.duration_since(since);
            let registers = self.is_unknown(worker.facts).then_some(REGISTRATION_GRACE);
            times.extend(
                [Some(min_ready), registers]
                    .into_iter()
                    .flatten()
                    .map(|time| time - ready),
            );
        }
        for left in times.into_iter().filter(SignedDuration::is_positive) {
            self.plan
                .look_within(Duration::try_from(left).unwrap_or_default());
        }
    }

    fn replacement_cause(&self, worker: &Worker<'_>) -> Option<Cause> {
        let pod = worker.facts;
        if pod.mode != self.set.mode {
            return Some(Cause::ModeSwitch);
        }
        if worker.leaves_for_good() {
            return None;
        }
        if pod.revision != self.set.revision && self.may_update(pod) {
            return Some(Cause::Rollout);
        }
        if pod.is_misknown(self.set) && self.may_update(pod) && self.may_be_renewed(worker) {
            return Some(Cause::Rollout);
        }
        let long_ready = pod
            .ready_since
            .is_some_and(|since| self.observed.now.duration_since(since) >= REGISTRATION_GRACE);
        (self.is_unknown(pod) && long_ready && !self.suspects_loss(pod)).then_some(Cause::Unregistered)
    }

    /// Whether nothing stands against a new record of its node. While Slurm does not say, what was decided stays.
    fn may_be_renewed(&self, worker: &Worker<'_>) -> bool {
        let decided = worker.intent.is_some();
        let Some(node) = self.slurm().node(&worker.facts.node) else {
            return decided && !self.slurm().is_known();
        };
        let unwanted = node
            .work
            .as_ref()
            .map_or(decided, |work| work.wanted_by.is_empty());
        let drained_by_others = node.draining() && !node.reason_is_ours();
        unwanted && !drained_by_others && node.reservation.is_empty()
    }

    /// A job that goes without having run changes nothing of the node that it named.
    fn look_for_the_end_of_jobs(&mut self) {
        let insisted_on =
            |node: &SlurmNode| node.work.as_ref().is_some_and(|work| !work.wanted_by.is_empty());
        let waits = self.workers.iter().any(|worker| {
            let node = self.slurm().node(&worker.facts.node);
            worker.facts.is_misknown(self.set) && node.is_some_and(insisted_on)
        });
        if waits {
            self.plan.look_within(JOBS_GO);
        }
    }

    fn is_unknown(&self, pod: &PodFacts) -> bool {
        self.slurm().is_known() && self.slurm().node(&pod.node).is_none()
    }

    /// Ready, and Slurm did not know it when it was last read: it may be at work by now.
    fn is_registering(&self, worker: &Worker<'_>) -> bool {
        let pod = worker.facts;
        let newly_ready = pod
            .ready_since
            .is_some_and(|since| self.observed.now.duration_since(since) < REGISTRATION_GRACE);
        newly_ready && self.is_unknown(pod)
    }

    /// Whether the user wants this old worker replaced now.
    fn may_update(&self, pod: &PodFacts) -> bool {
        match &self.set.strategy {
            Strategy::Rolling { partition, .. } => pod.ordinal.is_none_or(|ordinal| ordinal >= *partition),
            Strategy::OnDelete => false,
            // One that does not work is not made worse before its time.
            Strategy::Scheduled { reservation } => {
                let node = self.slurm().node(&pod.node);
                pod.ready_since.is_none() || node.is_some_and(|node| node.is_maintained_in(reservation))
            }
        }
    }

    /// Could take a job now, as far as anybody knows, and is meant to stay. One that was to go until now may still be
    /// drained.
    pub(super) fn is_available(&self, worker: &Worker<'_>) -> bool {
        let pod = worker.facts;
        let min_ready = SignedDuration::try_from(self.set.min_ready).unwrap_or(SignedDuration::MAX);
        let ready = pod
            .ready_since
            .is_some_and(|since| self.observed.now.duration_since(since) >= min_ready);
        let usable = match self.slurm() {
            Slurm::Unknown { .. } => pod.intent.is_none(),
            Slurm::Known { nodes, .. } => nodes
                .get(&pod.node)
                .is_some_and(|node| node.usable() && (pod.intent.is_none() || !node.outdated)),
        };
        pod.phase == Phase::Running && ready && usable && worker.intent.is_none()
    }
}
