//! Tests SlurmClusters: one object for a whole cluster.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing entry fails the test, as it should"
)]

mod charts;
mod database;
mod external_database;
mod gpus;
mod orphans;
mod sharing;
mod site;
mod whole;

use anyhow::{Result, ensure};
use e2e::slurm::{Slurm, condition};
use e2e::{Namespace, eventually};
use serde_json::{Value, json};

const CLUSTER: &str = "slurmcluster.keelson.dev/slurm";
const CONTROLLER: &str = "controllers.slinky.slurm.net/slurm";
const KINDS: &str = "slurmclusters,controllers.slinky.slurm.net,nodesets,loginsets,restapis,accountings";

/// A container with these requests.
fn small(cpu: &str, memory: &str) -> Value {
    json!({ "resources": { "requests": { "cpu": cpu, "memory": memory } } })
}

/// The example of the tutorial, with smaller requests.
fn ten_lines(name: &str) -> Value {
    json!({
        "apiVersion": "keelson.dev/v1alpha1",
        "kind": "SlurmCluster",
        "metadata": { "name": name },
        "spec": {
            "confineJobs": false,
            "controller": { "slurmctld": small("50m", "64Mi") },
            "restApi": { "slurmrestd": small("50m", "32Mi") },
            "nodeSets": { "cpu": { "replicas": 2, "oversubscribeNode": true, "slurmd": small("20m", "64Mi") } },
        },
    })
}

fn with_accounting_and_login(mut cluster: Value) -> Value {
    cluster["spec"]["accounting"] = json!({ "database": { "embedded": { "storage": "1Gi" } } });
    cluster["spec"]["login"] = json!({ "users": { "service": { "spec": { "type": "ClusterIP" } } } });
    cluster
}

/// Applies a SlurmCluster and waits until it is ready.
fn start(space: Namespace, cluster: &Value) -> Result<Slurm> {
    space.apply(&cluster.to_string())?;
    let slurm = Slurm::installed(space);
    slurm.wait_condition(CLUSTER, "Ready", "True", "")?;
    Ok(slurm)
}

fn change(slurm: &Slurm, spec: &Value) -> Result<()> {
    slurm.patch(CLUSTER, &json!({ "spec": spec }))
}

/// Waits until the SlurmCluster is as specified and no component changes.
fn wait_settled(slurm: &Slurm) -> Result<Value> {
    eventually("a settled SlurmCluster", || {
        let cluster = slurm.get(&[CLUSTER])?;
        let status = &cluster["status"];
        ensure!(
            status["phase"] == "Ready" && status["observedGeneration"] == cluster["metadata"]["generation"],
            "its status is {status}"
        );
        ensure!(
            condition(&cluster, "Degraded")?["status"] == "False",
            "its status is {status}"
        );
        Ok(cluster)
    })
}
