//! Reads a NodeSet, its pods and its surroundings, and turns them into facts.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use keelson_api::{
    Controller, NodeSet,
    nodeset::{NodeSetDeletionPolicy, ScalingMode, UpdateStrategyType},
    well_known::{annotation, container, label},
};
use keelson_runtime::{Key, contents};
use kube::ResourceExt;

use super::facts::{Cause, Intent, Leaving, MachineFacts, Observed, Phase, PodFacts, SetFacts, Strategy};
use crate::{
    caches::{CONTROLLER, OWNER, owned_by_value},
    context::Context,
    slurm::facts::{NodeName, Slurm},
};

/// What was read, before it is turned into facts.
#[derive(Debug, Clone)]
pub struct Read {
    pub nodeset: Arc<NodeSet>,
    pub controller: Option<Arc<Controller>>,
    /// Every NodeSet of the same Controller, this one too.
    pub siblings: Vec<Arc<NodeSet>>,
    pub sssd: Option<Arc<Secret>>,
    pub cluster_domain: String,
    pub pods: Vec<Arc<Pod>>,
    pub nodes: BTreeMap<String, Arc<Node>>,
    pub live: Live,
}

/// The children other than pods, as they are.
#[derive(Debug, Clone, Default)]
pub struct Live {
    pub workers_service: Option<Arc<Service>>,
    pub workers_budget: Option<Arc<PodDisruptionBudget>>,
    pub ssh_config: Option<Arc<ConfigMap>>,
}

pub async fn read(context: &Context, nodeset: Arc<NodeSet>) -> Result<Read, contents::Error> {
    let caches = &context.caches;
    let namespace = nodeset.namespace().unwrap_or_default();
    let here = |name: &str| Key::new(&namespace, name);
    let controller_key = here(&nodeset.spec.controller_ref.name);
    let sssd = match nodeset
        .spec
        .ssh
        .as_ref()
        .and_then(|ssh| ssh.sssd_conf_ref.as_ref())
    {
        Some(reference) if nodeset.spec.sssd_enabled() => context.secret(&namespace, &reference.name).await?,
        _ => None,
    };
    let owned = owned_by_value("NodeSet", &namespace, &nodeset.name_any());
    let pods: Vec<Arc<Pod>> = caches
        .pods
        .find(OWNER, &owned)
        .into_iter()
        .filter(|pod| {
            pod.owner_references()
                .iter()
                .any(|owner| Some(&owner.uid) == nodeset.metadata.uid.as_ref())
        })
        .collect();
    let nodes = pods
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .filter_map(|name| Some((name.clone(), caches.nodes.get(&Key::new("", name))?)))
        .collect();
    let ssh_config = if nodeset.spec.ssh_enabled() {
        context.config_map(&namespace, &nodeset.ssh_config_name()).await?
    } else {
        None
    };
    Ok(Read {
        controller: caches.controllers.get(&controller_key),
        siblings: caches.nodesets.find(CONTROLLER, &controller_key.to_string()),
        sssd,
        cluster_domain: context.settings.cluster_domain.clone(),
        pods,
        nodes,
        live: Live {
            workers_service: caches.services.get(&here(&nodeset.workers_service_name())),
            workers_budget: caches.disruption_budgets.get(&here(&nodeset.workers_pdb_name())),
            ssh_config,
        },
        nodeset,
    })
}

/// The facts that `plan` decides on.
pub fn facts(read: &Read, revision: &str, slurm: Slurm, propagated: &[String], now: Timestamp) -> Observed {
    Observed {
        set: set_facts(&read.nodeset, revision),
        pods: read.pods.iter().map(|pod| pod_facts(pod)).collect(),
        slurm,
        machines: read
            .nodes
            .iter()
            .map(|(name, node)| (name.clone(), machine_facts(node, propagated)))
            .collect(),
        now,
    }
}

