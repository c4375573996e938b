//! Deletion with `--cascade=orphan`: the cluster goes on without its SlurmCluster, and the next one takes it over.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use e2e::eventually;
use e2e::slurm::{NODESET, Slurm};
use serde_json::{Value, json};

use crate::{CLUSTER, CONTROLLER, change, wait_settled};

/// One child of each kind.
const CHILDREN: [&str; 8] = [
    CONTROLLER,
    "accounting/slurm",
    "restapi/slurm",
    "loginset/slurm-login-users",
    NODESET,
    "statefulset/slurm-mariadb",
    "service/slurm-mariadb",
    "configmap/slurm-config-extra",
];
/// A LoginSet that the next SlurmCluster does not have.
const SECOND: &str = "slurm-login-second";

pub fn go_on_and_are_adopted(slurm: &Slurm) -> Result<()> {
    let again = json!({
        "apiVersion": "keelson.dev/v1alpha1", "kind": "SlurmCluster", "metadata": { "name": "slurm" },
        "spec": slurm.get(&[CLUSTER])?["spec"],
    });
    let before = pods(slurm)?;
    let service = json!({ "spec": { "type": "ClusterIP" } });
    change(slurm, &json!({ "login": { "second": { "service": service } } }))?;
    slurm.wait_condition(&format!("loginset/{SECOND}"), "Ready", "True", "")?;
    slurm.wait_idle(2)?;
    // A file of its own: `Slurm::open` may have ended earlier jobs in this pod.
    let job = slurm.sbatch(
        &["--nodelist=cpu-0"],
        "until [ -e /tmp/adopted ]; do sleep 1; done",
    )?;
    slurm.wait_job(&job, "RUNNING")?;
    let worker = slurm.worker("cpu-0")?;

    slurm
        .space
        .kubectl(&["delete", CLUSTER, "--cascade=orphan", "--timeout=120s"])?;
    slurm.stays_at_work("cpu-0", &worker, &job)?;
    an_orphan_can_be_deleted(slurm)?;

    slurm.space.apply(&again.to_string())?;
    let owner = slurm.get(&[CLUSTER])?["metadata"]["uid"].clone();
    eventually("the adoption of all children", || {
        for child in CHILDREN {
            let object = slurm.get(&[child])?;
            let owners = object["metadata"]["ownerReferences"].as_array();
            let is_adopted = owners
                .into_iter()
                .flatten()
                .any(|known| known["uid"] == owner && known["controller"] == true);
            ensure!(is_adopted, "the owners of {child} are {owners:?}");
        }
        Ok(())
    })?;
    wait_settled(slurm)?;
    slurm.stays_at_work("cpu-0", &worker, &job)?;
    let after = pods(slurm)?;
    ensure!(after == before, "pods were replaced: {before:?}, {after:?}");
    let pod = slurm.pod_of("cpu-0")?;
    slurm.space.exec_in(&pod, "slurmd", &["touch", "/tmp/adopted"])?;
    slurm.wait_job(&job, "COMPLETED")
}

/// Deletes an orphan on its own, with its pods: nobody else would.
fn an_orphan_can_be_deleted(slurm: &Slurm) -> Result<()> {
    slurm
        .space
        .kubectl(&["delete", &format!("loginset/{SECOND}"), "--timeout=120s"])?;
    eventually("the end of the orphan's pods", || {
        let left = slurm.pods(&format!("app.kubernetes.io/instance={SECOND}"))?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

/// Returns the UID and the restarts of each pod, without those that are being deleted.
fn pods(slurm: &Slurm) -> Result<BTreeMap<String, Value>> {
    let pods = slurm.get(&["pods"])?;
    let pods = pods["items"].as_array().context("a list without items")?;
    let at_work = pods
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    Ok(at_work
        .map(|pod| {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let containers = pod["status"]["containerStatuses"].as_array();
            let restarts = containers.into_iter().flatten();
            let restarts: Vec<&Value> = restarts.map(|container| &container["restartCount"]).collect();
            (name.to_owned(), json!([pod["metadata"]["uid"], restarts]))
        })
        .collect())
}
