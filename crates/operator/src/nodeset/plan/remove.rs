//! Which pods may go now, and what the others wait for.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use keelson_api::nodeset::{DrainTimeoutAction, ScalingMode};

use super::Draft;
use crate::{
    nodeset::facts::{Intent, Leaving, NextRecord, Phase, PodFacts, Start, Step, Strategy, Wait, Why},
    slurm::{
        facts::{JobReading, Slurm, SlurmNode},
        jobs::HeldBy,
    },
};

/// A worker's clock may be that far behind the API server's.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(1);

impl Draft<'_> {
    pub(super) fn removals(&mut self) {
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
            let written = pod.intent.as_ref() == Some(intent) || !self.may_hold_jobs(pod);
            match self.may_go(pod, intent) {
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

    /// Whether a job can be in it: slurmd ran there, or may have, or Slurm has heard of it already.
    pub(super) fn may_hold_jobs(&self, pod: &PodFacts) -> bool {
        let serves = |node: &SlurmNode| serves(pod, node);
        pod.start != Start::Never
            || (pod.machine.is_some() && self.slurm().node(&pod.node).is_some_and(serves))
    }

    /// The step that removes the pod, or what stands against it.
    fn may_go(&self, pod: &PodFacts, intent: &Intent) -> Result<Step, Why> {
        if self.set.leaving == Leaving::Immediately {
            return Ok(Step::Force { pod: pod.id() });
        }
        if !self.may_hold_jobs(pod) {
            return Ok(Step::Discard { pod: pod.id() });
        }
        let nodes = match self.slurm() {
            Slurm::Unknown { .. } => return Err(Why::SlurmUnknown),
            Slurm::Known {
                jobs: JobReading::Failed { why },
                ..
            } => return Err(Why::JobsUnread { why: why.clone() }),
            Slurm::Known { nodes, .. } => nodes,
        };
        let (id, node) = (pod.id(), pod.node.clone());
        let replace = |record| Step::Replace {
            pod: pod.id(),
            node: pod.node.clone(),
            record,
        };
        let frees_name = intent.cause.frees_name() || !self.name_comes_back(pod);
        match nodes.get(&pod.node) {
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
                        // They keep the record, and the user's time for the worker itself is over.
                        Err(Why::Wanted { .. }) if self.out_of_time(intent) => Ok(replace(NextRecord::Stays)),
                        // Its own maintenance window: the record goes when that is over.
                        Err(Why::Reserved { .. }) if self.is_in_window(found) => {
                            Ok(replace(NextRecord::Stays))
                        }
                        Err(why) => Err(why),
                    };
                }
                let record = record_of_next(pod, found)?;
                // Once the pod is gone, nobody else knows that the record is not of its successor's kind.
                let noted = self.set.records.contains_key(&pod.node);
                if matches!(record, NextRecord::Kept { .. }) && !noted {
                    return Err(Why::Reading);
                }
                Ok(replace(record))
            }
            Some(_) => Err(Why::Reading),
        }
    }

    /// Whether the pod that follows has the same name: ordinals are given out from below, so that one above a gap does not
    /// come back.
    fn name_comes_back(&self, pod: &PodFacts) -> bool {
        let Some(ordinal) = pod.ordinal.filter(|_| self.set.mode == ScalingMode::StatefulSet) else {
            return true;
        };
        let others = || self.observed.pods.iter().filter(|other| other.uid != pod.uid);
        let taken: BTreeSet<u32> = others().filter_map(|other| other.ordinal).collect();
        let own = |other: &&PodFacts| other.mode == ScalingMode::StatefulSet;
        let missing = self
            .observed
            .desired()
            .saturating_sub(others().filter(own).count());
        let below = (0..ordinal).filter(|free| !taken.contains(free)).count();
        below < missing.max(1)
    }

    fn is_in_window(&self, node: &SlurmNode) -> bool {
        matches!(&self.set.strategy, Strategy::Scheduled { reservation } if node.is_maintained_in(reservation))
    }

    /// What is waited for on a node that jobs hold.
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
                why: first
                    .refused
                    .clone()
                    .unwrap_or_else(|| "it is no batch job, or was submitted with --no-requeue".to_owned()),
            },
            Some(_) | None => Why::Jobs {
                until: node.busy_until(),
            },
        }
    }

    /// Whether the user's time for jobs on a leaving worker is over.
    fn out_of_time(&self, intent: &Intent) -> bool {
        let timeout = self
            .set
            .drain_timeout
            .and_then(|timeout| SignedDuration::try_from(timeout).ok());
        self.set.on_drain_timeout != DrainTimeoutAction::Wait
            && timeout.is_some_and(|timeout| self.observed.now.duration_since(intent.since) >= timeout)
    }

    /// Writes down when the jobs on leaving workers end.
    pub(super) fn deadlines(&mut self) {
        for worker in &self.workers {
            let pod = worker.facts;
            let work = self.slurm().node(&pod.node).and_then(|node| node.work.as_ref());
            // Without a reading nothing is claimed and nothing is taken back.
            if worker.intent.is_none() || work.is_some() {
                let at = worker.intent.as_ref().and(work).and_then(|work| work.until);
                if at != pod.deadline {
                    self.plan.steps.push(Step::Deadline { pod: pod.id(), at });
                }
            }
        }
    }

    /// Ends the jobs on leaving workers when the user wrote so and the time is over. A job on several of them is asked once.
    pub(super) fn overdue_jobs(&mut self) {
        let overdue = self.workers.iter().filter(|worker| {
            let pod = worker.facts;
            let written = worker
                .intent
                .as_ref()
                .filter(|intent| pod.intent.as_ref() == Some(*intent));
            let draining = self.slurm().node(&pod.node).is_some_and(SlurmNode::draining);
            draining && written.is_some_and(|intent| self.out_of_time(intent))
        });
        let jobs: Vec<&HeldBy> = overdue
            .filter_map(|worker| self.slurm().node(&worker.facts.node)?.work.as_ref())
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

    /// Whether the absence of this worker from Slurm's list proves nothing: a slurmctld that lost its state has an empty
    /// or short list, while jobs go on running.
    pub(super) fn suspects_loss(&self, pod: &PodFacts) -> bool {
        // It has shown no state of Slurm's yet, so it never registered, and nothing runs in it that Slurm could have
        // forgotten. Should slurmd start and register now, Slurm is asked again before the pod goes.
        let never_ran = pod.start != Start::Perhaps && !pod.running;
        if pod.unsandboxed || (never_ran && pod.conditions.is_empty()) {
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
}

/// Whether the node is served by this pod: its slurmd started anew since the pod was made. Clocks of two machines are not
/// compared where what was known before tells.
pub fn serves(pod: &PodFacts, node: &SlurmNode) -> bool {
    match (node.registered, pod.registered_before) {
        (None, _) => false,
        (Some(now), Some(before)) => now != before,
        (Some(now), None) => now >= pod.created - CLOCKS_DIFFER,
    }
}

/// A pending job that names the node would fail without its record.
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

/// A drain that somebody else made stays, and with it the record.
fn record_of_next(pod: &PodFacts, node: &SlurmNode) -> Result<NextRecord, Why> {
    if !pod.reshaped {
        return Ok(NextRecord::Stays);
    }
    let kept = |why| Ok(NextRecord::Kept { why });
    if !node.reason_is_ours() {
        return kept(format!("somebody drained it ({})", node.reason));
    }
    // Slurm would refuse.
    if !node.reservation.is_empty() {
        return kept(format!("it is in reservation {}", node.reservation));
    }
    let work = node.work.as_ref().ok_or(Why::Reading)?;
    match work.wanted_by.as_slice() {
        [] => Ok(NextRecord::Renewed),
        jobs => kept(format!("pending jobs {jobs:?} name it")),
    }
}
