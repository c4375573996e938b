//! Volumes and files that are the same in login pods and workers.

use anyhow::{Result, ensure};
use e2e::slurm::{EXAMPLES, Slurm};
use e2e::{Namespace, eventually};
use serde_json::{Value, json};

use crate::{change, wait_settled};

/// Content of a ConfigMap. Running pods follow its changes.
const LIVE: &str = "/etc/keelson-live";
/// Content of the SlurmCluster. A change replaces the pods.
const FIXED: &str = "/etc/keelson-fixed";
/// Login pods and workers.
const PODS: &str = "app.kubernetes.io/name in (login,slurmd)";

const SOURCES: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: data }
spec: { accessModes: [ReadWriteMany], resources: { requests: { storage: 1Gi } } }
---
apiVersion: v1
kind: ConfigMap
metadata: { name: site }
data: { live: one }
";

/// Creates the claims and the ConfigMap that [`storage`] and [`files`] name.
pub fn create_sources(space: &Namespace) -> Result<()> {
    space.apply(&std::fs::read_to_string(format!("{EXAMPLES}/home.yaml"))?)?;
    space.apply(SOURCES).map(drop)
}

pub fn storage() -> Value {
    json!({
        "home": { "claim": "home" },
        "shared": [
            { "path": "/data", "claim": "data", "subPath": "project" },
            { "path": "/reference", "claim": "data", "readOnly": true },
        ],
    })
}

pub fn files() -> Value {
    json!({
        LIVE: { "configMapKeyRef": { "name": "site", "key": "live" }, "update": "Live" },
        FIXED: { "content": "one" },
    })
}

pub fn volumes_are_the_same_everywhere(slurm: &Slurm) -> Result<()> {
    slurm.login(&[
        "sh",
        "-c",
        "echo of-a-login >/home/note && echo of-a-login >/data/note",
    ])?;
    let read = "cat /home/note /data/note /reference/project/note && hostname >/home/of-a-job";
    let seen = slurm.login(&["srun", "--nodelist=cpu-0", "sh", "-c", read])?;
    ensure!(seen == "of-a-login\n".repeat(3), "{seen}");
    let written = slurm.login(&["cat", "/home/of-a-job"])?;
    ensure!(written.trim() == "cpu-0", "{written}");
    let write = ["touch", "/reference/note"];
    for refused in [slurm.login(&write), in_worker(slurm, &write)] {
        let refused = format!("{refused:?}");
        ensure!(refused.contains("Read-only file system"), "{refused}");
    }
    Ok(())
}

pub fn files_follow_their_content(slurm: &Slurm) -> Result<()> {
    are_everywhere(slurm, "one", "one")?;
    let before = slurm.pods(PODS)?;
    slurm.patch("configmap/site", &json!({ "data": { "live": "two" } }))?;
    eventually("the new content of the ConfigMap", || {
        are_everywhere(slurm, "two", "one")
    })?;
    let after = slurm.pods(PODS)?;
    ensure!(
        after == before,
        "a live file replaced pods: {before:?}, {after:?}"
    );

    let job = slurm.hold("cpu-0", 60)?;
    let worker = slurm.worker("cpu-0")?;
    change(slurm, &json!({ "files": { FIXED: { "content": "two" } } }))?;
    slurm.wait_drain("cpu-0")?;
    slurm.stays_at_work("cpu-0", &worker, &job)?;
    slurm.open("cpu-0")?;
    slurm.wait_job(&job, "COMPLETED")?;
    eventually("the new content in new pods", || {
        are_everywhere(slurm, "two", "two")
    })?;
    ensure!(
        slurm.worker("cpu-0")? != worker,
        "the worker of the old content has the new one"
    );
    wait_settled(slurm)?;
    slurm.wait_idle(2).map(drop)
}

/// Checks the content of the files in a login pod and in a worker.
fn are_everywhere(slurm: &Slurm, live: &str, fixed: &str) -> Result<()> {
    let read = ["cat", LIVE, FIXED];
    for text in [slurm.login(&read)?, in_worker(slurm, &read)?] {
        ensure!(text == format!("{live}{fixed}"), "{text}");
    }
    Ok(())
}

fn in_worker(slurm: &Slurm, words: &[&str]) -> Result<String> {
    slurm.space.exec_in(&slurm.pod_of("cpu-0")?, "slurmd", words)
}
