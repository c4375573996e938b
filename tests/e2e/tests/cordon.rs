//! Tests how the operator handles nodes that administrators cordon, drain or delete in Kubernetes or Slurm. The tests
//! cordon nodes of the test cluster, so they run alone.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing entry fails the test, as it should"
)]

use anyhow::{Context, Result, ensure};
use e2e::slurm::{NODESET, Slurm, worker_pod};
use e2e::{cluster, eventually, kubectl, operator, run};
use serde_json::{Value, json};
use testbed::layout::Node;

fn machine_of(slurm: &Slurm, node: &str) -> Result<String> {
    let pod = slurm.get(&["pod", &worker_pod(node)])?;
    let machine = pod.pointer("/spec/nodeName").and_then(Value::as_str);
    Ok(machine.context("a pod without a machine")?.to_owned())
}

/// A cordoned node, which is uncordoned when this is dropped.
struct Cordoned(String);

impl Drop for Cordoned {
    fn drop(&mut self) {
        let _ = kubectl(&["uncordon", &self.0]);
    }
}

#[test]
fn kubectl_drain_waits_for_the_job_and_slurm_gives_the_worker_no_new_one() -> Result<()> {
    let slurm = Slurm::install_ready("kubectl-drain", "nodesets: { cpu: { replicas: 2 } }", 2)?;
    let job = slurm.hold("cpu-0", 60)?;
    let uid = slurm.worker("cpu-0")?;
    let machine = machine_of(&slurm, "cpu-0")?;
    let cordoned = Cordoned(machine.clone());
    let selector = "--pod-selector=app.kubernetes.io/name=slurmd";
    let drain = [
        "drain",
        machine.as_str(),
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        selector,
    ];
    let refused = kubectl(&[&drain[..], &["--timeout=5s"]].concat());
    let refused = format!(
        "{:#}",
        refused.err().context("the worker was evicted with its job")?
    );
    ensure!(refused.contains("disruption budget"), "{refused}");
    let reason = slurm.wait_drain("cpu-0")?;
    ensure!(reason.contains("cordoned"), "{reason}");
    slurm.wait_told(
        NODESET,
        ["Progressing", "False", "Drained"],
        &["cpu-0", "cordoned", &format!("job {job} of ")],
    )?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;

    slurm.open("cpu-0")?;
    slurm.wait_job(&job, "COMPLETED")?;
    kubectl(&[&drain[..], &["--timeout=120s"]].concat())?;
    drop(cordoned);
    // The worker comes back, and the operator resumes the node that it drained.
    slurm.wait_idle(2).map(drop)
}

#[test]
fn a_drain_that_an_administrator_made_outlives_everything() -> Result<()> {
    // The node that the administrator drained counts as unavailable, so the budget must allow another one.
    let values = |more: Value| {
        let mut values = json!({ "nodesets": { "cpu": {
            "replicas": 2,
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 2 } },
        } } });
        if let (Some(set), Some(more)) = (values["nodesets"]["cpu"].as_object_mut(), more.as_object()) {
            set.extend(more.clone());
        }
        values.to_string()
    };
    let slurm = Slurm::install_ready("admin", &values(json!({})), 2)?;
    let words = [
        "scontrol",
        "update",
        "nodename=cpu-0",
        "state=drain",
        "reason=bad disk",
    ];
    slurm.controller(&words)?;
    let drained = |slurm: &Slurm| -> Result<()> {
        let state = slurm.node_field("cpu-0", "State")?;
        ensure!(state.contains("DRAIN"), "cpu-0 is {state}");
        let reason = slurm.node_reason("cpu-0")?;
        ensure!(reason == "bad disk", "cpu-0 is drained for {reason:?}");
        Ok(())
    };
    drained(&slurm)?;

    let pod = worker_pod("cpu-0");
    let cordon = |value: Value| {
        slurm.patch(
            &format!("pod/{pod}"),
            &json!({ "metadata": { "annotations": { "nodeset.slinky.slurm.net/pod-cordon": value } } }),
        )
    };
    cordon(json!("true"))?;
    let other = slurm.worker("cpu-1")?;
    slurm.scale(3)?;
    slurm.wait_idle(2)?;
    drained(&slurm)?;
    cordon(Value::Null)?;

    // The new pod has the same name, so it uses the same node record.
    let before = slurm.worker("cpu-0")?;
    slurm.upgrade(&values(
        json!({ "replicas": 3, "slurmd": { "env": [{ "name": "NEW", "value": "1" }] } }),
    ))?;
    eventually("an update of all workers", || {
        for (node, old) in [("cpu-0", &before), ("cpu-1", &other)] {
            ensure!(slurm.worker(node)? != *old, "{node} is as before");
        }
        Ok(())
    })?;
    slurm.wait_idle(2)?;
    drained(&slurm)?;
    let machine = machine_of(&slurm, "cpu-0")?;
    let cordoned = Cordoned(machine.clone());
    kubectl(&["cordon", &machine])?;
    eventually("the cordon to be seen", || {
        let pod = slurm.get(&["node", &machine])?;
        ensure!(pod.pointer("/spec/unschedulable") == Some(&json!(true)));
        Ok(())
    })?;
    drop(cordoned);
    slurm.wait_idle(2)?;
    drained(&slurm)?;
    slurm.controller(&["scontrol", "update", "nodename=cpu-0", "state=resume"])?;
    slurm.wait_idle(3).map(drop)
}

#[test]
fn a_machine_that_vanishes_and_comes_back_has_one_worker_of_each_name() -> Result<()> {
    let slurm = Slurm::install_ready("machine", "nodesets: { cpu: { replicas: 2 } }", 2)?;
    let job = slurm.hold("cpu-1", 60)?;
    let uid = slurm.worker("cpu-1")?;
    let machine = machine_of(&slurm, "cpu-1")?;

    // A kubelet restart does not affect the job.
    let number = machine.trim_start_matches("node-").parse()?;
    run(cluster()?
        .in_node(Node(number))?
        .args(["pkill", "--exact", "kubelet"]))?;
    eventually("the kubelet again", || {
        slurm.space.exec_in(&worker_pod("cpu-1"), "slurmd", &["true"])
    })?;
    slurm.stays_at_work("cpu-1", &uid, &job)?;
    slurm.open("cpu-1")?;
    slurm.wait_job(&job, "COMPLETED")?;

    // Deleting the Node object deletes its pods. The kubelet registers the node again when it starts.
    kubectl(&["delete", "node", &machine])?;
    eventually("the worker's replacement", || {
        ensure!(slurm.worker("cpu-1")? != uid, "it is the same pod");
        Ok(())
    })?;
    run(cluster()?
        .in_node(Node(number))?
        .args(["pkill", "--exact", "kubelet"]))?;
    eventually("the machine again", || slurm.get(&["node", &machine]))?;
    operator::wait_whole()?;
    slurm.wait_idle(2)?;
    let nodes = slurm.controller(&["sinfo", "--noheader", "--Node", "--format=%N"])?;
    let mut nodes: Vec<&str> = nodes.split_whitespace().collect();
    nodes.sort_unstable();
    ensure!(nodes == ["cpu-0", "cpu-1"], "{nodes:?}");
    let job = slurm.sbatch(&["--nodes=2"], "srun hostname")?;
    slurm.wait_job(&job, "COMPLETED")
}
