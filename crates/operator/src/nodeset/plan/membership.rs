//! Scaling and placement: which workers are removed because they are surplus or misplaced, and which are created.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keelson_api::nodeset::ScalingMode;

use super::{AT_A_TIME, Draft, Worker, order::rank};
use crate::nodeset::facts::{Cause, Fit, Observed, Phase, PodFacts, Step};

impl Draft<'_> {
    /// Marks surplus or misplaced workers for removal, and unmarks those that are needed again.
    pub(super) fn choose_leavers(&mut self) {
        match self.set.mode {
            ScalingMode::StatefulSet => self.choose_surplus(),
            ScalingMode::DaemonSet => self.choose_misplaced(),
        }
    }

    fn choose_surplus(&mut self) {
        let (now, slurm, kube_nodes) = (self.observed.now, self.slurm(), &self.observed.kube_nodes);
        let mut own: Vec<&mut Worker<'_>> = self
            .workers
            .iter_mut()
            .filter(|worker| worker.facts.mode == ScalingMode::StatefulSet)
            .collect();
        let surplus = own
            .len()
            .saturating_sub(usize::try_from(self.set.replicas).unwrap_or(usize::MAX));
        // Workers already marked come first, so the choice stays stable while jobs start and end.
        own.sort_by_cached_key(|worker| (!worker.leaves_for_good(), rank(worker.facts, worker.node)));
        for (position, worker) in own.into_iter().enumerate() {
            let nowhere = |kube_node: &String| {
                !kube_nodes
                    .get(kube_node)
                    .is_some_and(|facts| facts.fit != Fit::No)
            };
            let pinned_nowhere =
                worker.facts.kube_node.is_none() && worker.facts.target.as_ref().is_some_and(nowhere);
            // Without an answer from Slurm it is unknown which workers are idle, and the choice would be kept.
            let informed = slurm.is_known() || worker.facts.is_empty() || worker.leaves_for_good();
            if position < surplus {
                if informed {
                    worker.intend(Cause::ScaleIn, now);
                }
            } else if pinned_nowhere {
                // The Kubernetes node that it waits for is gone or no longer eligible; its replacement is placed
                // elsewhere.
                worker.intend(Cause::Unplaced, now);
            } else if worker.leaves_for_good() {
                worker.intent = None;
            }
        }
    }

    /// Marks misplaced workers in DaemonSet mode: each eligible Kubernetes node keeps one worker, with the host name
    /// that the node requests.
    fn choose_misplaced(&mut self) {
        let now = self.observed.now;
        let mut by_kube_node: BTreeMap<Option<&String>, Vec<&mut Worker<'_>>> = BTreeMap::new();
        for worker in self
            .workers
            .iter_mut()
            .filter(|worker| worker.facts.mode == ScalingMode::DaemonSet)
        {
            by_kube_node
                .entry(worker.facts.target.as_ref())
                .or_default()
                .push(worker);
        }
        for (kube_node, mut workers) in by_kube_node {
            let facts = kube_node.and_then(|kube_node| self.observed.kube_nodes.get(kube_node));
            // Keep the worker whose removal would cost most.
            workers.sort_by_cached_key(|worker| std::cmp::Reverse(rank(worker.facts, worker.node)));
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
        // A new worker would accept jobs as soon as it registers.
        if self.set.quiesced {
            return;
        }
        let steps = match self.set.mode {
            ScalingMode::StatefulSet => self.missing_ordinals(),
            ScalingMode::DaemonSet => self.missing_kube_nodes(),
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
        // Create in batches, so that a mistyped number of replicas can be corrected in time.
        if steps.len().min(room) > AT_A_TIME {
            self.plan.look_within(Duration::ZERO);
        }
        let now = steps.into_iter().take(room.min(AT_A_TIME));
        self.plan.steps.extend(now);
    }

    fn missing_ordinals(&self) -> Vec<Step> {
        // A terminating pod keeps its place, because its replacement has the same name. So does a pod of the other
        // scaling mode that is not marked for removal.
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
                kube_node: self.pin(ordinal),
            })
            .collect()
    }

    /// Returns the Kubernetes node that an ordinal is pinned to, if it exists and is eligible.
    fn pin(&self, ordinal: u32) -> Option<String> {
        let kube_node = self.set.pins.get(&ordinal)?;
        let facts = self.observed.kube_nodes.get(kube_node)?;
        (facts.fit != Fit::No).then(|| kube_node.clone())
    }

    fn missing_kube_nodes(&self) -> Vec<Step> {
        // Any existing pod, even terminating or of the other mode, occupies its Kubernetes node and possibly the name.
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
            .kube_nodes
            .iter()
            .filter(|(name, kube_node)| {
                // Two Kubernetes nodes with the same host name get one worker, and so does one node that two NodeSets
                // select; `name_conflicts` reports the other.
                kube_node.fit == Fit::Run && !held.contains(name) && names.insert(&kube_node.hostname)
            })
            .map(|(name, kube_node)| Step::CreateOn {
                kube_node: name.clone(),
                hostname: kube_node.hostname.clone(),
            })
            .collect()
    }
}

/// Returns the Kubernetes nodes that request the same host name, by that name: only one of them can have a worker.
pub fn name_conflicts(observed: &Observed) -> BTreeMap<&str, Vec<&str>> {
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    if observed.set.mode == ScalingMode::DaemonSet {
        for (name, kube_node) in observed
            .kube_nodes
            .iter()
            .filter(|(_, kube_node)| kube_node.fit == Fit::Run)
        {
            by_name.entry(&kube_node.hostname).or_default().push(name);
        }
    }
    by_name.retain(|_, kube_nodes| kube_nodes.len() > 1);
    by_name
}
