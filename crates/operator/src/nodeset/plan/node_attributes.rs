//! Copies attributes of Kubernetes nodes to Slurm nodes, and shows the state of Slurm nodes as pod conditions.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use keelson_api::well_known::{condition, slurm::FEATURE_PREFIX};
use slurm_rest::node::{NodeBase, NodeFlag};

use super::Draft;
use crate::{
    nodeset::facts::{KubeNodeFacts, PodFacts, Start, Step},
    slurm::facts::{NodeName, SlurmNode},
};

/// The minimum interval between updates of a pod's job-related conditions, to limit the load on the API server.
const CALM: jiff::SignedDuration = jiff::SignedDuration::from_secs(30);
/// How long a worker that is not ready delays job-related conditions after its creation, to limit the load on the API
/// server.
const STARTING: jiff::SignedDuration = jiff::SignedDuration::from_mins(1);
const AFTER_START: Duration = Duration::from_secs(5);
/// Conditions that only show the job load.
const WORK: [&str; 4] = ["Idle", "Mixed", "Allocated", "Completing"];

impl Draft<'_> {
    pub(super) fn descriptions(&mut self) {
        let now = self.observed.now;
        // A worker that never starts must not delay the others forever.
        let starting = self.workers.iter().any(|worker| {
            let pod = worker.facts;
            pod.ready_since.is_none() && now.duration_since(pod.created) < STARTING
        });
        for worker in &self.workers {
            let pod = worker.facts;
            let node = worker.node.filter(|node| !node.outdated);
            let kube_node = pod
                .kube_node
                .as_ref()
                .and_then(|name| self.observed.kube_nodes.get(name));
            if let Some(kube_node) = kube_node {
                let moved = kube_node.topology != pod.topology;
                if moved {
                    self.plan.steps.push(Step::Topology {
                        pod: pod.id(),
                        topology: kube_node.topology.clone(),
                    });
                }
                if let Some(node) = node {
                    // If the Slurm API cannot change the topology, try once per change, so that an event reports it.
                    let placed = place(&pod.node, kube_node, pod, node);
                    self.plan
                        .steps
                        .extend(placed.filter(|_| self.set.places_nodes || moved));
                    self.plan.steps.extend(features(&pod.node, kube_node, node));
                }
            }
            // Until slurmd has run in this pod, the state in Slurm is that of the previous worker.
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

/// When to update the conditions of a pod.
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

fn place(name: &NodeName, kube_node: &KubeNodeFacts, pod: &PodFacts, node: &SlurmNode) -> Option<Step> {
    // Without a topology annotation, the topology in Slurm is not changed.
    let wanted = match (&kube_node.topology, &pod.topology) {
        (Some(topology), _) => topology.as_str(),
        (None, Some(_)) => "",
        (None, None) => return None,
    };
    (node.topology != wanted).then(|| Step::PlaceNode {
        node: name.clone(),
        topology: wanted.to_owned(),
    })
}

/// Updates the features with our prefix, and keeps the others.
fn features(name: &NodeName, kube_node: &KubeNodeFacts, node: &SlurmNode) -> Option<Step> {
    let merged = |known: &[String]| -> Vec<String> {
        let theirs = known
            .iter()
            .filter(|feature| !feature.starts_with(FEATURE_PREFIX));
        let mut all: Vec<String> = theirs.chain(&kube_node.features).cloned().collect();
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
