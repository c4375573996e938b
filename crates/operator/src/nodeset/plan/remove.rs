//! Which pods may go now, and what the others wait for.

use keelson_api::nodeset::DrainTimeoutAction;

use super::Draft;
use crate::{
    nodeset::facts::{Intent, Leaving, NextRecord, Phase, PodFacts, Step, Wait, Why},
    slurm::facts::{Slurm, SlurmNode},
};

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
            let written = pod.intent.as_ref() == Some(intent) || !pod.started;
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

    /// The step that removes the pod, or what stands against it.
    fn may_go(&self, pod: &PodFacts, intent: &Intent) -> Result<Step, Why> {
        if self.set.leaving == Leaving::Immediately {
            return Ok(Step::Force { pod: pod.id() });
        }
        if !pod.started {
            return Ok(Step::Discard { pod: pod.id() });
        }
        let nodes = match self.slurm() {
            Slurm::Unknown { .. } => return Err(Why::SlurmUnknown),
            Slurm::Known { nodes, .. } => nodes,
        };
        let step = |record| {
            let (pod, node) = (pod.id(), pod.node.clone());
            if intent.cause.frees_name() {
                Step::Retire { pod, node }
            } else {
                Step::Replace { pod, node, record }
            }
        };
        match nodes.get(&pod.node) {
            None if self.suspects_loss(pod) => Err(Why::SuspectLoss),
            None => Ok(step(NextRecord::Stays)),
            Some(node) if node.outdated => Err(Why::Reading),
            Some(node) if node.busy() => Err(Why::Jobs {
                until: node.busy_until(),
            }),
            Some(node) if node.drained() && node.read_at > intent.since => {
                self.unwanted(node, intent)?;
                let record = record_of_next(pod, node)?;
                // Once the pod is gone, nobody else knows that the record is not of its successor's kind.
                let noted = self.set.records.contains_key(&pod.node);
                if matches!(record, NextRecord::Kept { .. }) && !noted {
                    return Err(Why::Reading);
                }
                Ok(step(record))
            }
            Some(_) => Err(Why::Reading),
        }
    }

    /// A pending job that names the node would fail without it, so it stays for it; one that comes back is no loss.
    fn unwanted(&self, node: &SlurmNode, intent: &Intent) -> Result<(), Why> {
        if !intent.cause.frees_name() || self.out_of_time(intent) {
            return Ok(());
        }
        match &node.work {
            None => Err(Why::Reading),
            Some(work) if work.wanted_by.is_empty() => Ok(()),
            Some(work) => Err(Why::Wanted {
                jobs: work.wanted_by.clone(),
            }),
        }
    }

    /// Whether the user's time for jobs on a leaving worker is over.
    fn out_of_time(&self, intent: &Intent) -> bool {
        let timeout = self
            .set
            .drain_timeout
            .and_then(|timeout| jiff::SignedDuration::try_from(timeout).ok());
        self.set.on_drain_timeout != DrainTimeoutAction::Wait
            && timeout.is_some_and(|timeout| self.observed.now.duration_since(intent.since) >= timeout)
    }

    /// Ends the jobs on leaving workers when the user wrote so and the time is over; writes down when they end else.
    pub(super) fn deadlines(&mut self) {
        let requeue = self.set.on_drain_timeout == DrainTimeoutAction::Requeue;
        for worker in &self.workers {
            let pod = worker.facts;
            let node = self.slurm().node(&pod.node);
            let work = node.and_then(|node| node.work.as_ref());
            // Without a reading nothing is claimed and nothing is taken back.
            if worker.intent.is_none() || work.is_some() {
                let at = worker.intent.as_ref().and(work).and_then(|work| work.until);
                if at != pod.deadline {
                    self.plan.steps.push(Step::Deadline { pod: pod.id(), at });
                }
            }
            let Some(intent) = worker
                .intent
                .as_ref()
                .filter(|intent| pod.intent.as_ref() == Some(*intent))
            else {
                continue;
            };
            let jobs = work.map(|work| work.jobs.clone()).unwrap_or_default();
            if self.out_of_time(intent) && node.is_some_and(SlurmNode::draining) && !jobs.is_empty() {
                self.plan.steps.push(Step::EndJobs { jobs, requeue });
            }
        }
    }

    /// Whether the absence of this worker from Slurm's list proves nothing: a slurmctld that lost its state has an empty
    /// or short list, while jobs go on running.
    pub(super) fn suspects_loss(&self, pod: &PodFacts) -> bool {
        // It has shown no state of Slurm's yet, so it never registered, and nothing runs in it that Slurm could have
        // forgotten. Should slurmd start and register now, Slurm is asked again before the pod goes.
        if !pod.running && pod.conditions.is_empty() {
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
