//! Derives the facts that `plan` decides on from the objects that `observe` read. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use keelson_api::{
    nodeset::{PruneSlurmNodeRecords, UpdateStrategyType},
    well_known::{annotation, slurm},
};
use kube::ResourceExt;
use serde_json::Value;

use super::{
    claims,
    facts::{self, Fit, KubeNodeFacts, Observed, PodFacts, SetFacts, Strategy},
    nodeset_facts::{leaving, paused, pins, records},
    observe::Read,
    placement,
    pod_facts::{identity, pod_facts},
};
use crate::{
    pod_diagnosis::diagnose,
    slurm::facts::{NodeName, Slurm},
};

pub fn derive_facts(
    read: &Read,
    worker: &Worker<'_>,
    slurm: Slurm,
    propagated: &[String],
    now: Timestamp,
) -> Observed {
    let kube_nodes: BTreeMap<String, KubeNodeFacts> = read
        .nodes
        .iter()
        .map(|(name, node)| (name.clone(), kube_node_facts(node, worker.pod_spec, propagated)))
        .collect();
    let pods: Vec<PodFacts> = read
        .pods
        .iter()
        .map(|pod| worker_facts(read, worker, pod, now))
        .collect();
    let spec = &read.nodeset.spec;
    let replicas = u32::try_from(spec.replicas).unwrap_or(0);
    let taken: BTreeMap<NodeName, String> = read
        .pods_of_siblings
        .iter()
        .map(|pod| (pod_facts(pod, now).node, pod.name_any()))
        .collect();
    let desired = facts::desired(spec.scaling_mode, replicas, &kube_nodes, &pods, &taken);
    let desired = u32::try_from(desired).unwrap_or(u32::MAX);
    Observed {
        set: set_facts(read, worker.revision, desired),
        pods,
        slurm,
        kube_nodes,
        taken,
        now,
    }
}

/// The properties of a worker created now.
#[derive(Debug, Clone, Copy)]
pub struct Worker<'a> {
    pub revision: &'a str,
    /// Slinky revisions whose pods equal those of this revision.
    pub equal: &'a BTreeSet<String>,
    /// Revisions whose workers register with the same node configuration.
    pub same_node: &'a BTreeSet<String>,
    /// Absent if the pod could not be built.
    pub pod_spec: Option<&'a Value>,
}

fn set_facts(read: &Read, revision: &str, desired: u32) -> SetFacts {
    let nodeset = &read.nodeset;
    let spec = &nodeset.spec;
    let replicas = u32::try_from(spec.replicas).unwrap_or(0);
    let strategy = match spec.update_type() {
        UpdateStrategyType::RollingUpdate => {
            let rolling = spec.rolling_update();
            Strategy::Rolling {
                max_unavailable: rolling.max_unavailable.scaled_up(desired).unwrap_or(1),
                partition: rolling
                    .partition
                    .and_then(|partition| u32::try_from(partition).ok())
                    .unwrap_or(0),
            }
        }
        UpdateStrategyType::OnDelete => Strategy::OnDelete,
        UpdateStrategyType::ScheduledUpdate => Strategy::Scheduled {
            reservation: nodeset.reservation_name(),
        },
    };
    SetFacts {
        namespace: nodeset.namespace().unwrap_or_default(),
        name: nodeset.name_any(),
        uid: nodeset.uid().unwrap_or_default(),
        replicas,
        mode: spec.scaling_mode,
        revision: revision.to_owned(),
        strategy,
        drain_timeout: spec.drain_timeout().ok().flatten(),
        on_drain_timeout: spec.on_drain_timeout(),
        paused: paused(nodeset),
        leaving: leaving(nodeset, &read.revisions),
        min_ready: spec.min_ready(),
        startup_limit: spec
            .max_concurrent_startup
            .and_then(|limit| u32::try_from(limit).ok()),
        protect: spec.workload_disruption_protection,
        claim_retention: spec.claim_retention(),
        pins: pins(nodeset),
        records: records(nodeset),
        prune: spec.prune_slurm_node_records == PruneSlurmNodeRecords::NodeNotFound,
        places_nodes: true,
        quiesced: read.controller.as_ref().is_some_and(|controller| {
            let recorded = controller.annotations().get(annotation::QUIESCED_FOR);
            recorded.is_some_and(|recorded| recorded != slurm::QUIESCE_OVER) && !controller.spec.external
        }),
    }
}

