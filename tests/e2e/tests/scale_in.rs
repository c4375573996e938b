//! Tests scale-in: no worker is removed while a job may run on it, whatever else fails at the same time.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing entry fails the test, as it should"
)]

use anyhow::{Result, ensure};
use e2e::slurm::{NODESET, Slurm, worker_pod};
use e2e::{eventually, operator};
use serde_json::json;

fn workers(count: u32) -> String {
    format!("nodesets: {{ cpu: {{ replicas: {count} }} }}")
}

/// Returns the text with which the NodeSet's condition describes a job that it waits for.
fn holds(slurm: &Slurm, job: &str, node: &str) -> Result<String> {
    let user = slurm.job_field(job, "UserId")?;
    let user = user.split('(').next().unwrap_or_default();
    Ok(format!("job {job} of {user} on {node} until "))
}

#[test]
fn scale_in_waits_for_the_jobs_and_keeps_the_worker_whose_job_is_longest() -> Result<()> {
    let slurm = Slurm::install_ready("scale-in", &workers(4), 4)?;
    let limits = [20, 300, 10, 30];
    let mut jobs = Vec::new();
    for (ordinal, minutes) in limits.iter().enumerate() {
        jobs.push(slurm.hold(&format!("cpu-{ordinal}"), *minutes)?);
    }
    let before = slurm.workers()?;
    slurm.scale(1)?;
    for node in ["cpu-0", "cpu-2", "cpu-3"] {
        let reason = slurm.wait_drain(node)?;
        ensure!(
            reason.contains("scale-in"),
            "{node} is drained because of {reason:?}"
        );
    }
    slurm.wait_told(
        NODESET,
        ["Progressing", "True", "Draining"],
        &[
            "3 draining workers",
            &holds(&slurm, &jobs[0], "cpu-0")?,
            &holds(&slurm, &jobs[3], "cpu-3")?,
        ],
    )?;
    // kubectl may have cached the kinds of an earlier cluster, and refreshes them after an error.
    eventually("everything at a glance", || {
        let shown = slurm.space.kubectl(&["get", "slurm", "--output=wide"])?;
        let (controller, restapi) = (
            "controller.slinky.slurm.net/slurm ",
            "restapi.slinky.slurm.net/slurm ",
        );
        for part in ["Draining", NODESET, controller, restapi] {
            ensure!(shown.contains(part), "no {part} in {shown}");
        }
        Ok(())
    })?;

    // One job ends, and its worker is removed.
    slurm.open("cpu-3")?;
    slurm.wait_gone("cpu-3")?;
    slurm.wait_job(&jobs[3], "COMPLETED")?;
    for (node, job) in [("cpu-0", &jobs[0]), ("cpu-1", &jobs[1]), ("cpu-2", &jobs[2])] {
        slurm.stays_at_work(node, &before[&worker_pod(node)], job)?;
    }
    slurm.open("cpu-0")?;
    slurm.open("cpu-2")?;
    slurm.wait_gone("cpu-0")?;
    slurm.wait_gone("cpu-2")?;
    slurm.stays_at_work("cpu-1", &before["slurm-worker-cpu-1"], &jobs[1])?;
    let state = slurm.node_field("cpu-1", "State")?;
    ensure!(!state.contains("DRAIN"), "the last worker is {state}");
    slurm.open("cpu-1")?;
    for job in &jobs {
        slurm.wait_job(job, "COMPLETED")?;
    }
    // New workers get the lowest free ordinals.
    slurm.scale(2)?;
    ensure!(slurm.wait_idle(2)? == ["cpu-0", "cpu-1"]);
    Ok(())
}

