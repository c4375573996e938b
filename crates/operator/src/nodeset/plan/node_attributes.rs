//! What Slurm is told of the machine under a worker, and what the pod shows of its Slurm node.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use keelson_api::well_known::{condition, slurm::FEATURE_PREFIX};
use slurm_rest::node::{NodeBase, NodeFlag};

use super::Draft;
use crate::{
    nodeset::facts::{KubeNodeFacts, PodFacts, Start, Step},
    slurm::facts::{NodeName, SlurmNode},
};

/// Jobs come and go; a pod shows that at most this often, so that a busy cluster does not keep the API server busy.
const CALM: jiff::SignedDuration = jiff::SignedDuration::from_secs(30);
/// While workers start, the API server has more urgent things to do than to hear how much work others have.
const STARTING: jiff::SignedDuration = jiff::SignedDuration::from_mins(1);
const AFTER_START: Duration = Duration::from_secs(5);
/// Conditions that only say how much work there is.
const WORK: [&str; 4] = ["Idle", "Mixed", "Allocated", "Completing"];

impl Draft<'_> {
    pub(super) fn descriptions(&mut self) {
        let now = self.observed.now;
        // One that does not come up at all must not keep the others silent.
        let starting = self.workers.iter().any(|worker| {
            let pod = worker.facts;
            pod.ready_since.is_none() && now.duration_since(pod.created) < STARTING
        });
        for worker in &self.workers {
            let pod = worker.facts;
            let node = self.slurm().node(&pod.node).filter(|node| !node.outdated);
            let machine = pod
                .machine
                .as_ref()
                .and_then(|name| self.observed.machines.get(name));
            if let Some(machine) = machine {
                let moved = machine.topology != pod.topology;
                if moved {
                    self.plan.steps.push(Step::Topology {
                        pod: pod.id(),
                        topology: machine.topology.clone(),
                    });
                }
                if let Some(node) = node {
                    // An API without a word for it is tried once for each change, so that a person hears why nothing happens.
                    let placed = place(&pod.node, machine, pod, node);
                    self.plan
                        .steps
                        .extend(placed.filter(|_| self.set.places_nodes || moved));
                    self.plan.steps.extend(features(&pod.node, machine, node));
                }
            }
            // Before slurmd has run in it, what Slurm says is about the worker that had the name before.
            let own = node.filter(|_| pod.start == Start::Yes);
            match own.map(|node| show_state(pod, node, now, starting)) {
                Some(Show::Now(step)) => self.plan.steps.push(step),
                Some(Show::Later(left)) => {
                    self.plan.look_within(left);
                }
                Some(Show::Shown) | None => {}
            }
        }
    }
}

/// What is to be done about the conditions of a pod.
enum Show {
    Shown,
    Now(Step),
    Later(Duration),
}

fn show_state(pod: &PodFacts, node: &SlurmNode, now: Timestamp, starting: bool) -> Show {
    let kind = |state| format!("{}{state}", condition::SLURM_NODE_STATE_PREFIX);
    let wanted: BTreeMap<String, String> = states(node)
        .map(|state| (kind(state), node.reason.clone()))
        .collect();
    let shown =
        |kind: &String, message: &String| pod.conditions.get(kind).is_some_and(|(text, _)| text == message);
    let mut set = wanted.clone();
    set.retain(|kind, message| !shown(kind, message));
    let drop: Vec<String> = pod
        .conditions
        .keys()
        .filter(|kind| !wanted.contains_key(*kind))
        .cloned()
        .collect();
    if set.is_empty() && drop.is_empty() {
        return Show::Shown;
    }
    let about_work = |kind: &String| WORK.iter().any(|work| kind.ends_with(work));
    let last = pod.conditions.values().filter_map(|(_, at)| *at).max();
    let since = last
        .map(|last| now.duration_since(last))
        .filter(|since| *since < CALM);
    let only_work = set.keys().chain(&drop).all(about_work);
    match since {
        Some(since) if only_work => Show::Later(Duration::try_from(CALM - since).unwrap_or_default()),
        None if only_work && starting => Show::Later(AFTER_START),
        _ => Show::Now(Step::Conditions {
            pod: pod.id(),
            set,
            drop,
        }),
    }
}

fn place(name: &NodeName, machine: &KubeNodeFacts, pod: &PodFacts, node: &SlurmNode) -> Option<Step> {
    // Where nobody ever wrote a topology, Slurm's own is left alone.
    let wanted = match (&machine.topology, &pod.topology) {
        (Some(topology), _) => topology.as_str(),
        (None, Some(_)) => "",
        (None, None) => return None,
    };
    (node.topology != wanted).then(|| Step::PlaceNode {
        node: name.clone(),
        topology: wanted.to_owned(),
    })
}

/// Only features with our prefix are ours to change.
fn features(name: &NodeName, machine: &KubeNodeFacts, node: &SlurmNode) -> Option<Step> {
    let merged = |known: &[String]| -> Vec<String> {
        let theirs = known
            .iter()
            .filter(|feature| !feature.starts_with(FEATURE_PREFIX));
        let mut all: Vec<String> = theirs.chain(&machine.features).cloned().collect();
        all.sort();
        all.dedup();
        all
    };
    let (features, active) = (merged(&node.features), merged(&node.active_features));
    let differs = features != node.features || active != node.active_features;
    differs.then(|| Step::SetFeatures {
        node: name.clone(),
        features,
        active,
    })
}

fn states(node: &SlurmNode) -> impl Iterator<Item = &'static str> {
    let base = match node.state.base {
        NodeBase::Allocated => "Allocated",
        NodeBase::Down => "Down",
        NodeBase::Error => "Error",
        NodeBase::Future => "Future",
        NodeBase::Idle => "Idle",
        NodeBase::Mixed => "Mixed",
        NodeBase::Unknown => "Unknown",
    };
    let flags = [
        (NodeFlag::Completing, "Completing"),
        (NodeFlag::Drain, "Drain"),
        (NodeFlag::Fail, "Fail"),
        (NodeFlag::Invalid, "Invalid"),
        (NodeFlag::InvalidReg, "InvalidReg"),
        (NodeFlag::Maintenance, "Maintenance"),
        (NodeFlag::NotResponding, "NotResponding"),
        (NodeFlag::Undrain, "Undrain"),
    ];
    let set = flags
        .into_iter()
        .filter(|(flag, _)| node.state.has(*flag))
        .map(|(_, word)| word);
    std::iter::once(base).chain(set.collect::<Vec<_>>())
}
