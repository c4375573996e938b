//! Tests revisions of workers: rollback, changed node parameters, adoption of Slinky's workers, and maintenance
//! windows.
#![allow(clippy::indexing_slicing, reason = "a JSON value that is not there is null")]

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use e2e::eventually;
use e2e::slurm::{NODESET, Slurm, condition};
use e2e::workers::sampled;
use serde_json::{Value, json};

/// Sets an annotation in the pod template, which creates a revision. `null` removes it.
fn note(slurm: &Slurm, value: &Value) -> Result<()> {
    let metadata = json!({ "annotations": { "note": value } });
    slurm.patch(
        NODESET,
        &json!({ "spec": { "template": { "metadata": metadata } } }),
    )
}

/// Returns the revision numbers by hash.
fn history(slurm: &Slurm) -> Result<BTreeMap<String, i64>> {
    let revisions = slurm.get(&["controllerrevisions", "--selector=app.kubernetes.io/name=slurmd"])?;
    let items = revisions["items"].as_array().into_iter().flatten();
    Ok(items
        .filter_map(|revision| {
            let hash = revision["metadata"]["labels"]["controller.kubernetes.io/hash"].as_str()?;
            Some((hash.to_owned(), revision["revision"].as_i64()?))
        })
        .collect())
}

#[test]
fn a_rollback_restarts_only_what_was_updated() -> Result<()> {
    let values = "
nodesets:
  cpu:
    replicas: 3
    revisionHistoryLimit: 1
    updateStrategy: { type: RollingUpdate, rollingUpdate: { maxUnavailable: 1 } }
";
    let slurm = Slurm::install_ready("revisions", values, 3)?;
    let hash = |status: &Value| status["nodeSetHash"].as_str().unwrap_or_default().to_owned();
    let first = hash(&slurm.settled()?);
    let labels = json!({ "helm.sh/chart": "slurm-9" });
    slurm.patch(
        NODESET,
        &json!({ "spec": { "template": { "metadata": { "labels": labels } } } }),
    )?;
    ensure!(
        hash(&slurm.settled()?) == first,
        "a label for people made a revision"
    );

    let born = slurm.workers()?;
    let job = slurm.hold("cpu-0", 60)?;
    let (second, seen) = sampled(
        || slurm.workers(),
        || {
            note(&slurm, &json!("new"))?;
            // Idle workers are replaced first. The busy one is drained and waits for its job.
            let reason = slurm.wait_drain("cpu-0")?;
            ensure!(reason.contains("for an update"), "{reason}");
            slurm.wait_idle(2)?;
            let second = hash(&slurm.get(&[NODESET])?["status"]);
            ensure!(second != first, "the update made no revision");
            ensure!(history(&slurm)? == BTreeMap::from([(first.clone(), 1), (second.clone(), 2)]));

            note(&slurm, &Value::Null)?;
            eventually("cpu-0 back in service", || {
                let state = slurm.node_field("cpu-0", "State")?;
                ensure!(!state.contains("DRAIN"), "cpu-0 is {state}");
                Ok(())
            })?;
            let back = slurm.settled()?;
            ensure!(
                hash(&back) == first && back["updatedReplicas"] == 3,
                "of {first} came {back}"
            );
            slurm.wait_idle(2)?;
            Ok(second)
        },
    )?;
    ensure!(
        slurm.job_state(&job)? == "RUNNING",
        "the job did not last through the rollback"
    );
    // The other two were each replaced twice: by the update and by the rollback.
    let mut pods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, uid) in seen.into_iter().flatten() {
        pods.entry(name).or_default().insert(uid);
    }
    let counts: Vec<usize> = pods.values().map(BTreeSet::len).collect();
    ensure!(counts == [1, 3, 3], "{pods:?}, at first {born:?}");
    // The first revision is the newest again. The second is kept, because it is within the history limit.
    let now = history(&slurm)?;
    ensure!(now == BTreeMap::from([(first, 3), (second, 2)]), "{now:?}");
    slurm.open("cpu-0")?;
    slurm.wait_job(&job, "COMPLETED")
}