fn set_facts(nodeset: &NodeSet, revision: &str) -> SetFacts {
    let spec = &nodeset.spec;
    let replicas = u32::try_from(spec.replicas).unwrap_or(0);
    let strategy = match spec.update_type() {
        UpdateStrategyType::RollingUpdate => {
            let rolling = spec.rolling_update();
            Strategy::Rolling {
                max_unavailable: rolling.max_unavailable.scaled_up(replicas).unwrap_or(1),
                partition: rolling
                    .partition
                    .and_then(|partition| u32::try_from(partition).ok())
                    .unwrap_or(0),
            }
        }
        UpdateStrategyType::OnDelete | UpdateStrategyType::ScheduledUpdate => Strategy::OnDelete,
    };
    let is_set = |key: &str| {
        nodeset
            .annotations()
            .get(key)
            .is_some_and(|value| value == "true")
    };
    let leaving = match (
        nodeset.metadata.deletion_timestamp.is_some(),
        spec.deletion_policy(),
    ) {
        (false, _) => Leaving::No,
        (true, _) if is_set(annotation::FORCE_DELETE) => Leaving::Immediately,
        (true, NodeSetDeletionPolicy::Drain) => Leaving::Drain,
        (true, NodeSetDeletionPolicy::Immediate) => Leaving::Immediately,
    };
    SetFacts {
        namespace: nodeset.namespace().unwrap_or_default(),
        replicas,
        mode: spec.scaling_mode,
        revision: revision.to_owned(),
        strategy,
        drain_timeout: spec.drain_timeout().ok().flatten(),
        on_drain_timeout: spec.on_drain_timeout(),
        paused: spec.paused() || is_set(annotation::PAUSED),
        leaving,
        min_ready: spec.min_ready(),
        startup_limit: spec
            .max_concurrent_startup
            .and_then(|limit| u32::try_from(limit).ok()),
        protect: spec.workload_disruption_protection,
    }
}

pub fn pod_facts(pod: &Pod) -> PodFacts {
    let labels = pod.labels();
    let annotations = pod.annotations();
    let name = pod.name_any();
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let mode = match labels.get(label::SCALING_MODE).map(String::as_str) {
        Some("DaemonSet") => ScalingMode::DaemonSet,
        _ => ScalingMode::StatefulSet,
    };
    let ordinal = labels
        .get(label::POD_INDEX)
        .map(String::as_str)
        .or_else(|| name.rsplit('-').next())
        .and_then(|digits| digits.parse().ok())
        .filter(|_| mode == ScalingMode::StatefulSet);
    let host_network = spec.and_then(|spec| spec.host_network) == Some(true);
    let machine = spec.and_then(|spec| spec.node_name.clone());
    let hostname = spec.and_then(|spec| spec.hostname.clone());
    // slurmd calls itself what `hostname` says, which on the host's network is the machine's name.
    let node = match (&machine, mode) {
        (Some(machine), ScalingMode::StatefulSet) if host_network => machine.clone(),
        _ => hostname.unwrap_or_else(|| name.clone()),
    };
    let phase = match status.and_then(|status| status.phase.as_deref()) {
        Some("Pending") | None => Phase::Pending,
        Some("Running") => Phase::Running,
        Some("Failed" | "Succeeded") => Phase::Ended,
        Some(_) => Phase::Unknown,
    };
    let ready_since = status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready" && condition.status == "True")
        .and_then(|condition| condition.last_transition_time.as_ref())
        .map(|time| time.0);
    let is_set = |key: &str| annotations.get(key).is_some_and(|value| value == "true");
    let intent = annotations
        .get(annotation::DRAIN_CAUSE)
        .and_then(|word| Cause::from_word(word))
        .map(|cause| {
            let since = annotations
                .get(annotation::DRAIN_SINCE)
                .and_then(|text| text.parse().ok());
            Intent {
                cause,
                since: since.unwrap_or(Timestamp::MAX),
            }
        });
    PodFacts {
        uid: pod.uid().unwrap_or_default(),
        mode,
        ordinal,
        node: NodeName(node),
        revision: labels.get(label::REVISION_HASH).cloned().unwrap_or_default(),
        phase,
        started: has_started(pod),
        ready_since,
        created: pod.creation_timestamp().map_or(Timestamp::MIN, |time| time.0),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        machine,
        cordoned: is_set(annotation::POD_CORDON),
        intent,
        deletion_cost: annotations
            .get(annotation::POD_DELETION_COST)
            .and_then(|c| c.parse().ok())
            .unwrap_or(0),
        protected: labels
            .get(label::POD_PROTECT)
            .is_some_and(|value| value == "true"),
        name,
    }
}

