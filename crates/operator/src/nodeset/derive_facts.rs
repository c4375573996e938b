//! Turns what was read into the facts that `plan` decides on. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    api::core::v1::{ContainerStatus, Node, Pod, PodCondition},
};
use keelson_api::{
    NodeSet,
    nodeset::{NodeSetDeletionPolicy, PruneSlurmNodeRecords, ScalingMode, UpdateStrategyType},
    well_known::{annotation, condition, container, label, slurm},
};
use kube::ResourceExt;
use serde_json::Value;

use super::{
    claims,
    facts::{
        self, Cause, Fit, Intent, KubeNodeFacts, Leaving, Observed, Paused, Phase, PodFacts, SetFacts, Start,
        Strategy,
    },
    observe::Read,
    placement,
};
use crate::{
    anchor,
    pod_diagnosis::diagnose,
    slurm::facts::{NodeName, Slurm},
};

/// The facts that `plan` decides on.
pub fn derive_facts(
    read: &Read,
    worker: &Worker<'_>,
    slurm: Slurm,
    propagated: &[String],
    now: Timestamp,
) -> Observed {
    let machines: BTreeMap<String, KubeNodeFacts> = read
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
    let taken: BTreeMap<NodeName, String> = read
        .pods_of_siblings
        .iter()
        .map(|pod| (pod_facts(pod, now).node, pod.name_any()))
        .collect();
    let desired = facts::desired(spec.scaling_mode, replicas, &machines, &pods, &taken);
    let desired = u32::try_from(desired).unwrap_or(u32::MAX);
    Observed {
        set: set_facts(read, worker.revision, desired),
        pods,
        slurm,
        machines,
        taken,
        now,
    }
}

/// Whether and how a person stopped all changes.
pub fn paused(nodeset: &NodeSet) -> Option<Paused> {
    let annotation = nodeset.annotations().get(annotation::PAUSED);
    if nodeset.spec.paused() {
        Some(Paused::Spec)
    } else {
        annotation
            .filter(|value| *value == "true")
            .map(|_| Paused::Annotation)
    }
}

/// What a worker made now would be.
#[derive(Debug, Clone, Copy)]
pub struct Worker<'a> {
    pub revision: &'a str,
    /// Revisions under which Slinky made the same.
    pub equal: &'a BTreeSet<String>,
    /// Revisions whose workers register as the same kind of node.
    pub same_node: &'a BTreeSet<String>,
    /// Absent when none could be built.
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
        leaving: leaving(read),
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

fn leaving(read: &Read) -> Leaving {
    let nodeset = &read.nodeset;
    let forced = nodeset
        .annotations()
        .get(annotation::FORCE_DELETE)
        .is_some_and(|value| value == "true");
    if nodeset.metadata.deletion_timestamp.is_none() {
        Leaving::No
    } else if is_orphaning(nodeset, &read.revisions) {
        Leaving::Orphan
    } else if forced {
        Leaving::Immediately
    } else {
        match nodeset.spec.deletion_policy() {
            NodeSetDeletionPolicy::Drain => Leaving::Drain,
            NodeSetDeletionPolicy::Immediate => Leaving::Immediately,
        }
    }
}

/// Whether its workers are to stay when it goes (`--cascade=orphan`). The garbage collector removes its own finalizer once it
/// has released the children. From then on only a released revision shows it: revisions have no second owner, so that every
/// other deletion takes them along.
pub fn is_orphaning(nodeset: &NodeSet, revisions: &[Arc<ControllerRevision>]) -> bool {
    let hash = nodeset
        .status
        .as_ref()
        .map_or("", |status| status.node_set_hash.as_str());
    let newest = format!("{}-{hash}", nodeset.name_any());
    let released = |revision: &ControllerRevision| {
        revision.name_any() == newest && !hash.is_empty() && revision.owner_references().is_empty()
    };
    nodeset.metadata.deletion_timestamp.is_some()
        && (anchor::is_orphaning(nodeset) || revisions.iter().any(|revision| released(revision)))
}

