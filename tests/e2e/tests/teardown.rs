//! Tests the removal of a cluster: `helm uninstall` waits for jobs, and deleting the namespace does not.

use anyhow::{Result, ensure};
use e2e::slurm::{NODESET, Slurm};
use e2e::{cluster, eventually, kubectl, names, run};
use serde_json::json;

const ONE_WORKER: &str = "nodesets: { cpu: { replicas: 1 } }";
const KINDS: &str =
    "controllers.slinky.slurm.net,nodesets,loginsets,restapis,accountings,tokens.slinky.slurm.net,pods";

#[test]
fn helm_uninstall_lets_a_job_end_and_then_ends_itself() -> Result<()> {
    let files = "configFiles: { site.conf: \"# from the user\" }";
    let slurm = Slurm::install_ready("uninstall", &format!("{ONE_WORKER}\n{files}"), 1)?;
    let job = slurm.sbatch(&[], "sleep 3600")?;
    slurm.wait_job(&job, "RUNNING")?;
    let started = slurm.job_field(&job, "StartTime")?;
    run(cluster()?
        .helm()
        .args(["uninstall", "slurm", "--namespace", &slurm.space.name]))?;
    let said = slurm.wait_condition(
        "controllers.slinky.slurm.net/slurm",
        "Terminating",
        "True",
        "InUse",
    )?;
    ensure!(said.contains("NodeSet slurm-worker-cpu"), "{said}");
    eventually("the worker takes no more jobs", || {
        let state = slurm.node_field("cpu-0", "State")?;
        ensure!(state.contains("DRAIN"), "cpu-0 is {state}");
        Ok(())
    })?;
    ensure!(
        slurm.job_state(&job)? == "RUNNING" && slurm.job_field(&job, "StartTime")? == started,
        "the job did not go on"
    );
    comes_back_with_the_files_of_the_user(&slurm)?;
    let said = slurm.install_again(ONE_WORKER).unwrap_err();
    ensure!(
        format!("{said:#}").contains("previous cluster slurm is still being deleted"),
        "installed into one that goes: {said:#}"
    );
    eventually("slurmctld tells of the job", || {
        let (state, begun) = (slurm.job_state(&job)?, slurm.job_field(&job, "StartTime")?);
        ensure!(state == "RUNNING" && begun == started, "{state}, started {begun}");
        Ok(())
    })?;
    slurm.ask(&["scancel", &job])?;
    eventually("everything is gone", || slurm.space.has_no(KINDS))?;
    // The state and the keys are kept for a later installation.
    slurm.get(&["pvc", "statesave-slurm-controller-0"])?;
    slurm.get(&["secret", "slurm-auth-slurm"])?;
    goes_when_asked(&slurm)
}

/// Checks that a restarted slurmctld still gets the user's files, although Helm has already deleted the release's
/// ConfigMaps.
fn comes_back_with_the_files_of_the_user(slurm: &Slurm) -> Result<()> {
    let theirs = slurm.space.get(&["configmaps"])?.to_string();
    ensure!(!theirs.contains("slurm-config-extra"), "it is there yet");
    slurm.space.kubectl(&["delete", "pod", "slurm-controller-0"])?;
    eventually("another slurmctld", || {
        let file = slurm.controller(&["cat", "/etc/slurm/site.conf"])?;
        ensure!(file.contains("from the user"), "{file}");
        slurm.controller(&["scontrol", "ping"])
    })
    .map(drop)
}

/// Checks that the volume claim is deleted with the next installation, because `deletionPolicy` is set to Delete.
fn goes_when_asked(slurm: &Slurm) -> Result<()> {
    slurm.install_again(
        "{ controller: { persistence: { deletionPolicy: Delete } }, nodesets: { cpu: { enabled: false } },
           loginsets: { users: { enabled: false } } }",
    )?;
    slurm.wait_condition("controllers.slinky.slurm.net/slurm", "Ready", "True", "")?;
    run(cluster()?
        .helm()
        .args(["uninstall", "slurm", "--namespace", &slurm.space.name]))?;
    eventually("the volume's end", || slurm.space.has_no("pvc"))
}

#[test]
fn a_deleted_namespace_goes_even_with_a_job_in_it() -> Result<()> {
    let slurm = Slurm::install_ready("gone", ONE_WORKER, 1)?;
    let job = slurm.sbatch(&[], "sleep 3600")?;
    slurm.wait_job(&job, "RUNNING")?;
    // The reservation can no longer be deleted, because slurmrestd is gone too. This must not block the deletion.
    let window = json!({ "startTime": "2100-01-01T00:00:00Z", "duration": "30m" });
    let strategy = json!({ "type": "ScheduledUpdate", "scheduledUpdate": window });
    slurm.patch(NODESET, &json!({ "spec": { "updateStrategy": strategy } }))?;
    slurm.wait_condition(NODESET, "ReservationCreated", "True", "Created")?;
    let name = &slurm.space.name;
    kubectl(&["delete", "namespace", name, "--wait=false"])?;
    eventually("the namespace is gone", || {
        let left = names(&["namespaces"])?;
        ensure!(!left.contains(&format!("namespace/{name}")), "it is there");
        Ok(())
    })
}
