//! Decides which pods can be removed now, and what the others wait for.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use keelson_api::nodeset::{DrainTimeoutAction, ScalingMode};

use super::{Draft, Worker};
use crate::{
    nodeset::facts::{
        Intent, Leaving, NextRecord, Observed, Phase, PodFacts, Start, Step, Strategy, Wait, Why,
    },
    slurm::{
        facts::{JobReading, Slurm, SlurmNode},
        jobs::HeldBy,
    },
    wording::listed,
};

/// The tolerated clock difference between a worker and the API server.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(1);

impl Draft<'_> {
    pub(super) fn removals(&mut self) {
        let names = Names::of(self.observed);
        let mut steps = Vec::new();
        let mut waits = Vec::new();
        for worker in &self.workers {
            let pod = worker.facts;
            if pod.phase == Phase::Ended {
                steps.push(Step::Discard { pod: pod.id() });
                continue;
            }
            let Some(intent) = &worker.intent else { continue };
            // An intent that is not written yet would be lost if the operator restarted.
            let written = pod.intent.as_ref() == Some(intent) || !Self::may_hold_jobs(worker);
            match self.may_go(worker, intent, &names) {
                Ok(step) if written => steps.push(step),
                Ok(_) => waits.push(Wait {
                    pod: pod.name.clone(),
                    node: pod.node.clone(),
                    why: Why::Reading,
                }),
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

    /// Returns true if the pod may have jobs: slurmd ran or may have run in it, or it is registered with Slurm.
    pub(super) fn may_hold_jobs(worker: &Worker<'_>) -> bool {
        let pod = worker.facts;
        pod.start != Start::Never
            || (pod.kube_node.is_some() && worker.node.is_some_and(|node| serves(pod, node)))
    }

    /// Returns the step that removes the pod, or why it cannot be removed yet.
    fn may_go(&self, worker: &Worker<'_>, intent: &Intent, names: &Names) -> Result<Step, Why> {
        let pod = worker.facts;
        if self.set.leaving == Leaving::Immediately {
            return Ok(Step::Force { pod: pod.id() });
        }
        if !Self::may_hold_jobs(worker) {
            return Ok(Step::Discard { pod: pod.id() });
        }
        match self.slurm() {
            Slurm::Unknown { .. } => return Err(Why::SlurmUnknown),
            Slurm::Known {
                jobs: JobReading::Failed { why },
                ..
            } => return Err(Why::JobsUnread { why: why.clone() }),
            Slurm::Known { .. } => {}
        }
        let (id, node) = (pod.id(), pod.node.clone());
        let replace = |record| Step::Replace {
            pod: pod.id(),
            node: pod.node.clone(),
            record,
        };
        let frees_name = intent.cause.frees_name() || !names.come_back(pod);
        match worker.node {
            None if pod.may_register(self.observed.now) => Err(Why::Starting),
            None if self.suspects_loss(pod) => Err(Why::SuspectLoss),
            None if !self.slurm().nobody_holds(&pod.node, intent.since) => Err(Why::Reading),
            None if frees_name => Ok(Step::Retire { pod: id, node }),
            None => Ok(replace(NextRecord::Stays)),
            Some(node) if node.outdated => Err(Why::Reading),
            Some(node) if node.busy() => Err(self.why_busy(node, intent)),
            Some(found) if found.proven_drained() && found.read_at > intent.since => {
                if frees_name {
                    return match unwanted(found) {
                        Ok(()) => Ok(Step::Retire { pod: id, node }),
                        // Pending jobs keep the record, but drain.timeout has expired for the worker.
                        Err(Why::Wanted { .. }) if self.out_of_time(intent) => Ok(replace(NextRecord::Stays)),
                        // The NodeSet's own maintenance window: the record is deleted after the window.
                        Err(Why::Reserved { .. }) if self.is_in_window(found) => {
                            Ok(replace(NextRecord::Stays))
                        }
                        Err(why) => Err(why),
                    };
                }
                let record = record_of_next(pod, found)?;
                // Only the status shows that the record does not match the next pod, so it must be written first.
                let noted = self.set.records.contains_key(&pod.node);
                if matches!(record, NextRecord::Kept { .. }) && !noted {
                    return Err(Why::Reading);
                }
                Ok(replace(record))
            }
            Some(_) => Err(Why::Reading),
        }
    }

    fn is_in_window(&self, node: &SlurmNode) -> bool {
        matches!(&self.set.strategy, Strategy::Scheduled { reservation } if node.is_maintained_in(reservation))
    }

    /// Returns why a worker with jobs cannot be removed yet.
    fn why_busy(&self, node: &SlurmNode, intent: &Intent) -> Why {
        let jobs = node.work.as_ref().map_or(&[][..], |work| &work.jobs);
        let stuck: Vec<&HeldBy> = jobs
            .iter()
            .filter(|job| !job.completing && (job.requeue.is_none() || job.refused.is_some()))
            .collect();
        let requeues = self.set.on_drain_timeout == DrainTimeoutAction::Requeue;
        match stuck.first() {
            Some(first) if requeues && self.out_of_time(intent) => Why::CannotRequeue {
                jobs: stuck.iter().map(|job| job.address.clone()).collect(),
                why: first.refused.clone().unwrap_or_else(|| {
                    "it is not a batch job, or was submitted with --no-requeue".to_owned()
                }),
            },
            Some(_) | None => Why::Jobs {
                until: node.busy_until(),
            },
        }
    }

    /// Returns true if `drain.timeout` has expired for a worker and has an action.
    fn out_of_time(&self, intent: &Intent) -> bool {
        let timeout = self
            .set
            .drain_timeout
            .and_then(|timeout| SignedDuration::try_from(timeout).ok());
        self.set.on_drain_timeout != DrainTimeoutAction::Wait
            && timeout.is_some_and(|timeout| self.observed.now.duration_since(intent.since) >= timeout)
    }

    /// Records when the jobs on draining workers end.
    pub(super) fn deadlines(&mut self) {
        for worker in &self.workers {
            let pod = worker.facts;
            let work = worker.node.and_then(|node| node.work.as_ref());
            // Without job data, the recorded end time is not changed.
            if worker.intent.is_none() || work.is_some() {
                let at = worker.intent.as_ref().and(work).and_then(|work| work.until);
                if at != pod.deadline {
                    self.plan.steps.push(Step::Deadline { pod: pod.id(), at });
                }
            }
        }
    }

    /// Requeues or cancels the jobs on draining workers once `drain.timeout` has expired. A job on several workers is
    /// handled once.
    pub(super) fn overdue_jobs(&mut self) {
        let overdue = self.workers.iter().filter(|worker| {
            let pod = worker.facts;
            let written = worker
                .intent
                .as_ref()
                .filter(|intent| pod.intent.as_ref() == Some(*intent));
            let draining = worker.node.is_some_and(SlurmNode::draining);
            draining && written.is_some_and(|intent| self.out_of_time(intent))
        });
        let jobs: Vec<&HeldBy> = overdue
            .filter_map(|worker| worker.node?.work.as_ref())
            .flat_map(|work| &work.jobs)
            .filter(|job| !job.completing)
            .collect();
        let addresses: BTreeSet<String> = match self.set.on_drain_timeout {
            DrainTimeoutAction::Wait => return,
            DrainTimeoutAction::Cancel => jobs.iter().map(|job| job.address.clone()).collect(),
            DrainTimeoutAction::Requeue => jobs
                .iter()
                .filter(|job| job.refused.is_none())
                .filter_map(|job| job.requeue.clone())
                .collect(),
        };
        if addresses.is_empty() {
            return;
        }
        let addresses = addresses.into_iter().collect();
        self.plan.steps.push(match self.set.on_drain_timeout {
            DrainTimeoutAction::Requeue => Step::RequeueJobs { addresses },
            DrainTimeoutAction::Cancel | DrainTimeoutAction::Wait => Step::CancelJobs { addresses },
        });
    }

    /// Returns true if slurmctld may have lost its state: its node list is then empty or short while jobs keep running,
    /// so the absence of this worker proves nothing.
    pub(super) fn suspects_loss(&self, pod: &PodFacts) -> bool {
        // Without a Slurm condition the pod never registered, so it has no jobs that Slurm could have lost. If slurmd
        // starts and registers now, Slurm is queried again before the pod is deleted.
        let never_ran = pod.start != Start::Perhaps && !pod.running;
        if pod.unsandboxed || (never_ran && pod.conditions.is_empty()) {
            return false;
        }
        *self.short_list.get_or_init(|| {
            let ready = || {
                self.workers
                    .iter()
                    .filter(|worker| worker.facts.ready_since.is_some())
            };
            let is_known = |worker: &&Worker<'_>| worker.node.is_some();
            let (expected, known) = (ready().count(), ready().filter(is_known).count());
            known == 0 || known * 2 < expected
        })
    }
}

/// Which names workers to come will get.
struct Names {
    mode: ScalingMode,
    desired: usize,
    /// The number of pods of this mode.
    own: usize,
    /// Ordinals in use, in order.
    taken: Vec<u32>,
}

impl Names {
    fn of(observed: &Observed) -> Self {
        let taken: BTreeSet<u32> = observed.pods.iter().filter_map(|pod| pod.ordinal).collect();
        let own = |pod: &&PodFacts| pod.mode == ScalingMode::StatefulSet;
        Self {
            mode: observed.set.mode,
            desired: observed.desired(),
            own: observed.pods.iter().filter(own).count(),
            taken: taken.into_iter().collect(),
        }
    }

    /// Returns true if the replacement of this pod gets the same name. The lowest free ordinals are used first, so an
    /// ordinal above a gap is not reused.
    fn come_back(&self, pod: &PodFacts) -> bool {
        let Some(ordinal) = pod.ordinal.filter(|_| self.mode == ScalingMode::StatefulSet) else {
            return true;
        };
        let itself = usize::from(pod.mode == ScalingMode::StatefulSet);
        let missing = self.desired.saturating_sub(self.own - itself);
        let taken_below = self.taken.partition_point(|taken| *taken < ordinal);
        let free_below = usize::try_from(ordinal).unwrap_or(usize::MAX) - taken_below;
        free_below < missing.max(1)
    }
}

/// Returns true if this pod serves the node: slurmd has started since the pod was created. The clocks of two machines
/// are compared only if the previous start time is unknown.
pub fn serves(pod: &PodFacts, node: &SlurmNode) -> bool {
    match (node.registered, pod.registered_before) {
        (None, _) => false,
        (Some(now), Some(before)) => now != before,
        (Some(now), None) => now >= pod.created - CLOCKS_DIFFER,
    }
}

/// Fails if a reservation or a pending job needs the record of the node.
fn unwanted(node: &SlurmNode) -> Result<(), Why> {
    if !node.reservation.is_empty() {
        return Err(Why::Reserved {
            reservation: node.reservation.clone(),
        });
    }
    match &node.work {
        None => Err(Why::Reading),
        Some(work) if work.wanted_by.is_empty() => Ok(()),
        Some(work) => Err(Why::Wanted {
            jobs: work.wanted_by.clone(),
        }),
    }
}

/// Decides what happens to the Slurm record of a node when its pod is replaced. A drain that someone else set is kept,
/// and the record with it.
fn record_of_next(pod: &PodFacts, node: &SlurmNode) -> Result<NextRecord, Why> {
    if !pod.reshaped {
        return Ok(NextRecord::Stays);
    }
    let kept = |why| Ok(NextRecord::Kept { why });
    if !node.reason_is_ours() {
        return kept(format!("it was drained by someone else ({})", node.reason));
    }
    // Slurm would refuse.
    if !node.reservation.is_empty() {
        return kept(format!("it is in reservation {}", node.reservation));
    }
    let work = node.work.as_ref().ok_or(Why::Reading)?;
    match work.wanted_by.as_slice() {
        [] => Ok(NextRecord::Renewed),
        [job] => kept(format!("pending job {job} requests it")),
        jobs => kept(format!("pending jobs {} request it", listed(jobs, 5))),
    }
}
