//! Turns what was read into the facts that `plan` decides on. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod};
use keelson_api::{
    NodeSet,
    nodeset::{NodeSetDeletionPolicy, ScalingMode, UpdateStrategyType},
    well_known::{annotation, condition, container, label, slurm},
};
use kube::ResourceExt;
use serde_json::Value;

use super::{
    claims,
    facts::{self, Cause, Fit, Intent, Leaving, MachineFacts, Observed, Phase, PodFacts, SetFacts, Strategy},
    observe::Read,
    placement,
};
use crate::{
    pod_trouble::trouble,
    slurm::facts::{NodeName, Slurm},
};

/// The facts that `plan` decides on.
pub fn perceive(
    read: &Read,
    worker: &Worker<'_>,
    slurm: Slurm,
    propagated: &[String],
    now: Timestamp,
) -> Observed {
    let machines: BTreeMap<String, MachineFacts> = read
        .nodes
        .iter()
        .map(|(name, node)| (name.clone(), machine_facts(node, worker.pod_spec, propagated)))
        .collect();
    let pods: Vec<PodFacts> = read
        .pods
        .iter()
        .map(|pod| worker_facts(read, worker, pod, now))
        .collect();
    let spec = &read.nodeset.spec;
    let replicas = u32::try_from(spec.replicas).unwrap_or(0);
    let desired = facts::desired(spec.scaling_mode, replicas, &machines, &pods);
    let desired = u32::try_from(desired).unwrap_or(u32::MAX);
    Observed {
        set: set_facts(&read.nodeset, worker.revision, desired),
        pods,
        slurm,
        machines,
        now,
    }
}

/// Whether somebody leaves or is to leave, so that it matters what jobs do with the nodes.
pub fn needs_work(read: &Read, worker: &Worker<'_>) -> bool {
    let spec = &read.nodeset.spec;
    let surplus = usize::try_from(spec.replicas).is_ok_and(|replicas| read.pods.len() > replicas);
    let old = |pod: &Pod| {
        pod.labels()
            .get(label::REVISION_HASH)
            .is_none_or(|hash| hash != worker.revision && !worker.equal.contains(hash))
    };
    let leaving = |pod: &Pod| pod.annotations().contains_key(annotation::DRAIN_CAUSE);
    read.nodeset.metadata.deletion_timestamp.is_some()
        || (surplus && spec.scaling_mode == ScalingMode::StatefulSet)
        || !records(&read.nodeset).is_empty()
        || read.pods.iter().any(|pod| old(pod) || leaving(pod))
}

/// Whether a person stopped all changes.
pub fn is_paused(nodeset: &NodeSet) -> bool {
    let annotation = nodeset.annotations().get(annotation::PAUSED);
    nodeset.spec.paused() || annotation.is_some_and(|value| value == "true")
}

/// What a worker made now would be.
#[derive(Debug, Clone, Copy)]
pub struct Worker<'a> {
    pub revision: &'a str,
    /// Revisions under which the peer made the same.
    pub equal: &'a BTreeSet<String>,
    /// Revisions whose workers register as the same kind of node.
    pub same_node: &'a BTreeSet<String>,
    /// Absent when none could be built.
    pub pod_spec: Option<&'a Value>,
}

fn set_facts(nodeset: &NodeSet, revision: &str, desired: u32) -> SetFacts {
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
        replicas,
        mode: spec.scaling_mode,
        revision: revision.to_owned(),
        strategy,
        drain_timeout: spec.drain_timeout().ok().flatten(),
        on_drain_timeout: spec.on_drain_timeout(),
        paused: is_paused(nodeset),
        leaving,
        min_ready: spec.min_ready(),
        startup_limit: spec
            .max_concurrent_startup
            .and_then(|limit| u32::try_from(limit).ok()),
        protect: spec.workload_disruption_protection,
        claim_retention: spec.claim_retention(),
        pins: pins(nodeset),
        records: records(nodeset),
    }
}

/// The records that another kind of worker made.
pub fn records(nodeset: &NodeSet) -> BTreeMap<NodeName, String> {
    let status = nodeset.status.as_ref();
    let noted = status.and_then(|status| status.outdated_nodes.as_ref());
    noted
        .into_iter()
        .flatten()
        .map(|(node, revision)| (NodeName(node.clone()), revision.clone()))
        .collect()
}

/// A pod with what only its NodeSet's surroundings tell of it.
fn worker_facts(read: &Read, worker: &Worker<'_>, pod: &Pod, now: Timestamp) -> PodFacts {
    let mut facts = pod_facts(pod);
    if facts.ready_since.is_none() {
        facts.trouble = trouble(pod, now);
    }
    // One that the peer made from the same is not made anew for being made by the peer.
    if worker.equal.contains(&facts.revision) {
        worker.revision.clone_into(&mut facts.revision);
    }
    let status = read.nodeset.status.as_ref();
    let noted = status.and_then(|status| status.outdated_nodes.as_ref()?.get(&facts.node.0));
    let made_by = noted.unwrap_or(&facts.revision);
    facts.reshaped = made_by != worker.revision && !worker.same_node.contains(made_by);
    let id = facts.id();
    facts.claims = claims::names(&read.nodeset, &identity(&read.nodeset, pod))
        .iter()
        .filter_map(|name| read.claims.get(name))
        .filter(|claim| claim.metadata.deletion_timestamp.is_none())
        .map(|claim| claims::facts(&read.nodeset, &id, claim))
        .collect();
    facts
}