#[test]
fn changed_node_parameters_reach_the_nodes() -> Result<()> {
    let values = |conf: &str| {
        format!(
            "
nodesets:
  cpu:
    replicas: 2
    extraConf: {conf}
    slurmd: {{ env: [{{ name: REGISTRATION_CHECK_SECONDS, value: '5' }}] }}
    updateStrategy: {{ rollingUpdate: {{ maxUnavailable: 2 }} }}
"
        )
    };
    let slurm = Slurm::install_ready("reshape", &values("Weight=3"), 2)?;
    ensure!(slurm.node_field("cpu-1", "Weight")? == "3");
    // The update keeps the record of a node that an administrator drained or that a pending job requires.
    slurm.controller(&[
        "scontrol",
        "update",
        "nodename=cpu-1",
        "state=drain",
        "reason=fan",
    ])?;
    let job = slurm.sbatch(&["--nodelist=cpu-1"], "true")?;
    let drained = slurm.worker("cpu-1")?;
    let pod = slurm.worker("cpu-0")?;
    slurm.upgrade(&values("Weight=7"))?;
    eventually("workers of the new revision", || {
        ensure!(slurm.worker("cpu-0")? != pod && slurm.worker("cpu-1")? != drained);
        ensure!(slurm.node_field("cpu-0", "Weight")? == "7");
        Ok(())
    })?;
    eventually("a word on what Slurm has not taken in", || {
        let set = slurm.get(&[NODESET])?;
        let told = condition(&set, "Progressing")?;
        let message = told["message"].as_str().unwrap_or_default();
        ensure!(message.contains("1 node, such as cpu-1"), "{told}");
        let noted = set["status"]["outdatedNodes"].as_object();
        ensure!(noted.is_some_and(|noted| noted.keys().eq(["cpu-1"])), "{noted:?}");
        Ok(())
    })?;
    ensure!(slurm.node_reason("cpu-1")?.starts_with("fan"));
    ensure!(slurm.node_field("cpu-1", "Weight")? == "3");
    eventually("an event that tells why", || {
        let events = slurm.get(&["events", "--field-selector=reason=NodeNotRenewed"])?;
        let events = events.to_string();
        ensure!(
            events.contains("drained by someone else (fan")
                && events.contains("scontrol delete nodename=cpu-1"),
            "{events}"
        );
        Ok(())
    })?;
    slurm.controller(&["scontrol", "update", "nodename=cpu-1", "state=resume"])?;
    slurm.wait_job(&job, "COMPLETED")?;
    // When nothing blocks it any more, the operator recreates the record.
    eventually("the weight of before to be over", || {
        let weight = slurm.node_field("cpu-1", "Weight")?;
        ensure!(weight == "7", "{weight}");
        Ok(())
    })?;
    let status = slurm.settled()?;
    ensure!(status.get("outdatedNodes").is_none(), "{status}");
    slurm.wait_idle(2)?;
    // The next update reaches both.
    slurm.upgrade(&values("Weight=9"))?;
    eventually("the new weight", || {
        for node in ["cpu-0", "cpu-1"] {
            let weight = slurm.node_field(node, "Weight")?;
            ensure!(weight == "9", "{node} has {weight}");
        }
        Ok(())
    })?;
    slurm.settled()?;
    slurm.wait_idle(2)?;

    // A node that slurmctld does not know registers again automatically.
    let pod = slurm.worker("cpu-0")?;
    slurm.controller(&["scontrol", "delete", "nodename=cpu-0"])?;
    eventually("cpu-0 to be known again", || {
        slurm.node_field("cpu-0", "Weight").map(drop)
    })?;
    slurm.wait_idle(2)?;
    ensure!(slurm.worker("cpu-0")? == pod, "the worker was replaced");
    Ok(())
}

