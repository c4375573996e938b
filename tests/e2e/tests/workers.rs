//! Tests features of NodeSets with real slurmds: DaemonSet mode, volume claims and pinned workers.
#![allow(clippy::indexing_slicing, reason = "a JSON value that is not there is null")]

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use e2e::slurm::{NODESET, Slurm};
use e2e::workers::{Marks, machines};
use e2e::{eventually, names};
use serde_json::json;

/// Returns the UID of the worker pod on a Kubernetes node.
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
    ensure!(slurm.nodes()? == BTreeSet::from([first.clone(), second.clone()]));

    // A third node matches.
    marks.put(third)?;
    slurm.wait_idle(3)?;
    eventually("a count of three", || {
        let set = slurm.get(&[NODESET])?;
        ensure!(set["status"]["desired"] == 3, "{}", set["status"]);
        Ok(())
    })?;

    // A `NoSchedule` taint removes no worker. On a node that no longer matches, the job runs to its end first.
    let job = slurm.hold(second, 60)?;
    let before = worker_on(&slurm, second)?;
    marks.taint(third)?;
    marks.take(second)?;
    eventually("a drain", || {
        let state = slurm.node_field(second, "State")?;
        ensure!(state.contains("DRAIN"), "{second} is {state}");
        Ok(())
    })?;
    ensure!(
        slurm.job_state(&job)? == "RUNNING",
        "the job did not survive the drain"
    );
    ensure!(
        worker_on(&slurm, second)? == before,
        "the busy worker was replaced"
    );
    slurm.open(second)?;
    slurm.wait_job(&job, "COMPLETED")?;
    eventually("no record and no pod", || {
        ensure!(
            worker_on(&slurm, second).is_err(),
            "a worker is still on {second}"
        );
        ensure!(!slurm.nodes()?.contains(second), "Slurm still knows {second}");
        Ok(())
    })?;
    worker_on(&slurm, third).context("the tainted machine lost its worker")?;

    // The node matches again, and its worker returns under the same name.
    marks.untaint(third)?;
    marks.put(second)?;
    slurm.wait_idle(3).map(drop)
}

fn exists(slurm: &Slurm, claim: &str) -> Result<bool> {
    let found = names(&["--namespace", &slurm.space.name, "pvc"])?;
    Ok(found.contains(&format!("persistentvolumeclaim/{claim}")))
}

#[test]
fn claims_live_as_long_as_the_user_wants() -> Result<()> {
    let values = "
nodesets:
  cpu:
    replicas: 2
    persistentVolumeClaimRetentionPolicy: { whenScaled: Delete, whenDeleted: Retain }
    volumeClaimTemplates:
      - metadata: { name: scratch }
        spec: { accessModes: [ReadWriteOnce], resources: { requests: { storage: 1Mi } } }
    slurmd: { volumeMounts: [{ name: scratch, mountPath: /scratch }] }
";
    let slurm = Slurm::install_ready("claims", values, 2)?;
    let (first, second) = ("scratch-slurm-worker-cpu-0", "scratch-slurm-worker-cpu-1");
    let in_pod = |words: &[&str]| slurm.space.exec_in("slurm-worker-cpu-0", "slurmd", words);
    in_pod(&["touch", "/scratch/kept"])?;
    let before = slurm.workers()?;
    slurm.space.kubectl(&["delete", "pod", "slurm-worker-cpu-0"])?;
    eventually("the successor with the same claim", || {
        ensure!(slurm.workers()?.get("slurm-worker-cpu-0") != before.get("slurm-worker-cpu-0"));
        in_pod(&["ls", "/scratch/kept"])
    })?;
    slurm.wait_idle(2)?;
    // A worker that is not ready would be removed first, regardless of its ordinal.
    slurm.settled()?;

    ensure!(exists(&slurm, second)?);
    slurm.patch(NODESET, &json!({ "spec": { "replicas": 1 } }))?;
    eventually("the claim of the worker that left is gone", || {
        ensure!(!exists(&slurm, second)?);
        Ok(())
    })?;
    slurm.space.kubectl(&["delete", NODESET, "--timeout=120s"])?;
    ensure!(
        exists(&slurm, first)?,
        "a claim to be kept was deleted with its NodeSet"
    );
    ensure!(
        slurm.get(&["pvc", first])?["metadata"]
            .get("deletionTimestamp")
            .is_none(),
        "a claim to be kept is on its way out"
    );
    Ok(())
}

#[test]
fn a_pinned_worker_goes_back_to_its_machine() -> Result<()> {
    let slurm = Slurm::install_ready("pins", "nodesets: { cpu: { replicas: 2, pinToNode: true } }", 2)?;
    let place = || -> Result<Vec<String>> {
        let pods = slurm.get(&["pods", "--selector=app.kubernetes.io/name=slurmd"])?;
        let items = pods["items"].as_array().context("no items")?;
        let nodes = items.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str());
        Ok(nodes.map(str::to_owned).collect())
    };
    let (status, before) = (slurm.settled()?, place()?);
    ensure!(
        status["ordinalToNode"] == json!({ "0": before[0], "1": before[1] }),
        "{status}"
    );
    let uids = slurm.workers()?;
    slurm
        .space
        .kubectl(&["delete", "pods", "--selector=app.kubernetes.io/name=slurmd"])?;
    eventually("two new workers", || {
        let now = slurm.workers()?;
        ensure!(now.len() == 2 && now.iter().all(|(name, uid)| uids.get(name) != Some(uid)));
        ensure!(place()? == before, "{:?} instead of {before:?}", place()?);
        Ok(())
    })?;
    slurm.wait_idle(2).map(drop)
}
