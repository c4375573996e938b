//! Workers with GPUs, which one line configures in Kubernetes and in Slurm. There are no GPUs here: Kubernetes gets an
//! extended resource without a device, and slurmd finds the GPUs that Slurm's own tests give it in `fake_gpus.conf`.

use anyhow::{Context, Result, ensure};
use e2e::slurm::{Slurm, worker_pod};
use e2e::{Namespace, eventually, get, kubectl};
use serde_json::{Value, json};

use crate::{CLUSTER, change, small};

const RESOURCE: &str = "test.keelson.dev/gpu";

/// Two GPUs: type, CPUs, cores, links, device, identifier and flags. The devices exist in every container.
const FAKE_GPUS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: { name: fake-gpus }
data:
  fake_gpus.conf: |
    fake|1|(null)|(null)|/dev/null|(null)|nvidia_gpu_env
    fake|1|(null)|(null)|/dev/zero|(null)|nvidia_gpu_env
";

/// Lets a Kubernetes node offer the resource, and creates the ConfigMap that [`node_sets`] names.
pub fn offer(space: &Namespace) -> Result<()> {
    let nodes = get(&[
        "nodes",
        "--selector=!node.kubernetes.io/exclude-from-external-load-balancers",
    ])?;
    let node = nodes["items"][0]["metadata"]["name"]
        .as_str()
        .context("no node")?;
    let capacity = json!({ "status": { "capacity": { RESOURCE: "4" } } }).to_string();
    kubectl(&[
        "patch",
        "node",
        node,
        "--subresource=status",
        "--type=merge",
        "--patch",
        &capacity,
    ])?;
    space.apply(FAKE_GPUS).map(drop)
}

/// Returns a set whose workers have GPUs, and one whose workers have none.
pub fn node_sets() -> (Value, Value) {
    let part = |replicas: u32| {
        json!({
            "replicas": replicas,
            "gpu": { "resource": RESOURCE, "count": 2, "type": "fake", "autoDetect": "nvidia" },
            "oversubscribeNode": true,
            "slurmd": small("20m", "64Mi"),
        })
    };
    let mut with = part(1);
    // Slurm looks for it beside gres.conf, which slurmd gets from slurmctld.
    with["slurmd"]["volumeMounts"] = json!([{
        "name": "fake-gpus", "subPath": "fake_gpus.conf",
        "mountPath": "/var/spool/slurmd/conf-cache/fake_gpus.conf",
    }]);
    with["template"] = json!({ "spec": {
        "volumes": [{ "name": "fake-gpus", "configMap": { "name": "fake-gpus" } }],
    } });
    (with, part(0))
}

pub fn jobs_get_them_from_one_line(slurm: &Slurm) -> Result<()> {
    let pod = slurm.get(&["pod", &worker_pod("gpu-0")])?;
    let containers = pod["spec"]["containers"].as_array();
    let slurmd = containers
        .into_iter()
        .flatten()
        .find(|container| container["name"] == "slurmd")
        .context("no slurmd")?;
    ensure!(slurmd["resources"]["limits"][RESOURCE] == "2", "{slurmd}");
    let file = slurm.controller(&["cat", "/etc/slurm/gres.conf"])?;
    ensure!(file.contains("AutoDetect=nvidia"), "{file}");
    ensure!(slurm.setting("GresTypes")? == "gpu", "GresTypes is not gpu");
    let gres = slurm.node_field("gpu-0", "Gres")?;
    ensure!(gres.starts_with("gpu:fake:2"), "{gres}");

    let words = [
        "timeout",
        "60",
        "srun",
        "--job-name=on-gpus",
        "--gres=gpu:fake:2",
        "sh",
        "-c",
        "echo $SLURM_STEP_GPUS",
    ];
    let given = slurm.login(&words)?;
    ensure!(given.trim() == "0,1", "{given}");
    eventually("its GPUs on record", || {
        let words = [
            "sacct",
            "--noheader",
            "--allocations",
            "--parsable2",
            "--name=on-gpus",
            "--format=state,alloctres",
        ];
        let record = slurm.login(&words)?;
        ensure!(
            record.starts_with("COMPLETED|") && record.contains("gres/gpu:fake=2"),
            "{record}"
        );
        Ok(())
    })
}

/// Starts a worker whose slurmd finds none of the GPUs in the spec.
pub fn missing_gpus_are_told(slurm: &Slurm) -> Result<()> {
    change(slurm, &json!({ "nodeSets": { "bare": { "replicas": 1 } } }))?;
    slurm.wait_told(
        CLUSTER,
        ["Degraded", "True", "ComponentDegraded"],
        &["NodeSet slurm-worker-bare", "bare-0", "INVALID_REG", "(0 < 2)"],
    )?;
    // slurmd looks for GPUs only if it could read its line of the generated gres.conf.
    let pod = worker_pod("bare-0");
    eventually("the search for GPUs in the log", || {
        let log = slurm
            .space
            .kubectl(&["logs", &pod, "--all-containers", "--tail=-1"])?;
        ensure!(log.contains("System GPU detection failed"), "{log}");
        Ok(())
    })
}
