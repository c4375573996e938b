//! Tests that jobs run on the quick start's cluster.

use anyhow::{Result, ensure};
use e2e::{cluster_name, get, run, xtask};
use serde_json::Value;

fn login(words: &[&str]) -> Result<String> {
    run(xtask()?
        .args(["shell", "--name", cluster_name()?, "--"])
        .args(words))
}

#[test]
fn srun_on_two_nodes_prints_two_names() -> Result<()> {
    let printed = e2e::eventually("a job on two nodes", || login(&["srun", "--nodes=2", "hostname"]))?;
    let mut names: Vec<&str> = printed.split_whitespace().collect();
    names.sort_unstable();
    names.dedup();
    ensure!(names.len() == 2, "{printed:?}");
    // The workers also run on two Kubernetes nodes.
    let pods = get(&[
        "--namespace=slurm",
        "pods",
        "--selector=app.kubernetes.io/name=slurmd",
    ])?;
    let mut hosts: Vec<&str> = pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pod| pod.pointer("/spec/nodeName").and_then(Value::as_str))
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    ensure!(hosts.len() >= 2, "{hosts:?}");
    Ok(())
}
