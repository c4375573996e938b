//! Replaces workers within the budget: those of an older revision or of the other scaling mode, and those that are not
//! registered with Slurm.

use std::time::Duration;

use jiff::SignedDuration;

use super::{Draft, Worker, order::rank};
use crate::{
    nodeset::facts::{Cause, Phase, REGISTRATION_GRACE, Strategy},
    slurm::facts::{Slurm, SlurmNode},
};

/// How often to check whether a pending job still requests a node.
const JOBS_GO: Duration = Duration::from_secs(30);

/// Returns true if the worker is replaced, which counts against the budget, rather than removed, which does not.
pub(super) fn replaces(cause: Cause) -> bool {
    cause == Cause::ModeSwitch || !cause.for_good()
}

/// The cost of replacing a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cost {
    /// It could accept a job.
    Available,
    /// It may still have jobs: a node that briefly does not respond keeps them.
    Unavailable,
    /// It cannot have jobs.
    Nothing,
}

/// The remaining budget for replacements.
#[derive(Debug)]
struct Room {
    available: usize,
    unavailable: usize,
    unregistered: usize,
}

impl Room {
    /// Takes the budget that a worker needs; returns false if there is none left.
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
            .map(|worker| Self::is_undecided(worker))
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
        let now = self.observed.now;
        let scheduled = matches!(self.set.strategy, Strategy::Scheduled { .. });
        let mut candidates: Vec<(&mut Worker<'_>, Cause, Cost)> = self
            .workers
            .iter_mut()
            .zip(causes)
            .zip(costs)
            .filter_map(|((worker, cause), cost)| Some((worker, cause?, cost)))
            .filter(|(worker, ..)| worker.intent.is_none())
            .collect();
        // Workers already marked come first, so the choice stays stable.
        candidates.sort_by_cached_key(|(worker, ..)| {
            (worker.facts.intent.is_none(), rank(worker.facts, worker.node))
        });
        for (worker, cause, cost) in candidates {
            // In a maintenance window no jobs can use the nodes anyway.
            let in_window = cause == Cause::Rollout && scheduled;
            if in_window || room.take(cause, cost) {
                worker.intend(cause, now);
            }
        }
    }

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
        // Without an answer from Slurm it is unknown which workers are out of service: a new pod may be ready while its
        // node is still drained.
        let known = self.slurm().is_known();
        let left = |taken: usize| if known { limit.saturating_sub(taken) } else { 0 };
        Room {
            available: left(out),
            unavailable: left(told(replaces)),
            // A fault in Slurm must not restart a whole fleet at once.
            unregistered: limit.saturating_sub(told(|cause| cause == Cause::Unregistered)),
        }
    }

    fn cost(&self, worker: &Worker<'_>) -> Cost {
        if self.is_available(worker) || self.is_registering(worker) {
            Cost::Available
        } else if Self::may_hold_jobs(worker) {
            Cost::Unavailable
        } else {
            Cost::Nothing
        }
    }

    /// Returns true if a worker is marked but its drain has not reached Slurm, so the decision can be reconsidered.
    fn is_undecided(worker: &Worker<'_>) -> bool {
        let Some(intent) = &worker.facts.intent else {
            return false;
        };
        let node = worker.node;
        node.is_some_and(|node| !node.outdated && !node.draining() && node.read_at > intent.since)
    }

    /// Requests a reconcile for the time when a worker becomes available or an unregistered one is due for replacement.
    fn look_when_time_makes_a_difference(&mut self) {
        let now = self.observed.now;
        let min_ready = SignedDuration::try_from(self.set.min_ready).unwrap_or(SignedDuration::MAX);
        let mut times = Vec::new();
        for worker in &self.workers {
            let Some(since) = worker.facts.ready_since else {
                continue;
            };
            let ready = now.duration_since(since);
            let registers = self.is_unknown(worker).then_some(REGISTRATION_GRACE);
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
        if pod.revision != self.set.revision && self.may_update(worker) {
            return Some(Cause::Rollout);
        }
        if pod.is_misknown(self.set) && self.may_update(worker) && self.may_be_renewed(worker) {
            return Some(Cause::Rollout);
        }
        let long_ready = pod
            .ready_since
            .is_some_and(|since| self.observed.now.duration_since(since) >= REGISTRATION_GRACE);
        (self.is_unknown(worker) && long_ready && !self.suspects_loss(pod)).then_some(Cause::Unregistered)
    }

    /// Returns true if the record of the worker's node can be renewed. While Slurm does not answer, an earlier decision
    /// is kept.
    fn may_be_renewed(&self, worker: &Worker<'_>) -> bool {
        let decided = worker.intent.is_some();
        let Some(node) = worker.node else {
            return decided && !self.slurm().is_known();
        };
        let unwanted = node
            .work
            .as_ref()
            .map_or(decided, |work| work.wanted_by.is_empty());
        let drained_by_others = node.draining() && !node.reason_is_ours();
        unwanted && !drained_by_others && node.reservation.is_empty()
    }

    /// Requests a reconcile to check pending jobs, because cancelling one does not change the node that it requested.
    fn look_for_the_end_of_jobs(&mut self) {
        let insisted_on =
            |node: &SlurmNode| node.work.as_ref().is_some_and(|work| !work.wanted_by.is_empty());
        let waits = self
            .workers
            .iter()
            .any(|worker| worker.facts.is_misknown(self.set) && worker.node.is_some_and(insisted_on));
        if waits {
            self.plan.look_within(JOBS_GO);
        }
    }

    fn is_unknown(&self, worker: &Worker<'_>) -> bool {
        self.slurm().is_known() && worker.node.is_none()
    }

    /// Returns true if the worker became ready recently but was not registered when Slurm was last read: it may have
    /// jobs by now.
    fn is_registering(&self, worker: &Worker<'_>) -> bool {
        let pod = worker.facts;
        let newly_ready = pod
            .ready_since
            .is_some_and(|since| self.observed.now.duration_since(since) < REGISTRATION_GRACE);
        newly_ready && self.is_unknown(worker)
    }

    /// Returns true if the update strategy allows replacing this worker now.
    fn may_update(&self, worker: &Worker<'_>) -> bool {
        let pod = worker.facts;
        match &self.set.strategy {
            Strategy::Rolling { partition, .. } => pod.ordinal.is_none_or(|ordinal| ordinal >= *partition),
            Strategy::OnDelete => false,
            // A worker that is not ready can be replaced before the window.
            Strategy::Scheduled { reservation } => {
                pod.ready_since.is_none()
                    || worker.node.is_some_and(|node| node.is_maintained_in(reservation))
            }
        }
    }

    /// Returns true if the worker could accept a job now, as far as is known, and is not marked. A worker that was
    /// marked until now may still be drained.
    pub(super) fn is_available(&self, worker: &Worker<'_>) -> bool {
        let pod = worker.facts;
        let min_ready = SignedDuration::try_from(self.set.min_ready).unwrap_or(SignedDuration::MAX);
        let ready = pod
            .ready_since
            .is_some_and(|since| self.observed.now.duration_since(since) >= min_ready);
        let usable = match self.slurm() {
            Slurm::Unknown { .. } => pod.intent.is_none(),
            Slurm::Known { .. } => worker
                .node
                .is_some_and(|node| node.usable() && (pod.intent.is_none() || !node.outdated)),
        };
        pod.phase == Phase::Running && ready && usable && worker.intent.is_none()
    }
}
