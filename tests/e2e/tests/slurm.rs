//! The quick start's Slurm: a user's job runs.

use anyhow::{Result, ensure};
use e2e::{kubectl, run, xtask};

fn login(words: &[&str]) -> Result<String> {
    let name = std::env::var("KEELSON_TEST_CLUSTER")?;
    run(xtask()?.args(["shell", "--name", &name, "--"]).args(words))
}

#[test]
fn srun_on_two_nodes_prints_two_names() -> Result<()> {
    let printed = e2e::eventually("a job on two nodes", || login(&["srun", "--nodes=2", "hostname"]))?;
    let mut names: Vec<&str> = printed.split_whitespace().collect();
    names.sort_unstable();
    names.dedup();
    ensure!(names.len() == 2, "{printed:?}");
    // Two Kubernetes nodes, too.
    let hosts = kubectl(&[
        "--namespace=slurm",
        "get",
        "pods",
        "--selector=app.kubernetes.io/name=slurmd",
        "--output=jsonpath={range .items[*]}{.spec.nodeName}{\"\\n\"}{end}",
    ])?;
    let mut hosts: Vec<&str> = hosts.split_whitespace().collect();
    hosts.sort_unstable();
    hosts.dedup();
    ensure!(hosts.len() >= 2, "{hosts:?}");
    Ok(())
}
