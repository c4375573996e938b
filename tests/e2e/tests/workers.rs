//! What a NodeSet's engine does with workers, one feature a test, with real slurmds.
#![allow(clippy::indexing_slicing, reason = "a JSON value that is not there is null")]

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use e2e::{eventually, kubectl, slurm::Slurm};
use serde_json::{Value, json};

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
        kubectl(&[
            "label",
            "--overwrite",
            "node",
            machine,
            &format!("{}=yes", self.key),
        ])
        .map(drop)
    }

    fn take(&self, machine: &str) -> Result<()> {
        kubectl(&["label", "node", machine, &format!("{}-", self.key)]).map(drop)
    }

    fn taint(&self, machine: &str) -> Result<()> {
        kubectl(&[
            "taint",
            "--overwrite",
            "node",
            machine,
            &format!("{}=yes:NoSchedule", self.key),
        ])
        .map(drop)
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
    ensure!(
        slurm.job_state(&job)? == "RUNNING",
        "the job did not survive the drain"
    );
    ensure!(
        worker_on(&slurm, second)? == before,
        "the busy worker was replaced"
    );
    slurm.wait_job(&job, "COMPLETED")?;
    eventually("no record and no pod", || {
        ensure!(
            worker_on(&slurm, second).is_err(),
            "a worker is still on {second}"
        );
        ensure!(
            !names_in_slurm(&slurm)?.contains(second),
            "Slurm still knows {second}"
        );
        Ok(())
    })?;
    worker_on(&slurm, third).context("the tainted machine lost its worker")?;

    // It fits again, and the same name comes back; now the other way to count, with a job that outlives the switch.
    marks.untaint(third)?;
    marks.put(second)?;
    slurm.wait_idle(3)?;
    let job = slurm.sbatch(&["--nodelist", first], "sleep 20")?;
    slurm.wait_job(&job, "RUNNING")?;
    slurm.patch(
        SET,
        &json!({ "spec": { "scalingMode": "StatefulSet", "replicas": 2 } }),
    )?;
    slurm.wait_job(&job, "COMPLETED")?;
    eventually("nobody else", || {
        let known = names_in_slurm(&slurm)?;
        ensure!(
            known == BTreeSet::from(["cpu-0".to_owned(), "cpu-1".to_owned()]),
            "Slurm knows {known:?}"
        );
        ensure!(slurm.workers()?.len() == 2, "{:?}", slurm.workers()?);
        Ok(())
    })?;
    slurm.wait_idle(2).map(drop)
}

fn exists(slurm: &Slurm, object: &str) -> Result<bool> {
    let found = slurm
        .space
        .kubectl(&["get", object, "--ignore-not-found", "--output=name"])?;
    Ok(!found.trim().is_empty())
}

/// Waits until the operator has taken in the NodeSet as it is now, and returns its status.
fn settled(slurm: &Slurm) -> Result<Value> {
    eventually("a settled NodeSet", || {
        let set = slurm.get(&[SET])?;
        ensure!(
            set["status"]["observedGeneration"] == set["metadata"]["generation"],
            "the status is behind"
        );
        for (kind, wanted) in [("Ready", "True"), ("Progressing", "False")] {
            let found = e2e::slurm::condition(&set, kind)?;
            ensure!(found["status"] == wanted, "{found}");
        }
        Ok(set["status"].clone())
    })
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
    let (first, second) = ("pvc/scratch-slurm-worker-cpu-0", "pvc/scratch-slurm-worker-cpu-1");
    let in_pod = |words: &[&str]| {
        let pod = ["exec", "slurm-worker-cpu-0", "--container=slurmd", "--"];
        slurm.space.kubectl(&[&pod[..], words].concat())
    };
    in_pod(&["touch", "/scratch/kept"])?;
    let before = slurm.workers()?;
    slurm.space.kubectl(&["delete", "pod", "slurm-worker-cpu-0"])?;
    eventually("the successor with the same claim", || {
        ensure!(slurm.workers()?.get("slurm-worker-cpu-0") != before.get("slurm-worker-cpu-0"));
        in_pod(&["ls", "/scratch/kept"])
    })?;
    slurm.wait_idle(2)?;

    ensure!(exists(&slurm, second)?);
    slurm.patch(SET, &json!({ "spec": { "replicas": 1 } }))?;
    eventually("the claim of the worker that left is gone", || {
        ensure!(!exists(&slurm, second)?);
        Ok(())
    })?;
    slurm.space.kubectl(&["delete", SET, "--timeout=120s"])?;
    ensure!(
        exists(&slurm, first)?,
        "a claim to be kept was deleted with its NodeSet"
    );
    ensure!(
        slurm.get(&[first])?["metadata"]
            .get("deletionTimestamp")
            .is_none(),
        "a claim to be kept is on its way out"
    );
    Ok(())
}

