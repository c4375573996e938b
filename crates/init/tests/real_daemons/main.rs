//! init as the first process of pods in which real Slurm daemons run.

mod daemons;
mod mount;
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

/// What every test's cluster has. A log file as the operator sets it, so that slurmctld is seen to tell init all the same.
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

/// The files of a cluster, with lines more in slurm.conf.
fn conf(more: &str) -> Mount {
    Mount::default()
        .with("slurm.conf", &format!("{CONF}{more}"))
        .with("cgroup.conf", "CgroupPlugin=disabled\n")
        .with("slurm.key", "an auth/slurm key that is long enough for a test")
        .with("jwt.key", "a jwt key which is long enough for HS256")
}

/// A pod for slurmctld.
fn controller<'a>(network: &'a Network, name: &'static str, mount: &Mount) -> Result<Pod<'a>> {
    network.pod(name, 401, mount)?.volume("state", STATE)
}

/// A slurmctld that serves.
fn started<'a>(network: &'a Network, mount: &Mount) -> Result<Pod<'a>> {
    let mut c0 = controller(network, "c0", mount)?;
    c0.start(&["slurmctld"])?;
    serves(&c0)?;
    Ok(c0)
}

/// Waits until a slurmctld is in charge and init knows it.
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

/// A field of init's report on the configuration.
fn told(pod: &Pod, field: &str) -> Result<String> {
    let status = pod.status()?;
    let value = status
        .pointer(&format!("/config/{field}"))
        .and_then(Value::as_str);
    Ok(value.context("not in the report")?.to_owned())
}

/// Waits for what init thinks of the mounted files, and returns its reason. The verdict is about new files once the
/// candidate is no longer the one that was `before`.
fn verdict(pod: &Pod, before: &str, expected: &str) -> Result<String> {
    eventually(&format!("the candidate is {expected}"), || {
        Ok(told(pod, "candidate")? != before && told(pod, "verdict")? == expected)
    })?;
    told(pod, "message")
}

/// Delivers files and waits for what init thinks of them; returns its reason.
fn change(pod: &Pod, mount: &Mount, expected: &str) -> Result<String> {
    let before = told(pod, "candidate")?;
    pod.deliver(mount)?;
    verdict(pod, &before, expected)
}

/// A parameter as slurmctld has it in use.
fn in_use(pod: &Pod, parameter: &str) -> Result<String> {
    // What is mounted may be so bad that no command of Slurm's works with it.
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
