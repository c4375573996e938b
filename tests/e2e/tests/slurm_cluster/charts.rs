//! The charts `slurm-cluster` and `nodesets`.

use anyhow::{Result, ensure};
use e2e::slurm::Slurm;
use e2e::{Namespace, cluster, eventually, run};
use serde_json::{Value, json};

use crate::{CLUSTER, KINDS, ten_lines, with_accounting_and_login};

const CHARTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts");

fn helm(slurm: &Slurm, words: &[&str], values: &Value) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("values.yaml");
    std::fs::write(&file, values.to_string())?;
    let mut helm = cluster()?.helm();
    helm.args(words)
        .args(["--namespace", &slurm.space.name, "--values"]);
    run(helm.arg(file)).map(drop)
}

#[test]
fn both_charts_install_upgrade_and_uninstall() -> Result<()> {
    let slurm = Slurm::installed(Namespace::create("slc-charts")?);
    let mut values = with_accounting_and_login(ten_lines(""))["spec"].take();
    values["nodeSets"]["cpu"]["replicas"] = json!(1);
    values["users"] = json!({ "ada": { "uid": 2001 } });
    let of_cluster = format!("{CHARTS}/slurm-cluster");
    helm(&slurm, &["install", "slurm", &of_cluster], &values)?;
    let worker = values["nodeSets"]["cpu"].clone();
    let more = json!({ "clusterName": "slurm", "confineJobs": false, "nodesets": { "more": worker } });
    let of_workers = format!("{CHARTS}/nodesets");
    helm(&slurm, &["install", "more", &of_workers], &more)?;
    slurm.wait_condition(CLUSTER, "Ready", "True", "")?;
    slurm.wait_idle(2)?;
    run(cluster()?
        .helm()
        .args(["test", "slurm", "--namespace", &slurm.space.name, "--timeout=5m"]))?;
    slurm.login(&["su", "ada", "--command", "srun hostname"])?;

    let before = slurm.worker("cpu-0")?;
    values["nodeSets"]["cpu"]["replicas"] = json!(2);
    values["files"] = json!({ "/etc/keelson-live": { "content": "one", "update": "Live" } });
    helm(&slurm, &["upgrade", "slurm", &of_cluster], &values)?;
    slurm.wait_idle(3)?;
    eventually("the file in a worker of the new revision", || {
        let pod = slurm.get(&["pod", "slurm-worker-cpu-0"])?;
        ensure!(pod["metadata"]["uid"] != before.as_str(), "it is the old worker");
        let text = slurm
            .space
            .exec_in("slurm-worker-cpu-0", "slurmd", &["cat", "/etc/keelson-live"])?;
        ensure!(text == "one", "{text}");
        Ok(())
    })?;
    let rolled_out = slurm.worker("cpu-0")?;
    values["files"]["/etc/keelson-live"]["content"] = json!("two");
    helm(&slurm, &["upgrade", "slurm", &of_cluster], &values)?;
    eventually("the new content in the same worker", || {
        let text = slurm
            .space
            .exec_in("slurm-worker-cpu-0", "slurmd", &["cat", "/etc/keelson-live"])?;
        ensure!(text == "two", "{text}");
        Ok(())
    })?;
    ensure!(
        slurm.worker("cpu-0")? == rolled_out,
        "a live file replaced a worker"
    );

    let job = slurm.hold("more-0", 60)?;
    run(cluster()?
        .helm()
        .args(["uninstall", "more", "--namespace", &slurm.space.name]))?;
    slurm.wait_drain("more-0")?;
    slurm.open("more-0")?;
    slurm.wait_job(&job, "COMPLETED")?;
    slurm.wait_gone("more-0")?;
    run(cluster()?
        .helm()
        .args(["uninstall", "slurm", "--namespace", &slurm.space.name]))?;
    eventually("the end of everything but the data", || {
        slurm
            .space
            .has_no(&format!("{KINDS},pods,statefulsets,deployments,services"))?;
        slurm.get(&["pvc", "data-slurm-mariadb-0"])?;
        slurm.get(&["configmap", "slurm-users"])?;
        slurm.get(&["pvc", "statesave-slurm-controller-0"]).map(drop)
    })
}