/// Derives the facts of a pod, including those that depend on its NodeSet.
fn worker_facts(read: &Read, worker: &Worker<'_>, pod: &Pod, now: Timestamp) -> PodFacts {
    let mut facts = pod_facts(pod, now);
    if facts.ready_since.is_none() {
        facts.trouble = diagnose(pod, now);
    }
    // A pod that Slinky created from the same inputs is not replaced.
    if worker.equal.contains(&facts.revision) {
        worker.revision.clone_into(&mut facts.revision);
    }
    let status = read.nodeset.status.as_ref();
    let noted = status.and_then(|status| status.outdated_nodes.as_ref()?.get(&facts.node.0));
    let made_by = noted.unwrap_or(&facts.revision);
    facts.reshaped = made_by != worker.revision && !worker.same_node.contains(made_by);
    let id = facts.id();
    facts.claims = claims::names(&read.nodeset, &identity(&read.nodeset, &facts))
        .iter()
        .filter_map(|name| read.claims.get(name))
        .filter(|claim| claim.metadata.deletion_timestamp.is_none())
        .map(|claim| claims::facts(&read.nodeset, &id, claim))
        .collect();
    facts
}

fn kube_node_facts(node: &Node, pod_spec: Option<&Value>, propagated: &[String]) -> KubeNodeFacts {
    KubeNodeFacts {
        cordoned: node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true),
        cordon_reason: cordon_reason(node, propagated),
        // Without a pod spec, existing workers stay.
        fit: pod_spec.map_or(Fit::Stay, |spec| placement::fit(spec, node)),
        hostname: kube_node_hostname(node),
        topology: node
            .annotations()
            .get(annotation::TOPOLOGY_SPEC)
            .filter(|spec| !spec.is_empty())
            .cloned(),
        features: kube_node_features(node),
    }
}

/// Returns the host name override, or else the first part of the node's name.
fn kube_node_hostname(node: &Node) -> String {
    let name = node.name_any();
    let written = node
        .annotations()
        .get(annotation::HOSTNAME_OVERRIDE)
        .filter(|name| !name.is_empty());
    written
        .cloned()
        .unwrap_or_else(|| name.split('.').next().unwrap_or_default().to_owned())
}

/// Returns the features in the node's annotation, each with our prefix.
fn kube_node_features(node: &Node) -> Vec<String> {
    let written = node
        .annotations()
        .get(annotation::FEATURES_SPEC)
        .map_or("", String::as_str);
    let mut features: Vec<String> = written
        .split(',')
        .map(str::trim)
        .filter(|feature| !feature.is_empty())
        .map(|feature| format!("{}{feature}", slurm::FEATURE_PREFIX))
        .collect();
    features.sort();
    features.dedup();
    features
}

/// Returns the cordon reason from the node's annotation, or else from its conditions.
fn cordon_reason(node: &Node, propagated: &[String]) -> Option<String> {
    if let Some(text) = node.annotations().get(annotation::NODE_CORDON_REASON) {
        let clean = sanitised(text);
        if !clean.is_empty() {
            return Some(clean);
        }
    }
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let parts: Vec<String> = conditions
        .into_iter()
        .flatten()
        .filter(|condition| condition.status == "True" && propagated.contains(&condition.type_))
        .map(|condition| {
            let reason = condition.reason.as_deref().unwrap_or_default();
            format!("({reason}: {})", condition.message.as_deref().unwrap_or_default())
        })
        .collect();
    let text = sanitised(&parts.join("; "));
    (!text.is_empty()).then_some(text)
}

/// Returns the text as a single line without control characters, short enough for Slurm.
fn sanitised(text: &str) -> String {
    const LONGEST: usize = 256;
    let spaced = text
        .chars()
        .map(|c| if matches!(c, '\t' | '\n' | '\r') { ' ' } else { c });
    let clean: String = spaced.filter(|c| !c.is_control()).collect();
    clean.trim().chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("a\nb\tc\r", "a b c")]
    #[case("\u{1b}[31mred\u{7}", "[31mred")]
    #[case("  x ", "x")]
    fn a_reason_is_one_clean_line(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(sanitised(text), expected);
        assert_eq!(sanitised(&"ä".repeat(300)).chars().count(), 256);
    }
}
