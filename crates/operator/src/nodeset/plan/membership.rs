//! How many workers there are to be and where: who leaves because there is no place for it, and who is made.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keelson_api::nodeset::ScalingMode;

use super::{AT_A_TIME, Draft, Worker, order::rank};
use crate::nodeset::facts::{Cause, Fit, Observed, Phase, PodFacts, Step};

impl Draft<'_> {
    /// Workers for which there is no place leave; whoever is wanted again stays.
    pub(super) fn choose_leavers(&mut self) {
        match self.set.mode {
            ScalingMode::StatefulSet => self.choose_surplus(),
            ScalingMode::DaemonSet => self.choose_misplaced(),
        }
    }

    fn choose_surplus(&mut self) {
        let (now, slurm, machines) = (self.observed.now, self.slurm(), &self.observed.machines);
        let mut own: Vec<&mut Worker<'_>> = self
            .workers
            .iter_mut()
            .filter(|worker| worker.facts.mode == ScalingMode::StatefulSet)
            .collect();
        let surplus = own
            .len()
            .saturating_sub(usize::try_from(self.set.replicas).unwrap_or(usize::MAX));
        // Those that are leaving already come first, so that a busy afternoon does not move the drain around.
        own.sort_by_cached_key(|worker| (!worker.leaves_for_good(), rank(worker.facts, slurm)));
        for (position, worker) in own.into_iter().enumerate() {
            let nowhere = |machine: &String| !machines.get(machine).is_some_and(|facts| facts.fit != Fit::No);
            let pinned_nowhere =
                worker.facts.machine.is_none() && worker.facts.target.as_ref().is_some_and(nowhere);
            // Who has least to lose is known only while Slurm answers; before, a choice would be a guess that stays.
            let informed = slurm.is_known() || worker.facts.is_empty() || worker.leaves_for_good();
            if position < surplus {
                if informed {
                    worker.intend(Cause::ScaleIn, now);
                }
            } else if pinned_nowhere {
                // The machine that it waits for is gone or does not fit any more; its successor goes elsewhere.
                worker.intend(Cause::Unplaced, now);
            } else if worker.leaves_for_good() {
                worker.intent = None;
            }
        }
    }

    /// One worker on each machine that fits, under the name that the machine gives it.
    fn choose_misplaced(&mut self) {
        let (now, slurm) = (self.observed.now, self.slurm());
        let mut by_machine: BTreeMap<Option<&String>, Vec<&mut Worker<'_>>> = BTreeMap::new();
        for worker in self
            .workers
            .iter_mut()
            .filter(|worker| worker.facts.mode == ScalingMode::DaemonSet)
        {
            by_machine
                .entry(worker.facts.target.as_ref())
                .or_default()
                .push(worker);
        }
        for (machine, mut workers) in by_machine {
            let facts = machine.and_then(|machine| self.observed.machines.get(machine));
            // The one whose loss would cost most stays.
            workers.sort_by_cached_key(|worker| std::cmp::Reverse(rank(worker.facts, slurm)));
            for (position, worker) in workers.into_iter().enumerate() {
                let cause = match facts {
                    None => Some(Cause::Unplaced),
                    Some(facts) if facts.fit == Fit::No => Some(Cause::Unplaced),
                    Some(facts) if facts.hostname != worker.facts.node.0 => Some(Cause::Renamed),
                    Some(_) if position > 0 => Some(Cause::Duplicate),
                    Some(_) => None,
                };
                match cause {
                    Some(cause) => worker.intend(cause, now),
                    None if worker.leaves_for_good() => worker.intent = None,
                    None => {}
                }
            }
        }
    }

    pub(super) fn create(&mut self) {
        // A worker that registers takes jobs at once.
        if self.set.quiesced {
            return;
        }
        let steps = match self.set.mode {
            ScalingMode::StatefulSet => self.missing_ordinals(),
            ScalingMode::DaemonSet => self.missing_machines(),
        };
        let starting = self
            .workers
            .iter()
            .filter(|worker| worker.facts.ready_since.is_none() && worker.facts.phase != Phase::Ended)
            .count();
        let room = self.set.startup_limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit)
                .unwrap_or(usize::MAX)
                .saturating_sub(starting)
        });
        // Whoever mistyped a number must not wait until it is reached.
        if steps.len().min(room) > AT_A_TIME {
            self.plan.look_within(Duration::ZERO);
        }
        let now = steps.into_iter().take(room.min(AT_A_TIME));
        self.plan.steps.extend(now);
    }

    fn missing_ordinals(&self) -> Vec<Step> {
        // A dying pod keeps its place: the one that follows has the same name. So does one of the other mode that has
        // not been told to go.
        let own = |pod: &PodFacts| pod.mode == ScalingMode::StatefulSet;
        let staying = self
            .workers
            .iter()
            .filter(|worker| own(worker.facts) || worker.intent.is_none())
            .count();
        let dying = self.terminating.iter().filter(|pod| own(pod)).count();
        let missing = self.observed.desired().saturating_sub(staying + dying);
        let taken: BTreeSet<u32> = self.observed.pods.iter().filter_map(|pod| pod.ordinal).collect();
        let free = (0..u32::MAX).filter(|ordinal| !taken.contains(ordinal));
        free.take(missing)
            .map(|ordinal| Step::Create {
                ordinal,
                machine: self.pin(ordinal),
            })
            .collect()
    }

    /// Where an ordinal goes back to, as long as that machine is there and fits.
    fn pin(&self, ordinal: u32) -> Option<String> {
        let machine = self.set.pins.get(&ordinal)?;
        let facts = self.observed.machines.get(machine)?;
        (facts.fit != Fit::No).then(|| machine.clone())
    }

    fn missing_machines(&self) -> Vec<Step> {
        // Whoever is there, even dying or of the other mode, holds the machine and maybe the name.
        let held: BTreeSet<&String> = self
            .observed
            .pods
            .iter()
            .filter_map(|pod| pod.target.as_ref())
            .collect();
        let taken = self.observed.taken.keys().map(|node| &node.0);
        let mut names: BTreeSet<&String> = self.observed.pods.iter().map(|pod| &pod.node.0).collect();
        names.extend(taken);
        self.observed
            .machines
            .iter()
            .filter(|(name, machine)| {
                // Two machines that give their workers one name get one worker, and so does one machine that two NodeSets
                // claim; `name_conflicts` tells of the other.
                machine.fit == Fit::Run && !held.contains(name) && names.insert(&machine.hostname)
            })
            .map(|(name, machine)| Step::CreateOn {
                machine: name.clone(),
                hostname: machine.hostname.clone(),
            })
            .collect()
    }
}

/// Machines that give their workers the same name, by that name: only one of them can have a worker.
pub fn name_conflicts(observed: &Observed) -> BTreeMap<&str, Vec<&str>> {
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    if observed.set.mode == ScalingMode::DaemonSet {
        for (name, machine) in observed
            .machines
            .iter()
            .filter(|(_, machine)| machine.fit == Fit::Run)
        {
            by_name.entry(&machine.hostname).or_default().push(name);
        }
    }
    by_name.retain(|_, machines| machines.len() > 1);
    by_name
}
