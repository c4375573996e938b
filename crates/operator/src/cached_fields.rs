//! What is kept of the objects that there are many of. Pure.
//!
//! Pods are kept by the thousand, and what nobody reads is nearly all of one. So it is listed what stays; the
//! test below holds it against those who read pods.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStatus, Node, Pod, PodCondition, PodSpec, PodStatus,
};

pub fn pod(pod: &mut Pod) {
    pod.spec = pod.spec.take().map(|spec| PodSpec {
        // Where it may go matters until it went there.
        affinity: spec.affinity.filter(|_| spec.node_name.is_none()),
        node_name: spec.node_name,
        hostname: spec.hostname,
        host_network: spec.host_network,
        ..PodSpec::default()
    });
    pod.status = pod.status.take().map(|status| PodStatus {
        phase: status.phase,
        pod_ip: status.pod_ip,
        conditions: status.conditions.map(|all| kept(all, condition)),
        init_container_statuses: status.init_container_statuses.map(|all| kept(all, container)),
        container_statuses: status.container_statuses.map(|all| kept(all, container)),
        ..PodStatus::default()
    });
}

/// Decoded lists have room for more than they hold.
fn kept<T>(all: Vec<T>, part: fn(T) -> T) -> Vec<T> {
    let mut kept: Vec<T> = all.into_iter().map(part).collect();
    kept.shrink_to_fit();
    kept
}

fn condition(mut condition: PodCondition) -> PodCondition {
    condition.last_probe_time = None;
    condition
}

fn container(status: ContainerStatus) -> ContainerStatus {
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

/// Heartbeats and image lists change a node every few seconds and concern nobody.
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
    use crate::{accounting::daemon, nodeset::derive_facts, pod_diagnosis};

    #[rstest]
    #[case::runs(json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } }), json!({}), Some("machine-1"))]
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
                "labels": { "app.kubernetes.io/name": "slurmd", "slinky.slurm.net/pod-index": "1" },
                "annotations": { "slinky.slurm.net/pod-cordon": "true" },
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
        let facts = |pod: &Pod| derive_facts::pod_facts(pod, Timestamp::UNIX_EPOCH);
        assert_eq!(facts(&pruned), facts(&whole));
        assert_eq!(
            derive_facts::target(&pruned).as_deref(),
            Some(machine.unwrap_or("machine-2"))
        );
        assert_eq!(
            pod_diagnosis::diagnose(&pruned, Timestamp::UNIX_EPOCH),
            pod_diagnosis::diagnose(&whole, Timestamp::UNIX_EPOCH)
        );
        assert_eq!(of_pod(&pruned), of_pod(&whole));
        assert!(pruned.spec.unwrap().containers.is_empty());
    }
}
