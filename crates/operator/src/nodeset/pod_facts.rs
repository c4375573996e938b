//! Derives the facts of one worker pod. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use keelson_api::{
    NodeSet,
    nodeset::ScalingMode,
    well_known::{annotation, condition, container, label},
};
use kube::ResourceExt;

use super::{
    claims,
    facts::{Cause, Intent, Phase, PodFacts, Start},
};
use crate::{anchor, slurm::facts::NodeName};

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
    let kube_node = spec.and_then(|spec| spec.node_name.clone());
    let hostname = spec.and_then(|spec| spec.hostname.clone());
    // slurmd uses the output of `hostname`, which is the Kubernetes node's name on the host network.
    let node = match (&kube_node, mode) {
        (Some(kube_node), ScalingMode::StatefulSet) if host_network => kube_node.clone(),
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
        kube_node,
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

/// Reads the intent from the pod's annotations. Without a readable time, no response from Slurm counts as newer than
/// it.
pub fn intent_of(pod: &Pod) -> Option<Intent> {
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

/// Returns false only if the kubelet reports that the slurmd container is not running.
fn may_be_running(pod: &Pod) -> bool {
    let state = slurmd_status(pod).and_then(|slurmd| slurmd.state.as_ref());
    state.is_none_or(|state| state.waiting.is_none() && state.terminated.is_none())
}

/// Reasons why the kubelet does not start a container: nothing runs in it until they are fixed.
const HELD: [&str; 6] = [
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
];

/// Determines whether slurmd ever ran in this pod. A kubelet that reports nothing may be behind.
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

/// How long a missing sandbox is tolerated; the kubelet normally reports one within seconds.
const SANDBOX_TOLD_WITHIN: SignedDuration = SignedDuration::from_mins(2);

/// Returns true if the kubelet has reported for a while that the pod has no sandbox, for example because of its volumes
/// or network, so slurmd is not running. Every starting pod briefly has no sandbox.
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

/// Returns the Kubernetes node that a pod runs on, or the only one that it may run on.
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

/// Returns true if a pod without a controller has the name of a worker of this NodeSet. Its labels were matched before.
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

/// Returns the names of a worker's claims.
pub fn claim_names(nodeset: &NodeSet, pod: &Pod) -> Vec<String> {
    if nodeset.spec.volume_claim_templates.is_none() {
        return vec![];
    }
    // The names do not depend on the time.
    claims::names(nodeset, &identity(nodeset, &pod_facts(pod, Timestamp::MIN)))
}

/// Returns the identity of a worker in the names of its claims: the padded ordinal, or the host name in DaemonSet mode.
pub fn identity(nodeset: &NodeSet, pod: &PodFacts) -> String {
    match pod.mode {
        ScalingMode::StatefulSet => pod
            .name
            .strip_prefix(&nodeset.pod_generate_name())
            .unwrap_or_default()
            .to_owned(),
        ScalingMode::DaemonSet => pod.node.0.clone(),
    }
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

    #[test]
    fn an_intent_without_a_readable_time_proves_nothing() {
        let mut pod = pod(json!({}));
        pod.metadata.annotations = Some([(annotation::DRAIN_CAUSE.to_owned(), "scale-in".to_owned())].into());
        assert_eq!(intent_of(&pod).unwrap().since, Timestamp::MAX);
    }
}