/// Returns a revision as Slinky stores it, with patch directives and explicit zero values.
fn revision_of_the_former(set: &Value, hash: &str) -> Value {
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
fn orphaned_workers_of_the_former_operator_are_taken_over_as_they_are() -> Result<()> {
    let slurm = Slurm::install_ready("adopt", "nodesets: { cpu: { replicas: 2 } }", 2)?;
    let job = slurm.hold("cpu-0", 60)?;
    let before = slurm.pods("app.kubernetes.io/name=slurmd")?;
    // While the NodeSet is paused, change the workers to what Slinky would have left: its hash, only its labels, and no
    // owner, as after the NodeSet was deleted with `--cascade=orphan`. One worker also lacks a label that newer
    // releases set.
    let pause = |value: Value| slurm.patch(NODESET, &json!({ "spec": { "paused": value } }));
    pause(json!(true))?;
    slurm.wait_condition(NODESET, "Progressing", "False", "Paused")?;
    let set = slurm.get(&[NODESET])?;
    slurm
        .space
        .apply(&revision_of_the_former(&set, "5d8f7b9c4").to_string())?;
    for name in before.keys() {
        let mut labels = json!({
            "controller.kubernetes.io/hash": "5d8f7b9c4",
            "nodeset.slinky.slurm.net/pod-protect": null,
        });
        if name.ends_with("-1") {
            labels["nodeset.slinky.slurm.net/scaling-mode"] = Value::Null;
        }
        slurm.patch(
            &format!("pod/{name}"),
            &json!({ "metadata": { "labels": labels, "ownerReferences": null } }),
        )?;
    }
    pause(Value::Null)?;

    let status = slurm.settled()?;
    ensure!(status["updatedReplicas"] == 2, "{status}");
    for name in before.keys() {
        eventually("an owner and protection", || {
            let metadata = &slurm.get(&["pod", name])?["metadata"];
            ensure!(
                metadata["ownerReferences"][0]["uid"] == set["metadata"]["uid"],
                "{name} has no owner"
            );
            ensure!(
                metadata["labels"]["nodeset.slinky.slurm.net/pod-protect"] == "true",
                "{name} is not protected"
            );
            Ok(())
        })?;
    }
    ensure!(slurm.job_state(&job)? == "RUNNING", "the job did not last");
    slurm.open("cpu-0")?;
    slurm.wait_job(&job, "COMPLETED")?;
    slurm.wait_idle(2)?;
    ensure!(
        slurm.pods("app.kubernetes.io/name=slurmd")? == before,
        "a worker was restarted"
    );
    Ok(())
}

fn in_seconds(seconds: u32) -> Result<String> {
    let then = format!("--date=+{seconds} seconds");
    let text = e2e::run(std::process::Command::new("date").args(["--utc", &then, "+%Y-%m-%dT%H:%M:%SZ"]))?;
    Ok(text.trim().to_owned())
}

#[test]
fn a_scheduled_update_happens_in_its_window() -> Result<()> {
    const RESERVATION: &str = "SlurmOperatorMaint-slurm-worker-cpu";
    let slurm = Slurm::install_ready("window", "nodesets: { cpu: { replicas: 2 } }", 2)?;
    let born = slurm.workers()?;
    let uid = |name: &str| -> Result<Option<String>> { Ok(slurm.workers()?.remove(name)) };
    let job = slurm.hold("cpu-0", 60)?;
    let strategy = json!({ "type": "ScheduledUpdate",
        "scheduledUpdate": { "startTime": in_seconds(60)?, "duration": "30m" } });
    let template = json!({ "metadata": { "annotations": { "note": "new" } } });
    slurm.patch(
        NODESET,
        &json!({ "spec": { "updateStrategy": strategy, "template": template } }),
    )?;
    slurm.wait_condition(NODESET, "ReservationCreated", "True", "Created")?;
    let mut before = 0;
    eventually("the opening of the window", || {
        let workers = slurm.workers()?;
        let shown = slurm.controller(&["scontrol", "--oneliner", "show", "reservation", RESERVATION])?;
        ensure!(
            shown.contains("cpu-[0-1]") && shown.contains("MAINT"),
            "it is {shown}"
        );
        let open = shown.contains("State=ACTIVE");
        // The window was not open when the workers were read.
        if !open {
            before += 1;
            assert_eq!(workers, born, "a worker was replaced before its time");
        }
        ensure!(open, "{shown}");
        Ok(())
    })?;
    ensure!(before > 0, "the window was open before anybody looked");

    eventually("the idle worker replaced", || {
        ensure!(uid("slurm-worker-cpu-1")?.is_some_and(|uid| Some(&uid) != born.get("slurm-worker-cpu-1")));
        Ok(())
    })?;
    // The drain waits for the job, although the reservation already blocks other jobs.
    slurm.wait_drain("cpu-0")?;
    slurm.stays_at_work("cpu-0", &born["slurm-worker-cpu-0"], &job)?;
    slurm.open("cpu-0")?;
    slurm.wait_job(&job, "COMPLETED")?;
    eventually("the other worker replaced", || {
        ensure!(uid("slurm-worker-cpu-0")?.is_some_and(|uid| Some(&uid) != born.get("slurm-worker-cpu-0")));
        Ok(())
    })?;
    let status = slurm.settled()?;
    ensure!(status["updatedReplicas"] == 2, "{status}");

    // Changing the strategy removes the window.
    slurm.patch(
        NODESET,
        &json!({ "spec": { "updateStrategy": { "type": "RollingUpdate", "scheduledUpdate": null } } }),
    )?;
    slurm.wait_idle(2)?;
    eventually("no reservation", || {
        let shown = slurm.controller(&["scontrol", "show", "reservation"])?;
        ensure!(!shown.contains(RESERVATION), "{shown}");
        let set = slurm.get(&[NODESET])?;
        let finalizers = &set["metadata"]["finalizers"];
        ensure!(!finalizers.to_string().contains("reservation"), "{finalizers}");
        ensure!(
            condition(&set, "ReservationCreated").is_err(),
            "the NodeSet still speaks of it"
        );
        Ok(())
    })
}

#[test]
fn a_window_that_slurm_refuses_is_told_of_again_and_again() -> Result<()> {
    let slurm = Slurm::install_ready("no-window", "nodesets: { cpu: { replicas: 1 } }", 1)?;
    let strategy = |flags: &[&str]| -> Result<()> {
        let update = json!({ "startTime": in_seconds(3_600)?, "duration": "30m", "flags": flags });
        let strategy = json!({ "type": "ScheduledUpdate", "scheduledUpdate": update });
        slurm.patch(NODESET, &json!({ "spec": { "updateStrategy": strategy } }))
    };
    strategy(&["BOGUS"])?;
    let told = slurm.wait_condition(NODESET, "ReservationCreated", "Unknown", "ReservationFailed")?;
    ensure!(
        told.contains("updateStrategy.scheduledUpdate") && told.contains("will retry"),
        "{told}"
    );
    // Repeated failures are counted in one event per operator process. There may be several, because another test may
    // kill the operator.
    let counted = eventually("a count of the attempts", || {
        let events = slurm.get(&["events", "--field-selector=reason=ReservationFailed"])?;
        let events = events["items"].as_array().cloned().unwrap_or_default();
        let told: BTreeSet<_> = events
            .iter()
            .map(|event| format!("{} {}", event["reportingInstance"], event["message"]))
            .collect();
        ensure!(told.len() == events.len(), "the same was told twice: {told:?}");
        let counted = |event: &&Value| event["series"]["count"].as_u64().unwrap_or(1) >= 3;
        let event = events.iter().find(counted).context("nothing was told thrice")?;
        let message = event["message"].as_str().unwrap_or_default();
        ensure!(message.contains("SlurmOperatorMaint-slurm-worker-cpu"), "{event}");
        ensure!(
            event["series"]["lastObservedTime"].as_str() > event["eventTime"].as_str(),
            "{event}"
        );
        Ok(event["series"]["count"].clone())
    })?;
    let shown = slurm.space.kubectl(&["describe", NODESET])?;
    let mut lines = shown.lines().filter(|line| line.contains("ReservationFailed  "));
    ensure!(
        lines.any(|line| line.contains("(x")),
        "counted {counted}, but {shown}"
    );

    strategy(&[])?;
    slurm.wait_condition(NODESET, "ReservationCreated", "True", "Created")?;
    Ok(())
}
