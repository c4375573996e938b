//! Tests init as the first process of pods that run real Slurm daemons.

mod daemons;
mod database_tls;
mod mount;
mod munge;
mod network;
mod pod;
mod slurmctld;
mod standby;

use anyhow::{Context as _, Result};
use mount::Mount;
use network::{Network, eventually};
use pod::Pod;
use serde_json::Value;

const STATE: &str = "/var/spool/slurmctld/test";

/// The slurm.conf of every test cluster. It sets a log file as the operator does, to show that init still gets the log.
const CONF: &str = "\
ClusterName=test
SlurmUser=slurm
SlurmctldHost=c0
StateSaveLocation=/var/spool/slurmctld/test
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmctldParameters=enable_configless
SlurmdSpoolDir=/var/spool/slurmd
AuthType=auth/slurm
CredType=cred/slurm
AuthInfo=use_client_ids
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/etc/slurm/jwt.key
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MaxNodeCount=64
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
";

/// Returns the files of a cluster, with more lines in slurm.conf.
fn conf(more: &str) -> Mount {
    Mount::default()
        .with("slurm.conf", &format!("{CONF}{more}"))
        .with("cgroup.conf", "CgroupPlugin=disabled\n")
        .with("slurm.key", "an auth/slurm key that is long enough for a test")
        .with("jwt.key", "a jwt key which is long enough for HS256")
}

/// Creates a pod for slurmctld.
fn controller<'a>(network: &'a Network, name: &'static str, mount: &Mount) -> Result<Pod<'a>> {
    network.pod(name, 401, mount)?.volume("state", STATE)
}

/// Starts a slurmctld and waits until it is ready.
fn started<'a>(network: &'a Network, mount: &Mount) -> Result<Pod<'a>> {
    let mut c0 = controller(network, "c0", mount)?;
    c0.start(&["slurmctld"])?;
    serves(&c0)?;
    Ok(c0)
}

/// Waits until a slurmctld is active and init has noticed.
fn serves(pod: &Pod) -> Result<()> {
    eventually("slurmctld serves", || {
        let ready = pod.output(&[
            "curl",
            "--silent",
            "--fail",
            "--max-time",
            "2",
            "http://127.0.0.1:6817/readyz",
        ])?;
        Ok(ready.status.success() && !told(pod, "active")?.is_empty())
    })
}

/// Returns a field of init's report on the configuration.
fn told(pod: &Pod, field: &str) -> Result<String> {
    let status = pod.status()?;
    let value = status
        .pointer(&format!("/config/{field}"))
        .and_then(Value::as_str);
    Ok(value.context("not in the report")?.to_owned())
}

/// Waits for init's verdict on the mounted files, and returns the reason. The verdict is about new files once the
/// candidate is no longer `before`.
fn verdict(pod: &Pod, before: &str, expected: &str) -> Result<String> {
    eventually(&format!("the candidate is {expected}"), || {
        Ok(told(pod, "candidate")? != before && told(pod, "verdict")? == expected)
    })?;
    told(pod, "message")
}

/// Delivers files and waits for init's verdict on them; returns the reason.
fn change(pod: &Pod, mount: &Mount, expected: &str) -> Result<String> {
    let before = told(pod, "candidate")?;
    pod.deliver(mount)?;
    verdict(pod, &before, expected)
}

/// Returns the value of a parameter that slurmctld uses.
fn in_use(pod: &Pod, parameter: &str) -> Result<String> {
    // The mounted files may be too broken for Slurm's commands.
    let text = pod.run(&[
        "SLURM_CONF=/run/slurm-conf/slurm.conf",
        "scontrol",
        "show",
        "config",
    ])?;
    let line = text
        .lines()
        .find(|line| line.starts_with(parameter))
        .unwrap_or_default();
    Ok(line
        .split_once('=')
        .map(|(_, value)| value.trim().to_owned())
        .unwrap_or_default())
}