/// Whether slurmd ever ran in this pod. A status that says nothing about it counts as yes.
fn has_started(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
        return false;
    }
    let slurmd = status
        .container_statuses
        .iter()
        .flatten()
        .find(|status| status.name == container::SLURMD);
    match slurmd {
        None => status.phase.as_deref() != Some("Pending"),
        Some(slurmd) => {
            let waiting = slurmd.state.as_ref().is_some_and(|state| state.waiting.is_some());
            let before = slurmd
                .last_state
                .as_ref()
                .is_some_and(|state| state.terminated.is_some());
            !waiting || before || slurmd.restart_count > 0
        }
    }
}

fn machine_facts(node: &Node, propagated: &[String]) -> MachineFacts {
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    MachineFacts {
        cordoned,
        cordon_reason: cordon_reason(node, propagated),
    }
}

/// What a person wrote, else what the node's own conditions say.
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

/// One line without control characters, short enough for Slurm.
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
    use serde_json::{Value, json};

    use super::*;

    #[allow(
        clippy::needless_pass_by_value,
        reason = "json! literals read better unborrowed"
    )]
    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "w-0" },
            "spec": { "nodeName": "n", "containers": [] },
            "status": status,
        }))
        .unwrap()
    }

    #[rstest]
    #[case::image_missing(
        json!({ "phase": "Pending", "containerStatuses": [
            { "name": "slurmd", "image": "", "imageID": "", "ready": false, "restartCount": 0,
              "state": { "waiting": { "reason": "ImagePullBackOff" } } }] }),
        false
    )]
    #[case::crash_loop(
        json!({ "phase": "Running", "containerStatuses": [
            { "name": "slurmd", "image": "", "imageID": "", "ready": false, "restartCount": 1,
              "state": { "waiting": { "reason": "CrashLoopBackOff" } } }] }),
        true
    )]
    #[case::running(
        json!({ "phase": "Running", "containerStatuses": [
            { "name": "slurmd", "image": "", "imageID": "", "ready": true, "restartCount": 0,
              "state": { "running": {} } }] }),
        true
    )]
    #[case::kubelet_silent(json!({ "phase": "Unknown" }), true)]
    #[case::just_bound(json!({ "phase": "Pending" }), false)]
    fn only_a_pod_that_never_ran_slurmd_has_not_started(#[case] status: Value, #[case] started: bool) {
        assert_eq!(has_started(&pod(status)), started);
    }

    #[rstest]
    #[case("a\nb\tc\r", "a b c")]
    #[case("\u{1b}[31mred\u{7}", "[31mred")]
    #[case("  x ", "x")]
    fn a_reason_is_one_clean_line(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(sanitised(text), expected);
        assert_eq!(sanitised(&"ä".repeat(300)).chars().count(), 256);
    }

    #[test]
    fn an_intent_without_a_readable_time_proves_nothing() {
        let mut pod = pod(json!({}));
        pod.metadata.annotations = Some([(annotation::DRAIN_CAUSE.to_owned(), "scale-in".to_owned())].into());
        assert_eq!(pod_facts(&pod).intent.unwrap().since, Timestamp::MAX);
    }
}
