//! One cluster through its life: jobs, status, edits, neighbours, faults and deletion.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use e2e::slurm::{NODESET, Slurm, condition};
use e2e::{Namespace, audit, eventually};
use serde_json::json;

use crate::{
    CLUSTER, CONTROLLER, KINDS, change, orphans, start, ten_lines, wait_settled, with_accounting_and_login,
};

#[test]
fn one_object_is_a_whole_cluster() -> Result<()> {
    let cluster = with_accounting_and_login(ten_lines("slurm"));
    let slurm = start(Namespace::create("slc")?, &cluster)?;
    jobs_run_and_are_on_record(&slurm)?;
    the_status_says_it_on_one_line(&slurm)?;
    edits_of_children_are_put_back(&slurm)?;
    a_nodeset_of_the_users_own_belongs_to_it(&slurm)?;
    another_cluster_lives_beside_it(&slurm)?;
    nothing_is_written_at_rest(&slurm)?;
    a_new_password_loses_no_record(&slurm)?;
    each_fault_is_named(&slurm)?;
    orphans::go_on_and_are_adopted(&slurm)?;
    deletion_in_the_foreground_waits_for_jobs(&slurm)
}

fn jobs_run_and_are_on_record(slurm: &Slurm) -> Result<()> {
    eventually("slurmdbd to record the cluster", || {
        slurm.wait_condition(CONTROLLER, "AccountingRegistered", "True", "")
    })?;
    slurm.wait_idle(2)?;
    let hosts = slurm.login(&["srun", "--nodes=2", "hostname"])?;
    ensure!(hosts.contains("cpu-0") && hosts.contains("cpu-1"), "{hosts}");
    eventually("the job in sacct", || {
        let records = slurm.login(&["sacct", "--noheader", "--allocations", "--format=jobname,state"])?;
        ensure!(
            records.contains("hostname  COMPLETED") || records.contains("COMPLETED"),
            "{records}"
        );
        Ok(())
    })
}

fn the_status_says_it_on_one_line(slurm: &Slurm) -> Result<()> {
    let cluster = wait_settled(slurm)?;
    let status = &cluster["status"];
    ensure!(
        status["version"]
            .as_str()
            .is_some_and(|version| version.starts_with("26.05")),
        "{status}"
    );
    ensure!(
        status["nodes"]["desired"] == 2 && status["nodes"]["ready"] == 2,
        "{status}"
    );
    ensure!(
        status["partitions"][0]["name"] == "all" && status["partitions"][0]["desired"] == 2,
        "{status}"
    );
    let ends = status["endpoints"].to_string();
    ensure!(
        ends.contains("ssh-slurm-login-users") && ends.contains("slurm-restapi"),
        "{ends}"
    );
    let shown = slurm.space.kubectl(&["get", "slurmclusters", "--no-headers"])?;
    for word in ["slurm", "Ready", "26.05", "AsSpecified"] {
        ensure!(shown.contains(word), "no {word} in {shown}");
    }
    Ok(())
}

fn edits_of_children_are_put_back(slurm: &Slurm) -> Result<()> {
    slurm.patch(
        NODESET,
        &json!({ "spec": { "oversubscribeNode": false, "minReadySeconds": 1 } }),
    )?;
    eventually("the field of the SlurmCluster", || {
        let spec = slurm.get(&[NODESET])?["spec"].clone();
        ensure!(spec["oversubscribeNode"] == true, "{spec}");
        ensure!(
            spec["minReadySeconds"] == 1,
            "the user's own field is gone: {spec}"
        );
        Ok(())
    })?;
    eventually("the event", || {
        let events = slurm
            .get(&["events", "--field-selector=reason=EditReverted"])?
            .to_string();
        ensure!(
            events.contains("spec.oversubscribeNode") && events.contains("slurm-worker-cpu"),
            "{events}"
        );
        Ok(())
    })
}

