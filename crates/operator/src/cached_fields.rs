//! Prunes cached objects of which there are many. Pure.
//!
//! The operator keeps thousands of pods and reads little of each, so the fields to keep are listed here. The test below
//! checks them against the code that reads pods.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStatus, Node, Pod, PodCondition, PodSpec, PodStatus,
};
use keelson_api::well_known::{annotation, app, condition, container, label};
use kube::ResourceExt;

/// The labels of workers that are read.
const WORKER_LABELS: [&str; 6] = [
    label::APP,
    label::INSTANCE,
    label::POD_INDEX,
    label::POD_PROTECT,
    label::REVISION_HASH,
    label::SCALING_MODE,
];
/// The annotations of workers that are read.
const WORKER_ANNOTATIONS: [&str; 7] = [
    annotation::DRAIN_CAUSE,
    annotation::DRAIN_SINCE,
    annotation::POD_CORDON,
    annotation::POD_DEADLINE,
    annotation::POD_DELETION_COST,
    annotation::REGISTERED_BEFORE,
    annotation::TOPOLOGY_SPEC,
];

pub fn pod(pod: &mut Pod) {
    if pod.labels().get(label::APP).is_some_and(|app| app == app::SLURMD) {
        worker(pod);
    }
    pod.spec = pod.spec.take().map(|spec| PodSpec {
        // Affinity only matters until the pod is scheduled.
        affinity: spec.affinity.filter(|_| spec.node_name.is_none()),
        node_name: spec.node_name,
        hostname: spec.hostname,
        host_network: spec.host_network,
        ..PodSpec::default()
    });
    pod.status = pod.status.take().map(|status| PodStatus {
        phase: status.phase,
        pod_ip: status.pod_ip,
        conditions: status.conditions.map(|all| kept(all, timeless)),
        init_container_statuses: status.init_container_statuses.map(|all| kept(all, of_container)),
        container_statuses: status.container_statuses.map(|all| kept(all, of_container)),
        ..PodStatus::default()
    });
}

/// Prunes a worker, of which there are thousands. The containers and conditions of a pod that is not ready are kept,
/// because they show why.
fn worker(pod: &mut Pod) {
    pod.labels_mut()
        .retain(|key, _| WORKER_LABELS.contains(&key.as_str()));
    pod.annotations_mut()
        .retain(|key, _| WORKER_ANNOTATIONS.contains(&key.as_str()));
    let Some(status) = &mut pod.status else { return };
    let conditions = status.conditions.get_or_insert_default();
    if !conditions
        .iter()
        .any(|known| known.type_ == "Ready" && known.status == "True")
    {
        return;
    }
    conditions.retain(|known| {
        known.type_ == "Ready" || known.type_.starts_with(condition::SLURM_NODE_STATE_PREFIX)
    });
    status.init_container_statuses = None;
    if let Some(statuses) = &mut status.container_statuses {
        statuses.retain(|known| known.name == container::SLURMD);
    }
}

/// Applies `part` and frees the spare capacity of decoded lists.
fn kept<T>(all: Vec<T>, part: fn(T) -> T) -> Vec<T> {
    let mut kept: Vec<T> = all.into_iter().map(part).collect();
    kept.shrink_to_fit();
    kept
}

fn timeless(mut condition: PodCondition) -> PodCondition {
    condition.last_probe_time = None;
    condition
}

fn of_container(status: ContainerStatus) -> ContainerStatus {
    ContainerStatus {
        name: status.name,
        ready: status.ready,
        restart_count: status.restart_count,
        started: status.started,
        state: status.state.map(state),
        last_state: status.last_state.map(state),
        ..ContainerStatus::default()
    }
}

fn state(mut state: ContainerState) -> ContainerState {
    if let Some(ended) = &mut state.terminated {
        ended.container_id = None;
    }
    state
}