#[test]
fn a_leaving_worker_keeps_its_job_whatever_breaks_around_it() -> Result<()> {
    let slurm = Slurm::install_ready("broken", &workers(1), 1)?;
    let job = slurm.hold("cpu-0", 60)?;
    let uid = slurm.worker("cpu-0")?;
    slurm.scale(0)?;
    slurm.wait_drain("cpu-0")?;

    eprintln!("slurmrestd hangs");
    let restapi = "deployment/slurm-restapi";
    let freeze = "for p in /proc/[0-9]*; do read -r name < $p/comm; [ \"$name\" = slurmrestd ] && kill -STOP ${p#/proc/}; done; true";
    slurm.space.exec(restapi, &["bash", "-c", freeze])?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;

    eprintln!("slurmrestd is killed");
    slurm.space.kubectl(&[
        "delete",
        "pods",
        "--selector=app.kubernetes.io/name=slurmrestd",
        "--grace-period=0",
        "--force",
    ])?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;

    eprintln!("the RestApi is deleted");
    let mut saved = slurm.get(&["restapi", "slurm"])?;
    strip(&mut saved);
    slurm
        .space
        .kubectl(&["delete", "restapi", "slurm", "--wait=false"])?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;
    eventually("a RestApi again", || {
        // The deletion waits for the workers. Remove the finalizers, as an impatient administrator would.
        let _ = slurm.patch("restapi/slurm", &json!({ "metadata": { "finalizers": null } }));
        slurm
            .space
            .kubectl(&["wait", "--for=delete", "restapi/slurm", "--timeout=1s"])
    })?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;
    slurm.space.apply(&saved.to_string())?;

    eprintln!("the operator is killed");
    operator::kill()?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;

    eprintln!("the signing key changes");
    slurm.patch(
        "secret/slurm-auth-jwt",
        &json!({ "stringData": { "jwt.key": "another key ".repeat(4) } }),
    )?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;

    eprintln!("the Controller vanishes, and slurmctld with it");
    let controller = "controller.slinky.slurm.net/slurm";
    let mut saved = slurm.get(&[controller])?;
    strip(&mut saved);
    slurm.space.kubectl(&["delete", controller, "--wait=false"])?;
    eventually("a Controller that is gone", || {
        let _ = slurm.patch(controller, &json!({ "metadata": { "finalizers": null } }));
        slurm
            .space
            .kubectl(&["wait", "--for=delete", controller, "--timeout=1s"])
    })?;
    // Remove the anchor too: it is the last owner of the Controller's children.
    slurm
        .space
        .kubectl(&["delete", "configmap", "keelson-anchor-controller-slurm"])?;
    eventually("the end of slurmctld", || {
        ensure!(slurm.controller(&["true"]).is_err(), "it is still there");
        Ok(())
    })?;
    for _ in 0..8 {
        ensure!(
            slurm.worker("cpu-0")? == uid,
            "the worker went with the Controller"
        );
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    slurm.space.apply(&saved.to_string())?;
    slurm.wait_job(&job, "RUNNING")?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;

    // After everything has recovered, the job ends and the worker is removed.
    slurm.open("cpu-0")?;
    slurm.wait_job(&job, "COMPLETED")?;
    slurm.wait_gone("cpu-0")
}

#[test]
fn a_slurmctld_without_its_state_costs_no_worker() -> Result<()> {
    let slurm = Slurm::install_ready("amnesia", &workers(2), 2)?;
    let job = slurm.hold("cpu-1", 60)?;
    let before = slurm.workers()?;
    // The command fails, because its container is killed.
    let _ = slurm.controller(&[
        "bash",
        "-c",
        "shopt -s dotglob; rm -rf /var/spool/slurmctld/*; kill -KILL $(pidof slurmctld)",
    ]);
    eventually("slurmctld without its jobs", || {
        slurm.controller(&["scontrol", "ping"])?;
        let known = slurm.controller(&["squeue", "--noheader"])?;
        ensure!(!known.contains(&job), "it still knows {known}");
        Ok(())
    })?;
    // The operator must not remove workers because Slurm's node list is empty.
    for _ in 0..10 {
        ensure!(
            slurm.workers()? == before,
            "{before:?} became {:?}",
            slurm.workers()?
        );
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    Ok(())
}

/// Removes the status and all generated metadata, so that the object can be applied again.
fn strip(object: &mut serde_json::Value) {
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
    }
    let Some(metadata) = object
        .get_mut("metadata")
        .and_then(serde_json::Value::as_object_mut)
    else {
        return;
    };
    metadata.retain(|name, _| matches!(name.as_str(), "name" | "labels" | "annotations"));
}
