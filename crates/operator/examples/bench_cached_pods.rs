//! How much memory a cached worker pod takes: `cargo run --package keelson-operator --example bench_cached_pods`.
//!
//! The cache, the fields that it keeps and the allocator are those of the operator; its indexes are left out. What counts is
//! the anonymous memory of the process, because the allocator's rounding is part of the cost.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints, and fails by panicking"
)]

#[path = "../src/cached_fields.rs"]
#[allow(dead_code, reason = "only the fields of pods are used")]
mod cached_fields;

use std::fs;

use k8s_openapi::api::core::v1::Pod;
use keelson_api::well_known::{annotation, app, label};
use keelson_runtime::Cache;
use serde_json::json;

// As in the program that is shipped.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What does not grow with the number of pods is allocated with the first ones.
const WARM_UP: usize = 1_000;
const PODS: usize = 5_000;

fn main() {
    for (what, ready) in [("ready", true), ("starting", false)] {
        // All are kept to the end: memory that one freed would be used by the next.
        let caches = [Cache::new(&[]).pruned(cached_fields::pod), Cache::new(&[])];
        let [kept, whole] = caches.each_ref().map(|cache| per_pod(cache, ready));
        std::mem::forget(caches);
        println!("{what}: {kept:.1} KiB a pod in the cache, {whole:.1} KiB with all fields");
    }
}

/// Returns the KiB that one more pod takes.
fn per_pod(cache: &Cache<Pod>, ready: bool) -> f64 {
    let fill = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            // Decoded one by one like the events of a watch.
            let text = worker(number, ready).to_string();
            assert!(cache.upsert(serde_json::from_str(&text).unwrap()));
        }
        anonymous()
    };
    let before = fill(0..WARM_UP);
    let after = fill(WARM_UP..WARM_UP + PODS);
    assert_eq!(cache.all().len(), WARM_UP + PODS);
    (after - before) / PODS as f64
}

/// Returns the memory of this process that is not of files, in KiB.
fn anonymous() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.unwrap()
        .trim()
        .trim_end_matches("kB")
        .trim()
        .parse()
        .unwrap()
}

/// Returns a worker as the API server sends it.
fn worker(number: usize, ready: bool) -> serde_json::Value {
    let at = "2026-01-01T00:00:00Z";
    let status = |is: bool| if is { "True" } else { "False" };
    let condition = |kind: &str, is: bool, message: &str| json!({ "type": kind, "status": status(is), "lastProbeTime": null, "lastTransitionTime": at, "observedGeneration": 1, "message": message });
    let container = |name: &str| {
        let id = format!("containerd://{number:064x}");
        json!({
            "name": name, "image": "ghcr.io/slinkyproject/slurmd:26.05-ubuntu24.04",
            "imageID": format!("ghcr.io/slinkyproject/slurmd@sha256:{:064x}", 1), "containerID": id,
            "ready": ready, "restartCount": 0, "started": ready, "lastState": {},
            "state": if ready { json!({ "running": { "startedAt": at } }) } else { json!({ "waiting": { "reason": "ContainerCreating" } }) },
            "resources": { "limits": { "cpu": "64", "memory": "512Gi" }, "requests": { "cpu": "64", "memory": "512Gi" } },
            "volumeMounts": (0..5).map(|mount| json!({ "name": format!("mount-{mount}"), "mountPath": format!("/mounts/{mount}") })).collect::<Vec<_>>(),
        })
    };
    let mut conditions = vec![
        condition("PodReadyToStartContainers", ready, ""),
        condition("Initialized", true, ""),
        condition("Ready", ready, ""),
        condition("ContainersReady", ready, ""),
        condition("PodScheduled", true, ""),
    ];
    if ready {
        conditions.push(condition("SlurmNodeStateIdle", true, ""));
        conditions.push(condition("SlurmNodeStateDynamicNorm", true, ""));
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "slurm", "name": format!("slurm-worker-cpu-{number}"), "generateName": "slurm-worker-cpu-",
            "uid": format!("705ab4f5-6393-11e8-b7cc-{number:012}"), "resourceVersion": (1_000_000 + number).to_string(),
            "generation": 1, "creationTimestamp": at,
            "labels": {
                label::APP: app::SLURMD, label::INSTANCE: "slurm-worker-cpu", label::POD_INDEX: number.to_string(),
                label::POD_PROTECT: "true", label::SCALING_MODE: "StatefulSet", label::REVISION_HASH: "7b9f6c5d4",
                "app.kubernetes.io/component": "worker", "app.kubernetes.io/part-of": "slurm", "app.kubernetes.io/managed-by": "slurm-operator",
                "nodeset.slinky.slurm.net/pod-name": format!("slurm-worker-cpu-{number}"),
            },
            "annotations": {
                annotation::TOPOLOGY_SPEC: "default:rack-1", "kubectl.kubernetes.io/default-container": "slurmd",
            },
            "ownerReferences": [{
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "slurm-worker-cpu",
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "controller": true, "blockOwnerDeletion": true,
            }],
            "managedFields": [{ "manager": "slurm-operator/nodeset", "operation": "Update", "apiVersion": "v1", "time": at, "fieldsType": "FieldsV1", "fieldsV1": { "f:metadata": {} } }],
        },
        "spec": {
            "nodeName": format!("machine-{}", number / 50), "hostname": format!("cpu-{number}"), "subdomain": "slurm-workers",
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
            "initContainers": [{ "name": "logfile", "image": "docker.io/library/alpine:latest", "restartPolicy": "Always" }],
            "containers": [{
                "name": "slurmd", "image": "ghcr.io/slinkyproject/slurmd:26.05-ubuntu24.04",
                "env": (0..10).map(|variable| json!({ "name": format!("VARIABLE_{variable}"), "value": "some value or other" })).collect::<Vec<_>>(),
                "resources": { "limits": { "cpu": "64", "memory": "512Gi" } },
                "volumeMounts": (0..5).map(|mount| json!({ "name": format!("mount-{mount}"), "mountPath": format!("/mounts/{mount}") })).collect::<Vec<_>>(),
            }],
            "volumes": (0..5).map(|volume| json!({ "name": format!("mount-{volume}"), "emptyDir": {} })).collect::<Vec<_>>(),
            "tolerations": [{ "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 }],
        },
        "status": {
            "phase": if ready { "Running" } else { "Pending" }, "observedGeneration": 1, "qosClass": "Guaranteed", "startTime": at,
            "podIP": format!("10.0.{}.{}", number / 250, number % 250), "podIPs": [{ "ip": format!("10.0.{}.{}", number / 250, number % 250) }],
            "hostIP": "10.1.0.1", "hostIPs": [{ "ip": "10.1.0.1" }], "conditions": conditions,
            "initContainerStatuses": [container("logfile")], "containerStatuses": [container("slurmd")],
        },
    })
}