fn a_nodeset_of_the_users_own_belongs_to_it(slurm: &Slurm) -> Result<()> {
    let mut own = slurm.get(&[NODESET])?;
    let spec = own["spec"].take();
    let mut own = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
        "metadata": { "name": "own" }, "spec": spec,
    });
    own["spec"]["replicas"] = json!(1);
    own["spec"]["template"]["spec"]["hostname"] = json!("own-");
    slurm.space.apply(&own.to_string())?;
    // A name that is in no set is refused before it reaches Slurm.
    let unknown = json!({ "partitions": { "some": { "nodeSets": ["nosuch"] } } });
    let Err(refused) = change(slurm, &unknown) else {
        bail!("a partition that names no workers was accepted");
    };
    let refused = format!("{refused:#}");
    ensure!(
        refused.contains("spec.partitions.some.nodeSets[0]") && refused.contains("nosuch"),
        "{refused}"
    );
    let partitions = json!({ "all": { "nodeSets": ["ALL"], "default": true },
                             "some": { "nodeSets": ["own"], "config": "MaxTime=30" } });
    change(slurm, &json!({ "partitions": partitions }))?;
    slurm.wait_idle(3)?;
    let cluster = wait_settled(slurm)?;
    ensure!(
        cluster["status"]["nodes"]["desired"] == 3,
        "{}",
        cluster["status"]
    );
    eventually("the partition", || {
        let shown = slurm.controller(&["scontrol", "--oneliner", "show", "partition", "some"])?;
        ensure!(
            shown.contains("own-0") && shown.contains("MaxTime=00:30:00"),
            "{shown}"
        );
        Ok(())
    })?;
    // The partition goes first: what it names may not vanish.
    change(slurm, &json!({ "partitions": null }))?;
    slurm
        .space
        .kubectl(&["delete", "nodeset.slinky.slurm.net/own", "--timeout=180s"])?;
    wait_settled(slurm).map(drop)
}

fn another_cluster_lives_beside_it(slurm: &Slurm) -> Result<()> {
    let mut other = ten_lines("other");
    other["spec"]["nodeSets"]["cpu"]["replicas"] = json!(1);
    slurm.space.apply(&other.to_string())?;
    slurm.wait_condition("slurmcluster.keelson.dev/other", "Ready", "True", "")?;
    eventually("a job in the other cluster", || {
        slurm.space.exec_in(
            "other-controller-0",
            "slurmctld",
            &["srun", "--immediate=20", "hostname"],
        )
    })?;
    let taken = ten_lines("slurm-login-users");
    let refused = slurm.space.apply(&taken.to_string());
    // Its Controller's Services have other names: it would be a cluster of its own.
    ensure!(refused.is_ok(), "{refused:?}");
    slurm.space.kubectl(&[
        "delete",
        "slurmclusters",
        "slurm-login-users",
        "other",
        "--timeout=300s",
    ])?;
    Ok(())
}

fn nothing_is_written_at_rest(slurm: &Slurm) -> Result<()> {
    wait_settled(slurm)?;
    eventually("ten seconds without a write", || {
        let mark = audit::mark()?;
        std::thread::sleep(Duration::from_secs(10));
        let writes: Vec<String> = audit::since(mark)?
            .into_iter()
            .filter(|call| {
                call.user == audit::OPERATOR && call.is_write() && call.namespace == slurm.space.name
            })
            .map(|call| format!("{} {} {}", call.verb, call.resource, call.name))
            .collect();
        ensure!(writes.is_empty(), "{writes:?}");
        Ok(())
    })
}

fn a_new_password_loses_no_record(slurm: &Slurm) -> Result<()> {
    let long = slurm.hold("cpu-0", 60)?;
    let pods = "app.kubernetes.io/name=slurm-mariadb";
    let before = slurm.pods(pods)?;
    slurm.set_secret("slurm-mariadb", "password", "another-password")?;
    let during = slurm.sbatch(&["--nodelist=cpu-1"], "true")?;
    slurm.wait_job(&during, "COMPLETED")?;
    eventually("a database with the new password", || {
        ensure!(slurm.pods(pods)? != before, "it was not restarted");
        Ok(())
    })?;
    slurm.open("cpu-0")?;
    slurm.wait_job(&long, "COMPLETED")?;
    eventually("both jobs in sacct", || {
        for job in [&long, &during] {
            let words = [
                "sacct",
                "--noheader",
                "--allocations",
                "--format=state",
                "--jobs",
                job,
            ];
            let state = slurm.login(&words)?;
            ensure!(state.trim() == "COMPLETED", "job {job} is {state}");
        }
        Ok(())
    })?;
    wait_settled(slurm).map(drop)
}

