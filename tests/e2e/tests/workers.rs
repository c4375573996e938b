//! What a NodeSet's engine does with workers, one feature a test, with real slurmds.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use e2e::{eventually, kubectl, slurm::Slurm};
use serde_json::json;

const SET: &str = "nodeset/slurm-worker-cpu";

fn machines() -> Result<Vec<String>> {
    let names = kubectl(&["get", "nodes", "--output=jsonpath={.items[*].metadata.name}"])?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// Marks machines for one test's workers, and takes the marks away again.
struct Marks {
    key: String,
}

impl Marks {
    fn new(test: &str) -> Self {
        Self {
            key: format!("test.keelson.dev/{test}-{}", std::process::id()),
        }
    }

    fn put(&self, machine: &str) -> Result<()> {
        kubectl(&["label", "--overwrite", "node", machine, &format!("{}=yes", self.key)]).map(drop)
    }

    fn take(&self, machine: &str) -> Result<()> {
        kubectl(&["label", "node", machine, &format!("{}-", self.key)]).map(drop)
    }

    fn taint(&self, machine: &str) -> Result<()> {
        kubectl(&["taint", "--overwrite", "node", machine, &format!("{}=yes:NoSchedule", self.key)]).map(drop)
    }

    fn untaint(&self, machine: &str) -> Result<()> {
        kubectl(&["taint", "node", machine, &format!("{}-", self.key)]).map(drop)
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        for machine in machines().unwrap_or_default() {
            let _ = self.take(&machine);
            let _ = self.untaint(&machine);
        }
    }
}

/// The uid of the worker on a machine.
fn worker_on(slurm: &Slurm, machine: &str) -> Result<String> {
    let pods = slurm.get(&[
        "pods",
        "--selector=app.kubernetes.io/name=slurmd",
        &format!("--field-selector=spec.nodeName={machine}"),
    ])?;
    let uids: Vec<&str> = pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pod| pod["metadata"]["uid"].as_str())
        .collect();
    ensure!(uids.len() == 1, "{} workers on {machine}", uids.len());
    Ok(uids.concat())
}

fn names_in_slurm(slurm: &Slurm) -> Result<BTreeSet<String>> {
    let shown = slurm.controller(&["sinfo", "--noheader", "--Node", "--format=%N"])?;
    Ok(shown.split_whitespace().map(str::to_owned).collect())
}

#[test]
fn a_worker_on_every_fitting_machine() -> Result<()> {
    let all = machines()?;
    let [first, second, third] = all.as_slice() else {
        anyhow::bail!("three machines are needed, not {all:?}");
    };
    let marks = Marks::new("daemon");
    marks.put(first)?;
    marks.put(second)?;
    let selector = &marks.key;
    let daemon = format!(
        "nodesets: {{ cpu: {{ scalingMode: DaemonSet, podSpec: {{ nodeSelector: {{ {selector}: \"yes\" }} }} }} }}"
    );
    let slurm = Slurm::install_ready("daemon", &daemon, 2)?;
    ensure!(names_in_slurm(&slurm)? == BTreeSet::from([first.clone(), second.clone()]));

    // One joins.
    marks.put(third)?;
    slurm.wait_idle(3)?;
    let set = slurm.get(&[SET])?;
    ensure!(set["status"]["desired"] == 3, "{}", set["status"]);

    // A taint against new pods moves nobody; a machine that no longer fits lets its job end.
    let job = slurm.sbatch(&["--nodelist", second], "sleep 20")?;
    slurm.wait_job(&job, "RUNNING")?;
    let before = worker_on(&slurm, second)?;
    marks.taint(third)?;
    marks.take(second)?;
    eventually("a drain", || {
        let state = slurm.node_field(second, "State")?;
        ensure!(state.contains("DRAIN"), "{second} is {state}");
        Ok(())
    })?;
    ensure!(slurm.job_state(&job)? == "RUNNING", "the job did not survive the drain");
    ensure!(worker_on(&slurm, second)? == before, "the busy worker was replaced");
    slurm.wait_job(&job, "COMPLETED")?;
    eventually("no record and no pod", || {
        ensure!(worker_on(&slurm, second).is_err(), "a worker is still on {second}");
        ensure!(!names_in_slurm(&slurm)?.contains(second), "Slurm still knows {second}");
        Ok(())
    })?;
    worker_on(&slurm, third).context("the tainted machine lost its worker")?;

    // It fits again, and the same name comes back; now the other way to count, with a job that outlives the switch.
    marks.untaint(third)?;
    marks.put(second)?;
    slurm.wait_idle(3)?;
    let job = slurm.sbatch(&["--nodelist", first], "sleep 20")?;
    slurm.wait_job(&job, "RUNNING")?;
    slurm.patch(SET, &json!({ "spec": { "scalingMode": "StatefulSet", "replicas": 2 } }))?;
    slurm.wait_job(&job, "COMPLETED")?;
    let idle = slurm.wait_idle(2)?;
    ensure!(idle == ["cpu-0", "cpu-1"], "{idle:?}");
    eventually("nobody else", || {
        let known = names_in_slurm(&slurm)?;
        ensure!(known.len() == 2, "Slurm knows {known:?}");
        ensure!(slurm.workers()?.len() == 2, "{:?}", slurm.workers()?);
        Ok(())
    })
}
