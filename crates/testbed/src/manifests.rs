//! The Kubernetes objects that the testbed installs.

use std::fmt::Write as _;

/// The name of our volume provisioner in storage classes.
pub const PROVISIONER: &str = "keelson.dev/local";

/// Cluster DNS and the default storage class.
pub fn cluster(coredns_image: &str) -> String {
    include_str!("../manifests/cluster.yaml").replace("@COREDNS@", coredns_image)
}

/// Simulated nodes, tainted so that no pod is scheduled on them by accident.
pub fn kwok_nodes(count: u32) -> String {
    let mut text = String::new();
    for index in 0..count {
        let name = format!("kwok-{index}");
        let node = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
                "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
            },
            "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "256"},
                "capacity": {"cpu": "64", "memory": "512Gi", "pods": "256"},
                "phase": "Running",
            },
        });
        let _ = writeln!(text, "---\n{node}");
    }
    text
}