/// Breaks one component after another, in the order in which they need each other.
fn each_fault_is_named(slurm: &Slurm) -> Result<()> {
    let image = json!({ "image": "localhost/keelson/nosuch:1", "imagePullPolicy": "Never" });
    for (spec, component) in [
        (
            json!({ "login": { "users": { "login": image } } }),
            "LoginSet slurm-login-users",
        ),
        (
            json!({ "nodeSets": { "cpu": { "replicas": 3, "slurmd": image } } }),
            "NodeSet slurm-worker-cpu",
        ),
        (json!({ "restApi": { "slurmrestd": image } }), "RestApi slurm"),
        (
            json!({ "controller": { "extraConf": "SlurmctldParameters=nosuch\nPartitionName=bad Nodes=nosuch" } }),
            "Controller slurm",
        ),
        (json!({ "accounting": { "slurmdbd": image } }), "Accounting slurm"),
        (
            json!({ "accounting": { "database": { "embedded": { "mariadb": image } } } }),
            "StatefulSet slurm-mariadb",
        ),
    ] {
        let good = slurm.get(&[CLUSTER])?["spec"].clone();
        change(slurm, &spec)?;
        let told = eventually(&format!("{component} in the status"), || {
            let cluster = slurm.get(&[CLUSTER])?;
            let says = condition(&cluster, "Degraded")?;
            let message = says["message"].as_str().unwrap_or_default();
            ensure!(
                says["status"] == "True" && message.starts_with(component),
                "{says}"
            );
            Ok(message.to_owned())
        })?;
        ensure!(told.contains("kubectl describe"), "{told}");
        // As a whole: a merge would keep what the fault added.
        let whole = json!([{ "op": "replace", "path": "/spec", "value": good }]).to_string();
        slurm
            .space
            .kubectl(&["patch", CLUSTER, "--type=json", "--patch", &whole])?;
    }
    wait_settled(slurm).map(drop)
}

fn deletion_in_the_foreground_waits_for_jobs(slurm: &Slurm) -> Result<()> {
    // Slurm ends the job if its srun ends, and so if the login pod does.
    // What stays behind must not keep the connection's output open.
    let script = "(srun --nodelist=cpu-1 --time=60 --job-name=from-a-login-pod \
        sh -c 'until [ -e /tmp/open ]; do sleep 1; done'; echo $? >/tmp/srun-ended) </dev/null >/dev/null 2>&1 &";
    slurm.login(&["sh", "-c", script])?;
    let job = eventually("the job of an srun", || {
        let jobs = slurm.controller(&["squeue", "--noheader", "--name=from-a-login-pod", "--format=%A"])?;
        let job = jobs.trim().to_owned();
        ensure!(!job.is_empty(), "no such job");
        Ok(job)
    })?;
    slurm.wait_job(&job, "RUNNING")?;
    let uid = slurm.worker("cpu-1")?;
    slurm
        .space
        .kubectl(&["delete", CLUSTER, "--cascade=foreground", "--wait=false"])?;
    slurm.wait_drain("cpu-1")?;
    slurm.stays_at_work("cpu-1", &uid, &job)?;
    let told = slurm.wait_condition(CLUSTER, "Terminating", "True", "InUse")?;
    ensure!(told.contains("NodeSet slurm-worker-cpu"), "{told}");
    let told = slurm.wait_condition("loginset/slurm-login-users", "Terminating", "True", "InUse")?;
    ensure!(told.contains("NodeSet slurm-worker-cpu"), "{told}");
    slurm.login(&["test", "!", "-e", "/tmp/srun-ended"])?;
    // Jobs that end now are on record too.
    slurm.get(&["statefulset", "slurm-mariadb"])?;
    slurm.open("cpu-1")?;
    eventually("the end of everything but the data", || {
        slurm
            .space
            .has_no(&format!("{KINDS},pods,statefulsets,deployments,services"))?;
        slurm.get(&["pvc", "data-slurm-mariadb-0"])?;
        slurm.get(&["secret", "slurm-mariadb"]).map(drop)
    })
}
