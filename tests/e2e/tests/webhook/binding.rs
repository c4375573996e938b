//! Tests that a worker gets its topology at the moment it is scheduled.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::place::Place;
use crate::replicas::Replica;

#[tokio::test(flavor = "multi_thread")]
async fn workers_get_the_topology_of_their_node_as_they_are_scheduled() -> Result<()> {
    const TOPOLOGY: &str = "topology.slinky.slurm.net/spec";
    let place = Place::prepare("binding", 1).await?;
    let namespace = place.namespace("binding").await?;
    place.configure()?;
    let _replica = Replica::start(&place).await?;
    place.asked(&namespace).await?;
    let nodes: Api<Node> = Api::all(place.client.clone());
    let annotation = json!({ "metadata": { "annotations": { TOPOLOGY: "topo:s1:b1" } } });
    nodes
        .patch("kwok-0", &PatchParams::default(), &Patch::Merge(annotation))
        .await?;

    let pods: Api<Pod> = Api::namespaced(place.client.clone(), &namespace);
    for (name, label, expected) in [("worker", "slurmd", Some("topo:s1:b1")), ("other", "nginx", None)] {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "app.kubernetes.io/name": label } },
            "spec": {
                "containers": [{ "name": "c", "image": "nowhere.invalid/none:1" }],
                "tolerations": [{ "operator": "Exists" }],
            },
        }))?;
        let begun = Instant::now();
        // A new namespace gets its ServiceAccount after a delay.
        while let Err(error) = pods.create(&PostParams::default(), &pod).await {
            ensure!(begun.elapsed() < e2e::PATIENCE, "{name}: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // A single write sets the node and the annotation.
        let scheduled = loop {
            let pod = pods.get(name).await?;
            if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
                break pod;
            }
            ensure!(begun.elapsed() < e2e::PATIENCE, "{name} is not scheduled");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let annotations = scheduled.metadata.annotations.unwrap_or_default();
        let found = annotations.get(TOPOLOGY).map(String::as_str);
        ensure!(found == expected, "{name}: {found:?}");
    }
    Ok(())
}