#[test]
fn a_rollback_restarts_only_what_was_updated() -> Result<()> {
    let values = "
nodesets:
  cpu:
    replicas: 2
    revisionHistoryLimit: 1
    updateStrategy: { type: RollingUpdate, rollingUpdate: { maxUnavailable: 1, partition: 1 } }
";
    let slurm = Slurm::install_ready("revisions", values, 2)?;
    let first = settled(&slurm)?;
    let born = slurm.workers()?;
    let note = |value: Value| {
        slurm.patch(
            SET,
            &json!({ "spec": { "template": { "metadata": { "annotations": { "note": value } } } } }),
        )
    };
    let chart =
        json!({ "spec": { "template": { "metadata": { "labels": { "helm.sh/chart": "slurm-9" } } } } });
    slurm.patch(SET, &chart)?;
    ensure!(
        settled(&slurm)?["nodeSetHash"] == first["nodeSetHash"],
        "a label for people made a revision"
    );

    note(json!("new"))?;
    eventually("the update above the partition", || {
        let now = slurm.workers()?;
        ensure!(
            now.get("slurm-worker-cpu-1") != born.get("slurm-worker-cpu-1"),
            "not yet"
        );
        ensure!(
            now.get("slurm-worker-cpu-0") == born.get("slurm-worker-cpu-0"),
            "below the partition"
        );
        Ok(())
    })?;
    slurm.wait_idle(2)?;
    let updated = slurm.workers()?;
    note(Value::Null)?;
    eventually("the rollback", || {
        let now = slurm.workers()?;
        ensure!(
            now.get("slurm-worker-cpu-1") != updated.get("slurm-worker-cpu-1"),
            "not yet"
        );
        Ok(())
    })?;
    slurm.wait_idle(2)?;
    let back = settled(&slurm)?;
    ensure!(
        back["nodeSetHash"] == first["nodeSetHash"],
        "another hash than before"
    );
    ensure!(back["updatedReplicas"] == 2, "{back}");
    ensure!(
        slurm.workers()?.get("slurm-worker-cpu-0") == born.get("slurm-worker-cpu-0"),
        "a worker was restarted that had the old revision"
    );
    // Two were made; the first is the newest again, the other within the limit.
    let mut numbers: Vec<i64> = slurm.get(&["controllerrevisions"])?["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|revision| revision["metadata"]["labels"]["app.kubernetes.io/name"] == "slurmd")
        .filter_map(|revision| revision["revision"].as_i64())
        .collect();
    numbers.sort_unstable();
    ensure!(numbers == [2, 3], "{numbers:?}");
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
    let (status, before) = (settled(&slurm)?, place()?);
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

/// A revision as the peer stores one: patch marks, and zero values written out.
fn revision_of_the_peer(set: &Value, hash: &str) -> Value {
    let spec = &set["spec"];
    let replace = |value: &Value| {
        let mut value = value.as_object().cloned().unwrap_or_default();
        value.insert("$patch".into(), json!("replace"));
        value.entry("resources").or_insert(json!({}));
        Value::Object(value)
    };
    json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {
            "name": format!("slurm-worker-cpu-{hash}"),
            "labels": { "controller.kubernetes.io/hash": hash },
            "ownerReferences": [{
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": set["metadata"]["name"],
                "uid": set["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "data": { "spec": {
            "template": replace(&spec["template"]),
            "ordinalPadding": 0,
            "oversubscribeNode": spec["oversubscribeNode"],
            "slurmd": replace(&spec["slurmd"]),
            "extraConf": "",
            "logfile": replace(&spec["logfile"]),
            "ssh": { "$patch": "replace", "enabled": false, "sssdConfRef": { "name": "", "key": "" } },
        } },
        "revision": 1,
    })
}

#[test]
fn workers_of_the_peer_are_taken_over_as_they_are() -> Result<()> {
    let slurm = Slurm::install_ready("adopt", "nodesets: { cpu: { replicas: 2 } }", 2)?;
    let job = slurm.sbatch(&["--nodelist=cpu-0"], "sleep 20")?;
    slurm.wait_job(&job, "RUNNING")?;
    let before = slurm.workers()?;
    // While nobody looks, the workers become what the peer would have left: its hash and only its marks; one of them
    // without an owner, as after a NodeSet that was deleted alone, and without the label of newer releases.
    let pause = |value: Value| slurm.patch(SET, &json!({ "spec": { "paused": value } }));
    pause(json!(true))?;
    let set = slurm.get(&[SET])?;
    slurm
        .space
        .apply(&revision_of_the_peer(&set, "5d8f7b9c4").to_string())?;
    for name in before.keys() {
        let labels = json!({
            "controller.kubernetes.io/hash": "5d8f7b9c4",
            "nodeset.slinky.slurm.net/pod-protect": null,
        });
        slurm.patch(
            &format!("pod/{name}"),
            &json!({ "metadata": { "labels": labels } }),
        )?;
    }
    let orphan = json!({ "metadata": {
        "ownerReferences": null,
        "labels": { "nodeset.slinky.slurm.net/scaling-mode": null },
    } });
    slurm.patch("pod/slurm-worker-cpu-1", &orphan)?;
    pause(Value::Null)?;

    let status = settled(&slurm)?;
    ensure!(status["updatedReplicas"] == 2, "{status}");
    eventually("an owner and protection", || {
        let pod = slurm.get(&["pod/slurm-worker-cpu-1"])?;
        ensure!(
            pod["metadata"]["ownerReferences"][0]["uid"] == set["metadata"]["uid"],
            "no owner"
        );
        ensure!(
            pod["metadata"]["labels"]["nodeset.slinky.slurm.net/pod-protect"] == "true",
            "no protection"
        );
        Ok(())
    })?;
    slurm.wait_job(&job, "COMPLETED")?;
    ensure!(slurm.workers()? == before, "a worker was restarted");
    slurm.wait_idle(2).map(drop)
}

fn in_seconds(seconds: u32) -> Result<String> {
    let then = format!("--date=+{seconds} seconds");
    let text = e2e::run(std::process::Command::new("date").args(["--utc", &then, "+%Y-%m-%dT%H:%M:%SZ"]))?;
    Ok(text.trim().to_owned())
}

#[test]
fn a_scheduled_update_happens_in_its_window() -> Result<()> {
    let slurm = Slurm::install_ready("window", "nodesets: { cpu: { replicas: 2 } }", 2)?;
    let born = slurm.workers()?;
    let job = slurm.sbatch(&["--nodelist=cpu-0"], "sleep 60")?;
    slurm.wait_job(&job, "RUNNING")?;
    let strategy = json!({ "type": "ScheduledUpdate",
        "scheduledUpdate": { "startTime": in_seconds(30)?, "duration": "30m" } });
    let template = json!({ "metadata": { "annotations": { "note": "new" } } });
    slurm.patch(
        SET,
        &json!({ "spec": { "updateStrategy": strategy, "template": template } }),
    )?;
    slurm.wait_condition(SET, "ReservationCreated", "True", "Created")?;
    let shown = slurm.controller(&[
        "scontrol",
        "show",
        "reservation",
        "SlurmOperatorMaint-slurm-worker-cpu",
    ])?;
    ensure!(shown.contains("cpu-[0-1]") && shown.contains("MAINT"), "{shown}");
    ensure!(
        slurm.workers()? == born,
        "a worker was replaced before the window opened"
    );

    eventually("the idle worker replaced", || {
        ensure!(slurm.workers()?.get("slurm-worker-cpu-1") != born.get("slurm-worker-cpu-1"));
        Ok(())
    })?;
    ensure!(
        slurm.job_state(&job)? == "RUNNING",
        "the job did not survive the window's opening"
    );
    ensure!(slurm.workers()?.get("slurm-worker-cpu-0") == born.get("slurm-worker-cpu-0"));
    slurm.wait_job(&job, "COMPLETED")?;
    eventually("the other worker replaced", || {
        let now = slurm.workers()?;
        ensure!(now.get("slurm-worker-cpu-0") != born.get("slurm-worker-cpu-0"));
        Ok(())
    })?;
    slurm.patch(
        SET,
        &json!({ "spec": { "updateStrategy": { "type": "RollingUpdate", "scheduledUpdate": null } } }),
    )?;
    slurm.wait_idle(2)?;
    let shown = slurm.controller(&["scontrol", "show", "reservation"])?;
    ensure!(!shown.contains("SlurmOperatorMaint"), "{shown}");
    let set = slurm.get(&[SET])?;
    ensure!(
        !set["metadata"]["finalizers"].to_string().contains("reservation"),
        "{}",
        set["metadata"]
    );
    Ok(())
}
