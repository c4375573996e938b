//! Tests jobs on workers whose drain timeout has expired: the operator requeues jobs that Slurm can requeue, and waits
//! for the others.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing entry fails the test, as it should"
)]

use anyhow::{Context, Result, ensure};
use e2e::eventually;
use e2e::slurm::{NODESET, Slurm, worker_pod};
use serde_json::json;

const HOLD: &str = "until [ -e /tmp/open ]; do sleep 1; done";

/// Sets the deletion cost of a worker's pod. Workers with a lower cost are removed first.
fn deletion_cost(slurm: &Slurm, node: &str, cost: &str) -> Result<()> {
    let pod = format!("pod/{}", worker_pod(node));
    let annotations = json!({ "nodeset.slinky.slurm.net/pod-deletion-cost": cost });
    slurm.patch(&pod, &json!({ "metadata": { "annotations": annotations } }))
}

/// Returns the IDs of an array's running tasks, with their nodes. The task whose job ID equals that of the array comes
/// first.
fn running_tasks(slurm: &Slurm, array: &str, count: usize) -> Result<Vec<(String, String)>> {
    eventually("running tasks", || {
        let shown = slurm.controller(&[
            "squeue",
            "--noheader",
            "--array",
            "--states=RUNNING",
            "--format=%i %A %N",
        ])?;
        let mut tasks = Vec::new();
        for line in shown
            .lines()
            .filter(|line| line.starts_with(&format!("{array}_")))
        {
            let mut words = line.split_whitespace().map(str::to_owned);
            let (task, id, node) = (words.next(), words.next(), words.next());
            let (task, id, node) = (
                task.context("no task")?,
                id.context("no id")?,
                node.context("no node")?,
            );
            tasks.push((id != array, task, node));
        }
        ensure!(tasks.len() == count, "{tasks:?}");
        tasks.sort();
        Ok(tasks.into_iter().map(|(_, task, node)| (task, node)).collect())
    })
}

/// Waits until all components of a heterogeneous job run, and returns the node of each.
fn running_components(slurm: &Slurm, job: &str, count: usize) -> Result<Vec<String>> {
    eventually("running components", || {
        let shown = slurm.controller(&["squeue", "--noheader", "--states=RUNNING", "--format=%i %N"])?;
        let mut found: Vec<(&str, &str)> = shown.lines().filter_map(|line| line.split_once(' ')).collect();
        found.retain(|(id, _)| id.starts_with(&format!("{job}+")));
        ensure!(found.len() == count, "{shown}");
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, node)| node.to_owned()).collect())
    })
}

fn a_heterogeneous_job_is_requeued_as_a_whole(slurm: &Slurm) -> Result<()> {
    slurm.scale(2)?;
    slurm.wait_idle(2)?;
    // The options of each component, then the script of the first.
    let job = slurm.sbatch(&["--requeue", "--ntasks=1", ":", "--ntasks=1"], HOLD)?;
    let nodes = running_components(slurm, &job, 2)?;
    let (first, second) = (&nodes[0], &nodes[1]);
    ensure!(first != second, "both components are on {first}");
    let drain = json!({ "timeout": "2s", "onTimeout": "Requeue" });

    // One worker is removed. The component on the other worker is requeued too.
    deletion_cost(slurm, second, "-10")?;
    slurm.patch(NODESET, &json!({ "spec": { "replicas": 1, "drain": drain } }))?;
    for offset in ["0", "1"] {
        let component = format!("{job}+{offset}");
        slurm.wait_job(&component, "PENDING")?;
        ensure!(slurm.job_field(&component, "Restarts")? == "1", "{component}");
    }
    slurm.wait_gone(second)?;
    slurm.ask(&["scancel", &job])?;
    slurm.patch(NODESET, &json!({ "spec": { "replicas": 0, "drain": null } }))?;
    slurm.wait_gone(first)
}