/// What makes a worker's claims its own: the padded ordinal, or its host name in DaemonSet mode.
pub fn identity(nodeset: &NodeSet, pod: &Pod) -> String {
    let facts = pod_facts(pod);
    match facts.mode {
        ScalingMode::StatefulSet => facts
            .name
            .strip_prefix(&nodeset.pod_generate_name())
            .unwrap_or_default()
            .to_owned(),
        ScalingMode::DaemonSet => facts.node.0,
    }
}

/// Whether a pod that nobody is in charge of is a worker of this NodeSet by its name. Its labels say so already.
pub fn is_one_of(nodeset: &NodeSet, pod: &Pod) -> bool {
    let prefix = nodeset.pod_generate_name();
    match pod.labels().get(label::SCALING_MODE).map(String::as_str) {
        Some("DaemonSet") => pod.metadata.generate_name.as_ref() == Some(&prefix),
        _ => pod
            .name_any()
            .strip_prefix(&prefix)
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit())),
    }
}

/// The machine that each ordinal goes back to.
pub fn pins(nodeset: &NodeSet) -> BTreeMap<u32, String> {
    let spec = &nodeset.spec;
    if !spec.pin_to_node || spec.scaling_mode != ScalingMode::StatefulSet {
        return BTreeMap::new();
    }
    let known = nodeset
        .status
        .as_ref()
        .and_then(|status| status.ordinal_to_node.as_ref());
    known
        .into_iter()
        .flatten()
        .filter_map(|(ordinal, machine)| Some((ordinal.parse().ok()?, machine.clone())))
        .collect()
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
        reshaped: false,
        phase,
        started: has_started(pod),
        running: may_be_running(pod),
        ready_since,
        created: pod.creation_timestamp().map_or(Timestamp::MIN, |time| time.0),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        target: target(pod),
        machine,
        cordoned: is_set(annotation::POD_CORDON),
        intent,
        deletion_cost: annotations
            .get(annotation::POD_DELETION_COST)
            .and_then(|c| c.parse().ok())
            .unwrap_or(0),
        topology: annotations
            .get(annotation::TOPOLOGY_SPEC)
            .filter(|spec| !spec.is_empty())
            .cloned(),
        conditions: slurm_conditions(pod),
        deadline: annotations
            .get(annotation::POD_DEADLINE)
            .and_then(|text| text.parse().ok()),
        protected: labels
            .get(label::POD_PROTECT)
            .is_some_and(|value| value == "true"),
        claims: vec![],
        trouble: None,
        orphan: !pod
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true)),
        name,
    }
}

fn slurmd_status(pod: &Pod) -> Option<&ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == container::SLURMD)
}

/// Whether slurmd may be running in this pod now: unless the kubelet says that its container is not.
fn may_be_running(pod: &Pod) -> bool {
    let state = slurmd_status(pod).and_then(|slurmd| slurmd.state.as_ref());
    state.is_none_or(|state| state.waiting.is_none() && state.terminated.is_none())
}

/// Whether slurmd ever ran in this pod. A status that says nothing about it counts as yes.
fn has_started(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
        return false;
    }
    match slurmd_status(pod) {
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

fn machine_facts(node: &Node, pod_spec: Option<&Value>, propagated: &[String]) -> MachineFacts {
    MachineFacts {
        cordoned: node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true),
        cordon_reason: cordon_reason(node, propagated),
        // Without a worker to place, whoever is there stays.
        fit: pod_spec.map_or(Fit::Stay, |spec| placement::fit(spec, node)),
        hostname: machine_hostname(node),
        topology: node
            .annotations()
            .get(annotation::TOPOLOGY_SPEC)
            .filter(|spec| !spec.is_empty())
            .cloned(),
        features: machine_features(node),
    }
}

/// What a person wrote, else the first part of the node's name.
fn machine_hostname(node: &Node) -> String {
    let name = node.name_any();
    let written = node
        .annotations()
        .get(annotation::HOSTNAME_OVERRIDE)
        .filter(|name| !name.is_empty());
    written
        .cloned()
        .unwrap_or_else(|| name.split('.').next().unwrap_or_default().to_owned())
}

/// What a person wrote for the workers on it, each with our prefix.
fn machine_features(node: &Node) -> Vec<String> {
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

fn slurm_conditions(pod: &Pod) -> BTreeMap<String, (String, Option<Timestamp>)> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .filter(|known| known.type_.starts_with(condition::SLURM_NODE_STATE_PREFIX) && known.status == "True")
        .map(|known| {
            let since = known.last_transition_time.as_ref().map(|time| time.0);
            (
                known.type_.clone(),
                (known.message.clone().unwrap_or_default(), since),
            )
        })
        .collect()
}

/// The machine that a pod runs on, or the only one that it may run on.
pub fn target(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if spec.node_name.is_some() {
        return spec.node_name.clone();
    }
    let required = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = required
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let fields = terms
        .node_selector_terms
        .iter()
        .filter_map(|term| term.match_fields.as_ref())
        .flatten();
    fields
        .filter(|field| field.key == "metadata.name")
        .find_map(|field| field.values.as_ref()?.first().cloned())
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
    use serde_json::json;

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
    #[case::waits_to_be_started_again(json!({ "waiting": { "reason": "CrashLoopBackOff" } }), false)]
    #[case::has_just_ended(json!({ "terminated": { "exitCode": 1 } }), false)]
    #[case::runs(json!({ "running": {} }), true)]
    #[case::nobody_says(json!({}), true)]
    fn slurmd_runs_unless_the_kubelet_says_that_it_does_not(#[case] state: Value, #[case] running: bool) {
        let slurmd = json!({ "name": "slurmd", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "state": state });
        assert_eq!(
            may_be_running(&pod(json!({ "phase": "Running", "containerStatuses": [slurmd] }))),
            running
        );
        assert!(may_be_running(&pod(json!({ "phase": "Running" }))));
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
