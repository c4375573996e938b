//! Topology for workers, at the instant that they are scheduled.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::place::{Place, asked, namespace, remove_namespace};
use crate::replicas::Replica;

#[tokio::test(flavor = "multi_thread")]
async fn workers_get_the_topology_of_their_node_as_they_are_scheduled() -> Result<()> {
    const TOPOLOGY: &str = "topology.slinky.slurm.net/spec";
    let place = Place::prepare("binding").await?;
    let namespace = namespace(&place, "binding").await?;
    place.configure()?;
    let _replica = Replica::start(&place, &[]).await?;
    asked(&place, &namespace).await?;
    let nodes: Api<Node> = Api::all(place.client.clone());
    let annotate = |value: Value| json!({ "metadata": { "annotations": { TOPOLOGY: value } } });
    nodes
        .patch(
            "node-1",
            &PatchParams::default(),
            &Patch::Merge(annotate(json!("topo:s1:b1"))),
        )
        .await?;

    let pods: Api<Pod> = Api::namespaced(place.client.clone(), &namespace);
    for (name, label, expected) in [("worker", "slurmd", Some("topo:s1:b1")), ("other", "nginx", None)] {
        let pod = json!({
            "metadata": { "name": name, "labels": { "app.kubernetes.io/name": label } },
            "spec": {
                "nodeSelector": { "kubernetes.io/hostname": "node-1" },
                "containers": [{ "name": "c", "image": "nowhere.invalid/none:1" }],
            },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        let begun = Instant::now();
        // The annotation is there at the instant that the node is: one write.
        let scheduled = loop {
            let pod = pods.get(name).await?;
            if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
                break pod;
            }
            ensure!(
                begun.elapsed() < Duration::from_mins(1),
                "{name} is not scheduled"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let found = scheduled
            .metadata
            .annotations
            .unwrap_or_default()
            .get(TOPOLOGY)
            .cloned();
        ensure!(found.as_deref() == expected, "{name}: {found:?}");
    }
    nodes
        .patch(
            "node-1",
            &PatchParams::default(),
            &Patch::Merge(annotate(Value::Null)),
        )
        .await?;
    remove_namespace(&place, &namespace).await
}