/// Whether a NodeSet is being deleted and nothing shows yet whether its workers are to drain or to stay.
pub fn is_deletion_undecided(nodeset: &NodeSet, pods: &[Arc<Pod>]) -> bool {
    let drains = |pod: &Arc<Pod>| intent_of(pod).is_some_and(|intent| intent.cause == Cause::Deletion);
    nodeset.metadata.deletion_timestamp.is_some()
        && !anchor::is_orphaning(nodeset)
        && !pods.is_empty()
        && !pods.iter().any(drains)
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
    let mut facts = pod_facts(pod, now);
    if facts.ready_since.is_none() {
        facts.trouble = diagnose(pod, now);
    }
    // One that Slinky made from the same is not made anew for being made by Slinky.
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
    // The time makes no difference to who it is.
    let facts = pod_facts(pod, Timestamp::MIN);
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

pub fn pod_facts(pod: &Pod, now: Timestamp) -> PodFacts {
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
    PodFacts {
        uid: pod.uid().unwrap_or_default(),
        mode,
        ordinal,
        node: NodeName(node),
        revision: labels.get(label::REVISION_HASH).cloned().unwrap_or_default(),
        reshaped: false,
        phase,
        start: start(pod),
        unsandboxed: is_unsandboxed(pod, now),
        running: may_be_running(pod),
        ready_since,
        created: pod.creation_timestamp().map_or(Timestamp::MIN, |time| time.0),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        target: target(pod),
        machine,
        cordoned: is_set(annotation::POD_CORDON),
        intent: intent_of(pod),
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
        anchored: anchor::is_held(pod),
        registered_before: annotations
            .get(annotation::REGISTERED_BEFORE)
            .and_then(|text| text.parse().ok()),
        name,
    }
}

/// What we decided about it earlier.
fn intent_of(pod: &Pod) -> Option<Intent> {
    let annotations = pod.annotations();
    let cause = Cause::from_word(annotations.get(annotation::DRAIN_CAUSE)?)?;
    let since = annotations
        .get(annotation::DRAIN_SINCE)
        .and_then(|text| text.parse().ok());
    Some(Intent {
        cause,
        since: since.unwrap_or(Timestamp::MAX),
    })
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

/// Why the kubelet keeps a container from starting: nothing of it runs until that is mended.
const HELD: [&str; 6] = [
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
];

/// Whether slurmd ever ran in this pod. A kubelet that says nothing about it may be behind.
fn start(pod: &Pod) -> Start {
    let Some(status) = pod.status.as_ref().filter(|_| is_bound(pod)) else {
        return if is_bound(pod) {
            Start::Perhaps
        } else {
            Start::Never
        };
    };
    let pending = matches!(status.phase.as_deref(), Some("Pending") | None);
    let slurmd = slurmd_status(pod);
    let waiting = slurmd.and_then(|slurmd| slurmd.state.as_ref()?.waiting.as_ref());
    let before = slurmd.is_some_and(|slurmd| {
        let ended = slurmd
            .last_state
            .as_ref()
            .is_some_and(|state| state.terminated.is_some());
        ended || slurmd.restart_count > 0
    });
    let untold = if slurmd.is_some() {
        waiting.is_some()
    } else {
        pending
    };
    if before || !untold {
        return Start::Yes;
    }
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    if reason.is_some_and(|reason| HELD.contains(&reason)) {
        Start::Never
    } else {
        Start::Perhaps
    }
}

/// The kubelet tells within seconds that a sandbox is there.
const SANDBOX_TOLD_WITHIN: SignedDuration = SignedDuration::from_mins(2);

/// Whether the kubelet has said for so long that it has no sandbox, its volumes or network missing, that no slurmd is to be
/// expected. It says the same for a moment of every pod that starts.
fn is_unsandboxed(pod: &Pod, now: Timestamp) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let long_ago = |condition: &PodCondition| {
        let since = condition.last_transition_time.as_ref();
        since.is_some_and(|since| now.duration_since(since.0) >= SANDBOX_TOLD_WITHIN)
    };
    start(pod) == Start::Perhaps
        && conditions.into_iter().flatten().any(|condition| {
            condition.type_ == "PodReadyToStartContainers"
                && condition.status == "False"
                && long_ago(condition)
        })
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

fn machine_facts(node: &Node, pod_spec: Option<&Value>, propagated: &[String]) -> KubeNodeFacts {
    KubeNodeFacts {
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
    #[case::image_missing(json!({ "waiting": { "reason": "ImagePullBackOff" } }), 0, Start::Never)]
    #[case::just_starting(json!({ "waiting": { "reason": "ContainerCreating" } }), 0, Start::Perhaps)]
    #[case::crash_loop(json!({ "waiting": { "reason": "CrashLoopBackOff" } }), 1, Start::Yes)]
    #[case::image_gone_later(json!({ "waiting": { "reason": "ImagePullBackOff" } }), 1, Start::Yes)]
    #[case::running(json!({ "running": {} }), 0, Start::Yes)]
    fn a_container_that_waits_may_have_started_since(
        #[case] state: Value,
        #[case] restarts: u32,
        #[case] expected: Start,
    ) {
        let slurmd = json!({ "name": "slurmd", "image": "", "imageID": "", "ready": false, "restartCount": restarts,
            "state": state });
        let phase = if restarts > 0 { "Running" } else { "Pending" };
        assert_eq!(
            start(&pod(json!({ "phase": phase, "containerStatuses": [slurmd] }))),
            expected
        );
    }

    #[rstest]
    #[case::kubelet_silent(json!({ "phase": "Unknown" }), Start::Yes)]
    #[case::just_bound(json!({ "phase": "Pending" }), Start::Perhaps)]
    #[case::no_sandbox(
        json!({ "phase": "Pending", "conditions": [{ "type": "PodReadyToStartContainers", "status": "False" }] }),
        Start::Perhaps
    )]
    fn a_kubelet_that_says_nothing_may_be_behind(#[case] status: Value, #[case] expected: Start) {
        assert_eq!(start(&pod(status.clone())), expected);
        let mut unbound = pod(status);
        unbound.spec = None;
        assert_eq!(start(&unbound), Start::Never);
    }

    #[rstest]
    #[case::just_now(119, false)]
    #[case::for_long(120, true)]
    fn a_pod_without_a_sandbox_is_believed_to_have_none_after_a_while(
        #[case] seconds: i64,
        #[case] expected: bool,
    ) {
        let condition = json!({ "type": "PodReadyToStartContainers", "status": "False",
            "lastTransitionTime": "1970-01-01T00:00:00Z" });
        let pod = pod(json!({ "phase": "Pending", "conditions": [condition] }));
        let now = Timestamp::from_second(seconds).unwrap();
        assert_eq!(pod_facts(&pod, now).unsandboxed, expected);
    }

    #[rstest]
    #[case::collector_at_work(json!(["orphan"]), json!([{ "uid": "set" }]), true)]
    #[case::collector_done(json!([]), json!([]), true)]
    #[case::other_deletion(json!([]), json!([{ "uid": "set" }]), false)]
    #[case::foreground(json!(["foregroundDeletion"]), json!(null), false)]
    fn an_orphaned_nodeset_is_known_until_the_last_finalizer_goes(
        #[case] finalizers: Value,
        #[case] owners: Value,
        #[case] expected: bool,
    ) {
        let nodeset = |deleted: Value| -> NodeSet {
            let metadata = json!({ "name": "cpu", "finalizers": finalizers, "deletionTimestamp": deleted });
            serde_json::from_value(json!({
                "metadata": metadata,
                "spec": { "controllerRef": { "name": "slurm" } },
                "status": { "nodeSetHash": "abc" },
            }))
            .unwrap()
        };
        let revisions: Vec<Arc<ControllerRevision>> = owners
            .as_array()
            .map(|owners| {
                let owner =
                    |uid: &Value| json!({ "apiVersion": "v", "kind": "NodeSet", "name": "cpu", "uid": uid });
                let owners: Vec<Value> = owners.iter().map(|known| owner(&known["uid"])).collect();
                let metadata = json!({ "name": "cpu-abc", "ownerReferences": owners });
                Arc::new(serde_json::from_value(json!({ "metadata": metadata, "revision": 1 })).unwrap())
            })
            .into_iter()
            .collect();
        let deleted = nodeset(json!("2026-01-01T00:00:00Z"));
        assert_eq!(is_orphaning(&deleted, &revisions), expected);
        assert!(!is_orphaning(&nodeset(json!(null)), &revisions));

        let undecided = finalizers != json!(["orphan"]);
        let worker = Arc::new(pod(json!({})));
        assert_eq!(is_deletion_undecided(&deleted, &[Arc::clone(&worker)]), undecided);
        assert!(!is_deletion_undecided(&deleted, &[]));
        let mut drains = Pod::clone(&worker);
        let cause = Cause::Deletion.word().to_owned();
        drains
            .annotations_mut()
            .insert(annotation::DRAIN_CAUSE.to_owned(), cause);
        assert!(!is_deletion_undecided(&deleted, &[worker, Arc::new(drains)]));
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
        assert_eq!(intent_of(&pod).unwrap().since, Timestamp::MAX);
    }
}
