//! Kills or stops the operator of the test cluster.
#![allow(
    clippy::indexing_slicing,
    reason = "an index into JSON that is not there gives null"
)]

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::slurm::condition;
use crate::{api, eventually, get, kubectl, names, run};

const HOME: &str = "--namespace=slurm-operator";

const SELECTOR: &str = "--selector=app.kubernetes.io/name=slurm-operator";

/// Kills the operator's processes with SIGKILL, as a node failure would. Deletes their pods, because new pods start
/// immediately, while a restarted container waits longer each time. Also clears the holder of the Lease: another test
/// covers waiting until the Lease expires, and every test that uses the operator would wait too.
pub fn kill() -> Result<()> {
    let pods = get(&[HOME, "pods", SELECTOR])?;
    let items = pods.get("items").and_then(Value::as_array);
    for pod in items.into_iter().flatten() {
        let text = |pointer| pod.pointer(pointer).and_then(Value::as_str);
        let (name, uid) = text("/metadata/name")
            .zip(text("/metadata/uid"))
            .context("a pod without a name")?;
        kill_pod(name, uid)?;
    }
    api::patch(
        "slurm-operator",
        "lease/slurm-operator",
        &json!({ "spec": { "holderIdentity": "" } }),
    )
}

/// Kills the operator's processes in one pod, and deletes the pod.
pub fn kill_pod(name: &str, uid: &str) -> Result<()> {
    let processes = processes(uid)?;
    if !processes.is_empty() {
        // A process may have exited in the meantime.
        let _ = run(Command::new("kill").arg("-9").args(&processes));
    }
    // Another test may be killing the same operator, which has the same effect.
    let gone = ["--grace-period=0", "--force", "--ignore-not-found"];
    kubectl(&[&[HOME, "delete", "pod", name], &gone[..]].concat()).map(drop)
}

/// Returns the operator's processes in a pod. The test cluster's nodes run on this machine, so their processes are
/// visible here.
fn processes(pod: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        if read("cgroup").contains(&format!("/pod{pod}/")) && read("comm").trim() == "keelson" {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

/// Waits until the cluster has recovered from the loss of a node: all nodes are ready, and so are the Deployments that
/// every test needs.
pub fn wait_whole() -> Result<()> {
    eventually("a cluster that is whole again", || {
        let nodes = get(&["nodes"])?;
        for node in nodes.get("items").and_then(Value::as_array).into_iter().flatten() {
            let ready = condition(node, "Ready")?;
            ensure!(ready["status"] == "True", "a machine is not ready: {ready}");
        }
        for (home, name) in [
            ("kube-system", "coredns"),
            ("slurm-operator", "slurm-operator"),
            ("slurm-operator", "slurm-operator-webhook"),
        ] {
            let deployment = get(&["--namespace", home, "deployment", name])?;
            let count = |pointer| deployment.pointer(pointer).and_then(Value::as_u64);
            ensure!(
                count("/status/availableReplicas") == count("/spec/replicas"),
                "{name}: {deployment}"
            );
        }
        Ok(())
    })
}

/// The operator is scaled to zero until this is dropped.
#[derive(Debug)]
pub struct Stopped;

impl Stopped {
    /// Stops the operator and waits until its pods are gone.
    pub fn stop() -> Result<Self> {
        scale(0)?;
        let stopped = Self;
        eventually("the operator's end", || {
            let pods = names(&[HOME, "pods", SELECTOR])?;
            ensure!(pods.is_empty(), "{pods:?}");
            Ok(())
        })?;
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = scale(1);
    }
}

fn scale(replicas: u8) -> Result<()> {
    kubectl(&[
        HOME,
        "scale",
        "deployment/slurm-operator",
        &format!("--replicas={replicas}"),
    ])
    .map(drop)
}
