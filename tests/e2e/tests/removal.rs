//! Removal of NodeSets, partitions and whole releases while jobs use them. Slurm kills the jobs of a partition that is
//! missing after a reconfiguration, so a partition must stay until no job names it.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing entry fails the test, as it should"
)]

use anyhow::{Context, Result, ensure};
use e2e::slurm::{NODESET, Slurm};
use e2e::{cluster, eventually, run};
use serde_json::json;

const CONTROLLER: &str = "controller.slinky.slurm.net/slurm";
const RESTAPI: &str = "restapi.slinky.slurm.net/slurm";
const LOGINSET: &str = "loginset.slinky.slurm.net/slurm-login-users";

fn partitions(slurm: &Slurm) -> Result<Vec<String>> {
    let shown = slurm.ask(&["sinfo", "--noheader", "--format=%R"])?;
    Ok(shown.split_whitespace().map(str::to_owned).collect())
}

#[test]
fn a_deleted_nodeset_drains_and_its_partition_stays_for_the_jobs_that_name_it() -> Result<()> {
    let values = json!({ "nodesets": { "cpu": { "replicas": 1, "partition": { "enabled": true } } } });
    let slurm = Slurm::install_ready("removal", &values.to_string(), 1)?;
    let finished = slurm.sbatch(&["--partition=cpu"], "true")?;
    slurm.wait_job(&finished, "COMPLETED")?;
    let running = slurm.sbatch(
        &["--partition=cpu", "--exclusive"],
        "until [ -e /tmp/open ]; do sleep 1; done",
    )?;
    slurm.wait_job(&running, "RUNNING")?;
    let pending = slurm.sbatch(&["--partition=cpu"], "true")?;
    let uid = slurm.worker("cpu-0")?;

    slurm.space.kubectl(&["delete", NODESET, "--wait=false"])?;
    let reason = slurm.wait_drain("cpu-0")?;
    ensure!(reason.contains("deletion of its NodeSet"), "{reason}");
    slurm.stays_at_work("cpu-0", &uid, &running)?;
    ensure!(slurm.job_state(&pending)? == "PENDING");

    slurm.open("cpu-0")?;
    slurm.wait_job(&running, "COMPLETED")?;
    slurm.wait_gone("cpu-0")?;
    slurm
        .space
        .kubectl(&["wait", "--for=delete", NODESET, "--timeout=120s"])?;
    // The pending job still names the partition.
    let told = slurm.wait_condition(CONTROLLER, "ConfigApplied", "True", "")?;
    ensure!(slurm.job_state(&pending)? == "PENDING", "{told}");
    ensure!(partitions(&slurm)?.contains(&"cpu".to_owned()));
    slurm.ask(&["scancel", &pending])?;
    eventually("the end of the partition", || {
        let left = partitions(&slurm)?;
        ensure!(!left.contains(&"cpu".to_owned()), "{left:?}");
        Ok(())
    })
}