#[test]
fn overdue_jobs_are_requeued_one_by_one_and_others_are_waited_for() -> Result<()> {
    let slurm = Slurm::install_ready("overdue", "nodesets: { cpu: { replicas: 3 } }", 3)?;
    let stays = slurm.sbatch(&["--no-requeue", "--nodelist=cpu-0", "--time=60"], HOLD)?;
    slurm.wait_job(&stays, "RUNNING")?;
    let array = slurm.sbatch(
        &["--requeue", "--array=0-1", "--exclude=cpu-0", "--time=60"],
        HOLD,
    )?;
    let tasks = running_tasks(&slurm, &array, 2)?;
    let [(keeper, leaving), (other, kept)] = &tasks[..] else {
        anyhow::bail!("{tasks:?}")
    };
    let uid = slurm.worker("cpu-0")?;

    // Removes the worker with the task that has the same ID as its array, and the one with the job that cannot be
    // requeued.
    deletion_cost(&slurm, leaving, "-10")?;
    deletion_cost(&slurm, "cpu-0", "-5")?;
    slurm.patch(
        NODESET,
        &json!({ "spec": { "replicas": 1, "drain": { "timeout": "2s", "onTimeout": "Requeue" } } }),
    )?;
    slurm.wait_gone(leaving)?;
    slurm.wait_job(keeper, "PENDING")?;
    ensure!(slurm.job_field(keeper, "Restarts")? == "1");
    ensure!(
        slurm.job_state(other)? == "RUNNING",
        "the whole array was requeued"
    );
    ensure!(slurm.job_field(other, "Restarts")? == "0");
    slurm.wait_told(
        NODESET,
        ["Progressing", "True", "Draining"],
        &["cannot be requeued", &stays],
    )?;
    slurm.stays_at_work("cpu-0", &uid, &stays)?;

    // A pending job that requires this node keeps the node's record when the worker is removed.
    let waits = slurm.sbatch(&["--nodelist=cpu-0"], "true")?;
    slurm.ask(&["scancel", &stays])?;
    eventually("the end of the worker", || {
        ensure!(
            !slurm.workers()?.contains_key(&worker_pod("cpu-0")),
            "it is there"
        );
        Ok(())
    })?;
    slurm.wait_told(
        NODESET,
        ["Progressing", "False", "RecordsKept"],
        &["cpu-0", &waits],
    )?;
    ensure!(slurm.job_state(&waits)? == "PENDING");
    ensure!(
        slurm.get(&[NODESET])?["status"]["slurmDrain"] == json!(1),
        "the record is not counted"
    );
    slurm.ask(&["scancel", &waits])?;
    slurm.wait_gone("cpu-0")?;

    // A suspended job keeps its worker, regardless of the node's state.
    slurm.patch(NODESET, &json!({ "spec": { "drain": null } }))?;
    slurm.ask(&["scontrol", "suspend", other])?;
    let uid = slurm.worker(kept)?;
    slurm.scale(0)?;
    slurm.wait_drain(kept)?;
    for _ in 0..6 {
        ensure!(
            slurm.worker(kept)? == uid,
            "the worker of a suspended job was replaced"
        );
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    ensure!(slurm.job_state(other)? == "SUSPENDED");
    slurm.ask(&["scontrol", "resume", other])?;
    slurm.open(kept)?;
    slurm.wait_job(other, "COMPLETED")?;
    slurm.wait_gone(kept)?;
    slurm.ask(&["scancel", &array])?;

    a_heterogeneous_job_is_requeued_as_a_whole(&slurm)?;

    // Slurm does not delete a node in a reservation, and the NodeSet reports this.
    slurm.scale(1)?;
    slurm.wait_idle(1)?;
    let reservation =
        "scontrol create reservation reservationname=held nodes=cpu-0 starttime=now duration=60 users=root";
    slurm.ask(&reservation.split(' ').collect::<Vec<_>>())?;
    eventually("the reservation of the node", || {
        let held = slurm.node_field("cpu-0", "ReservationName")?;
        ensure!(held == "held", "{held}");
        Ok(())
    })?;
    slurm.scale(0)?;
    slurm.wait_told(
        NODESET,
        ["Progressing", "True", "Draining"],
        &["reservation held"],
    )?;
    slurm.ask(&["scontrol", "delete", "reservationname=held"])?;
    slurm.wait_gone("cpu-0")
}
