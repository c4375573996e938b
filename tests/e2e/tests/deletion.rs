//! Tests that neither foreground nor orphan deletion ends a job.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing entry fails the test, as it should"
)]

use anyhow::{Result, ensure};
use e2e::eventually;
use e2e::slurm::{NODESET, Slurm, worker_pod};
use serde_json::{Value, json};

const KINDS: &str = "controllers.slinky.slurm.net,nodesets,loginsets,restapis,accountings";
const CONTROLLER_POD: &str = "app.kubernetes.io/name=slurmctld";

/// Argo CD's default for everything that it has installed.
#[test]
fn deletion_of_everything_in_the_foreground_waits_for_the_jobs() -> Result<()> {
    let slurm = Slurm::install_ready("foreground", "nodesets: { cpu: { replicas: 2 } }", 2)?;
    let job = slurm.sbatch(&["--nodes=2"], "until [ -e /tmp/open ]; do sleep 1; done")?;
    slurm.wait_job(&job, "RUNNING")?;
    let workers = slurm.workers()?;
    let controller = slurm.pods(CONTROLLER_POD)?;

    slurm
        .space
        .kubectl(&["delete", KINDS, "--all", "--cascade=foreground", "--wait=false"])?;
    slurm.wait_drain("cpu-0")?;
    slurm.wait_drain("cpu-1")?;
    for node in ["cpu-0", "cpu-1"] {
        slurm.stays_at_work(node, &workers[&worker_pod(node)], &job)?;
    }
    ensure!(
        slurm.pods(CONTROLLER_POD)? == controller,
        "slurmctld was restarted"
    );
    slurm.get(&["service", "slurm-workers-slurm"])?;
    slurm.get(&["poddisruptionbudgets", "slurm-workers-pdb-slurm"])?;
    let told = slurm.wait_condition(NODESET, "Progressing", "True", "Draining")?;
    ensure!(told.contains("keelson.dev/force-delete"), "{told}");

    for node in ["cpu-0", "cpu-1"] {
        slurm.open(node)?;
    }
    eventually("the end of everything", || {
        slurm
            .space
            .has_no(&format!("{KINDS},pods,statefulsets,deployments,services"))?;
        let anchors = slurm.get(&["configmaps"])?.to_string();
        ensure!(
            !anchors.contains("keelson-anchor-"),
            "anchors are left: {anchors}"
        );
        Ok(())
    })
}

#[test]
fn workers_that_are_orphaned_go_on_and_are_adopted_by_the_next_nodeset() -> Result<()> {
    let slurm = Slurm::install_ready("orphan", "nodesets: { cpu: { replicas: 1 } }", 1)?;
    let job = slurm.hold("cpu-0", 60)?;
    let uid = slurm.worker("cpu-0")?;
    let mut saved = slurm.get(&[NODESET])?;
    saved["metadata"] = json!({ "name": saved["metadata"]["name"], "labels": saved["metadata"]["labels"] });
    saved.as_object_mut().map(|fields| fields.remove("status"));

    slurm
        .space
        .kubectl(&["delete", NODESET, "--cascade=orphan", "--timeout=120s"])?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;
    let state = slurm.node_field("cpu-0", "State")?;
    ensure!(!state.contains("DRAIN"), "cpu-0 is {state}");

    slurm.space.apply(&saved.to_string())?;
    let owner = slurm.get(&[NODESET])?["metadata"]["uid"].clone();
    eventually("the adoption of the worker", || {
        let pod = slurm.get(&["pod", &worker_pod("cpu-0")])?;
        let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let adopted = owners.into_iter().flatten().any(|known| known["uid"] == owner);
        ensure!(adopted, "its owners are {owners:?}");
        Ok(())
    })?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;
    slurm.open("cpu-0")?;
    slurm.wait_job(&job, "COMPLETED")?;
    slurm.wait_idle(1).map(drop)
}