/// Drops fields that the operator does not read. Heartbeats and image lists change a node every few seconds.
pub fn node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        status.node_info = None;
        status.addresses = None;
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::{accounting::daemon, nodeset::pod_facts, pod_diagnosis};

    #[rstest]
    #[case::runs(json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } }), json!({}), Some("machine-1"))]
    #[case::is_ready(json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } }), Value::Null, Some("machine-1"))]
    #[case::crashes(
        json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off" } }),
        json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": "slurmd: fatal: no", "containerID": "x" } }),
        Some("machine-1")
    )]
    #[case::waits_for_room(json!({ "waiting": { "reason": "ContainerCreating" } }), json!({}), None)]
    fn whoever_reads_a_pod_finds_what_it_looks_for(
        #[case] state: Value,
        #[case] last: Value,
        #[case] machine: Option<&str>,
    ) {
        let terms = json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["machine-2"] }] }]);
        let container = |name: &str| {
            json!({ "name": name, "image": "slurmd:1", "imageID": "sha256:1", "containerID": "x", "ready": false,
                "restartCount": 3, "started": true, "state": state, "lastState": last })
        };
        let whole: Pod = serde_json::from_value(json!({
            "metadata": {
                "namespace": "ns", "name": "slurm-worker-cpu-1", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {
                    label::APP: app::SLURMD, label::POD_INDEX: "1", label::POD_PROTECT: "true", label::SCALING_MODE: "StatefulSet",
                    label::REVISION_HASH: "abc", "other": "label",
                },
                "annotations": {
                    annotation::POD_CORDON: "true", annotation::DRAIN_CAUSE: "scale-in", annotation::POD_DELETION_COST: "7",
                    annotation::DRAIN_SINCE: "2026-01-01T00:00:00Z", annotation::POD_DEADLINE: "2026-01-02T00:00:00Z",
                    annotation::REGISTERED_BEFORE: "2026-01-01T00:00:00Z", annotation::TOPOLOGY_SPEC: "default:a", "other": "text",
                },
            },
            "spec": {
                "nodeName": machine, "hostname": "cpu-1", "hostNetwork": false,
                "affinity": { "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } },
                "containers": [{ "name": "slurmd", "image": "slurmd:1", "env": [{ "name": "A", "value": "b" }] }],
                "tolerations": [{ "operator": "Exists" }],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1", "hostIP": "10.0.0.2", "qosClass": "BestEffort",
                "conditions": [
                    { "type": "Ready", "status": if last.is_null() { "True" } else { "False" }, "lastTransitionTime": "2026-01-01T00:00:00Z" },
                    { "type": "PodScheduled", "status": if machine.is_some() { "True" } else { "False" }, "message": "full" },
                    { "type": "SlurmNodeStateIdle", "status": "True", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" },
                ],
                "initContainerStatuses": [container("logfile")],
                "containerStatuses": [container("slurmd"), container("slurmdbd")],
            },
        }))
        .unwrap();
        let mut pruned = whole.clone();
        pod(&mut pruned);
        let of_pod = |pod: &Pod| daemon::of_pod(Some(&Arc::new(pod.clone())), Timestamp::UNIX_EPOCH);
        let facts = |pod: &Pod| pod_facts::pod_facts(pod, Timestamp::UNIX_EPOCH);
        assert_eq!(facts(&pruned), facts(&whole));
        assert_eq!(
            pod_facts::target(&pruned).as_deref(),
            Some(machine.unwrap_or("machine-2"))
        );
        assert_eq!(
            pod_diagnosis::diagnose(&pruned, Timestamp::UNIX_EPOCH),
            pod_diagnosis::diagnose(&whole, Timestamp::UNIX_EPOCH)
        );
        let mut of_slurmdbd = whole.clone();
        of_slurmdbd
            .labels_mut()
            .insert(label::APP.to_owned(), app::SLURMDBD.to_owned());
        let mut pruned_slurmdbd = of_slurmdbd.clone();
        pod(&mut pruned_slurmdbd);
        assert_eq!(of_pod(&pruned_slurmdbd), of_pod(&of_slurmdbd));
        assert!(pruned.spec.as_ref().unwrap().containers.is_empty());
        assert!(!pruned.labels().contains_key("other") && !pruned.annotations().contains_key("other"));
    }
}