#[test]
fn pods_that_do_not_come_up_are_told_of_and_a_nodeset_of_such_workers_goes() -> Result<()> {
    // The webhook only warns about an unknown parameter, because a newer Slurm may know it. This slurmd exits with an
    // error.
    let lost = json!({ "replicas": 1,
        "podSpec": { "volumes": [{ "name": "lost", "configMap": { "name": "nowhere" } }] },
        "slurmd": { "volumeMounts": [{ "name": "lost", "mountPath": "/lost" }] } });
    let values = json!({
        "nodesets": { "cpu": { "replicas": 2, "extraConf": "NoSuchParameter=1" }, "lost": lost },
        "loginsets": { "users": { "login": { "image": "localhost/keelson/no-such-image:1" } } },
    });
    let slurm = Slurm::install("stillborn", &values.to_string())?;
    slurm.wait_told(
        LOGINSET,
        ["Degraded", "True", "PodHeld"],
        &["pod slurm-login-users-", "no-such-image"],
    )?;
    // The condition quotes slurmd.
    slurm.wait_told(
        NODESET,
        ["Degraded", "True", "DaemonEnded"],
        &[
            "pod slurm-worker-cpu-",
            "container slurmd terminated",
            "NoSuchParameter",
        ],
    )?;
    eventually("the columns that tell of it", || {
        let shown = slurm.space.kubectl(&["get", NODESET])?;
        ensure!(
            shown.contains("False") && shown.contains("DaemonEnded"),
            "{shown}"
        );
        Ok(())
    })?;
    eventually("an event that tells of it", || {
        let events = slurm.get(&["events", "--field-selector=reason=DaemonEnded"])?;
        ensure!(events.to_string().contains("NoSuchParameter"), "{events}");
        Ok(())
    })?;
    slurm.wait_told(
        "nodesets/slurm-worker-lost",
        ["Degraded", "True", "PodHeld"],
        &["pod slurm-worker-lost-0: its volumes or network"],
    )?;
    slurm
        .space
        .kubectl(&["delete", NODESET, "nodesets/slurm-worker-lost", "--wait=false"])?;
    let gone = ["wait", "--for=delete", NODESET, "nodesets/slurm-worker-lost"];
    slurm.space.kubectl(&[&gone[..], &["--timeout=300s"]].concat())?;
    let left = slurm.workers()?;
    ensure!(left.is_empty(), "{left:?}");

    // The conditions also quote slurmctld and slurmrestd, and recover when the daemons are fixed.
    let values = json!({
        "nodesets": { "cpu": { "replicas": 0 }, "lost": { "enabled": false } },
        "controller": { "slurmctld": { "args": ["--no-such-flag"] } },
        "restapi": { "slurmrestd": { "args": ["-u", "no-such-user"] } },
    });
    slurm.upgrade(&values.to_string())?;
    for (object, pod, said) in [
        (CONTROLLER, "pod slurm-controller-0", "Usage: slurmctld"),
        (RESTAPI, "pod slurm-restapi-", "fatal: Unable to resolve user"),
    ] {
        slurm.wait_told(object, ["Degraded", "True", "DaemonEnded"], &[pod, said])?;
    }
    slurm.upgrade("nodesets: { cpu: { replicas: 0 } }")?;
    for object in [CONTROLLER, RESTAPI, LOGINSET] {
        slurm.wait_condition(object, "Ready", "True", "AsSpecified")?;
        slurm.wait_condition(object, "Degraded", "False", "AsSpecified")?;
    }
    Ok(())
}

#[test]
fn a_partition_taken_from_the_values_stays_until_its_last_job_ends() -> Result<()> {
    let with = json!({
        "nodesets": { "cpu": { "replicas": 1 } },
        "partitions": { "short": { "enabled": true, "nodesets": ["ALL"] } },
    });
    let slurm = Slurm::install_ready("partition", &with.to_string(), 1)?;
    let job = slurm.sbatch(&["--partition=short"], "until [ -e /tmp/open ]; do sleep 1; done")?;
    slurm.wait_job(&job, "RUNNING")?;
    let uid = slurm.worker("cpu-0")?;
    slurm.upgrade("nodesets: { cpu: { replicas: 1 } }")?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;
    eventually("a word on what holds the partition", || {
        let controller = slurm.get(&[CONTROLLER])?;
        let told = controller["status"]["conditions"].to_string();
        ensure!(told.contains("short"), "{told}");
        Ok(())
    })?;
    slurm.open("cpu-0")?;
    slurm.wait_job(&job, "COMPLETED")?;
    eventually("the end of the partition", || {
        let left = partitions(&slurm)?;
        ensure!(!left.contains(&"short".to_owned()), "{left:?}");
        Ok(())
    })
}

#[test]
fn uninstalling_the_release_waits_for_running_jobs() -> Result<()> {
    let slurm = Slurm::install_ready("uninstall", "nodesets: { cpu: { replicas: 1 } }", 1)?;
    let job = slurm.hold("cpu-0", 60)?;
    let uid = slurm.worker("cpu-0")?;
    run(cluster()?.helm().args([
        "uninstall",
        "slurm",
        "--namespace",
        &slurm.space.name,
        "--wait=false",
    ]))
    .or_else(|_| {
        // Some versions of Helm do not accept `--wait=false`.
        run(cluster()?
            .helm()
            .args(["uninstall", "slurm", "--namespace", &slurm.space.name]))
    })?;
    slurm.wait_drain("cpu-0")?;
    slurm.stays_at_work("cpu-0", &uid, &job)?;
    slurm.open("cpu-0")?;
    eventually("the end of everything but the data", || {
        slurm
            .space
            .has_no("pods,nodesets,controllers.slinky.slurm.net,restapis,loginsets")
    })?;
    slurm
        .get(&["pvc", "statesave-slurm-controller-0"])
        .context("slurmctld's state is gone")
        .map(drop)
}
