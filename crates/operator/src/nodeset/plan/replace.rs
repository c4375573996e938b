//! Workers that are to be made anew, within the budget: those of an older revision or of the other scaling mode, and
//! those that Slurm does not know.

use std::time::Duration;

use super::{Draft, Worker, order::rank};
use crate::{
    nodeset::facts::{Cause, Phase, PodFacts, Strategy},
    slurm::facts::{Slurm, SlurmNode},
};

/// A ready worker that Slurm does not know gets this long to register before it is started anew.
const REGISTRATION_GRACE: jiff::SignedDuration = jiff::SignedDuration::from_mins(5);

/// How often it is looked whether a job still names a node.
const JOBS_GO: Duration = Duration::from_secs(30);

impl Draft<'_> {
    pub(super) fn choose_replacements(&mut self) {
        self.look_for_the_end_of_jobs();
        let causes: Vec<Option<Cause>> = self
            .workers
            .iter()
            .map(|worker| self.replacement_cause(worker))
            .collect();
        for (worker, cause) in self.workers.iter_mut().zip(&causes) {
            let over = |standing: Cause| standing == Cause::ModeSwitch || !standing.for_good();
            if cause.is_none() && worker.intent.as_ref().is_some_and(|intent| over(intent.cause)) {
                worker.intent = None;
            }
        }
        let max_unavailable = match &self.set.strategy {
            Strategy::Rolling { max_unavailable, .. } => (*max_unavailable).max(1),
            Strategy::OnDelete | Strategy::Scheduled { .. } => 1,
        };
        // In a maintenance window nobody can use the nodes anyway.
        let in_window =
            |cause| cause == Cause::Rollout && matches!(self.set.strategy, Strategy::Scheduled { .. });
        let available: Vec<bool> = self
            .workers
            .iter()
            .map(|worker| self.is_available(worker))
            .collect();
        let out = self
            .observed
            .desired()
            .saturating_sub(available.iter().filter(|available| **available).count());
        // Who is out of service is known only while Slurm answers: a new pod may be ready and its node still drained.
        let mut allowance = match self.slurm() {
            Slurm::Unknown { .. } => 0,
            Slurm::Known { .. } => usize::try_from(max_unavailable)
                .unwrap_or(usize::MAX)
                .saturating_sub(out),
        };

        // Those that Slurm does not know are out already, so that the budget above does not hold them back; but a fleet is
        // not started anew at once because Slurm has a bad day.
        let again = self.workers.iter().filter(|worker| {
            let cause = worker.intent.as_ref().map(|intent| intent.cause);
            cause == Some(Cause::Unregistered)
        });
        let mut restarts = usize::try_from(max_unavailable)
            .unwrap_or(usize::MAX)
            .saturating_sub(again.count());

        // A worker that is out of service already can be replaced without making anything worse.
        let costs: Vec<bool> = self
            .workers
            .iter()
            .zip(available)
            .map(|(worker, available)| available || self.is_registering(worker))
            .collect();
        let (slurm, now) = (self.slurm(), self.observed.now);
        let mut candidates: Vec<(&mut Worker<'_>, Cause, bool)> = self
            .workers
            .iter_mut()
            .zip(causes)
            .zip(costs)
            .filter_map(|((worker, cause), costs)| Some((worker, cause?, costs)))
            .filter(|(worker, ..)| worker.intent.is_none())
            .collect();
        candidates.sort_by_cached_key(|(worker, ..)| rank(worker.facts, slurm));
        for (worker, cause, costs) in candidates {
            if cause == Cause::Unregistered {
                if restarts == 0 {
                    continue;
                }
                restarts -= 1;
            }
            if costs && !in_window(cause) {
                if allowance == 0 {
                    continue;
                }
                allowance -= 1;
            }
            worker.intend(cause, now);
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
            self.plan.look_again = Some(JOBS_GO);
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
        let min_ready =
            jiff::SignedDuration::try_from(self.set.min_ready).unwrap_or(jiff::SignedDuration::MAX);
        let ready = pod
            .ready_since
            .is_some_and(|since| self.observed.now.duration_since(since) >= min_ready);
        let usable = match self.slurm() {
            Slurm::Unknown { .. } => true,
            Slurm::Known { nodes, .. } => nodes.get(&pod.node).is_some_and(SlurmNode::usable),
        };
        pod.phase == Phase::Running && ready && usable && worker.intent.is_none() && pod.intent.is_none()
    }
}
