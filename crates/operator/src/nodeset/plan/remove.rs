//! Which pods may go now, and what the others wait for.

use super::Draft;
use crate::{
    nodeset::facts::{Intent, Leaving, Phase, PodFacts, Step, Wait, Why},
    slurm::facts::Slurm,
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
        if !pod.started || self.set.leaving == Leaving::Immediately {
            return Ok(Step::Discard { pod: pod.id() });
        }
        let nodes = match self.slurm() {
            Slurm::Unknown { .. } => return Err(Why::SlurmUnknown),
            Slurm::Known { nodes, .. } => nodes,
        };
        let step = || {
            let (pod, node) = (pod.id(), pod.node.clone());
            if intent.cause.for_good() {
                Step::Retire { pod, node }
            } else {
                Step::Replace { pod, node }
            }
        };
        match nodes.get(&pod.node) {
            None if self.suspects_loss(pod) => Err(Why::SuspectLoss),
            None => Ok(step()),
            Some(node) if node.outdated => Err(Why::Reading),
            Some(node) if node.busy() => Err(Why::Jobs {
                until: node.busy_until,
            }),
            Some(node) if node.drained() && node.read_at > intent.since => Ok(step()),
            Some(_) => Err(Why::Reading),
        }
    }

    /// Whether the absence of this worker from Slurm's list proves nothing: a slurmctld that lost its state has an empty
    /// or short list, while jobs go on running.
    pub(super) fn suspects_loss(&self, pod: &PodFacts) -> bool {
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
}
