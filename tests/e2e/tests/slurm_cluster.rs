//! Tests SlurmClusters: one object for a whole cluster.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing entry fails the test, as it should"
)]

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use e2e::slurm::{NODESET, Slurm, condition};
use e2e::{Namespace, audit, cluster, eventually, run};
use serde_json::{Value, json};

const CLUSTER: &str = "slurmcluster.keelson.dev/slurm";
const CONTROLLER: &str = "controllers.slinky.slurm.net/slurm";
const KINDS: &str = "slurmclusters,controllers.slinky.slurm.net,nodesets,loginsets,restapis,accountings";

/// The example of the tutorial, with smaller requests.
fn ten_lines(name: &str) -> Value {
    let small =
        |cpu: &str, memory: &str| json!({ "resources": { "requests": { "cpu": cpu, "memory": memory } } });
    json!({
        "apiVersion": "keelson.dev/v1alpha1",
        "kind": "SlurmCluster",
        "metadata": { "name": name },
        "spec": {
            "confineJobs": false,
            "controller": { "slurmctld": small("50m", "64Mi") },
            "restApi": { "slurmrestd": small("50m", "32Mi") },
            "nodeSets": { "cpu": { "replicas": 2, "oversubscribeNode": true, "slurmd": small("20m", "64Mi") } },
        },
    })
}

fn with_accounting_and_login(mut cluster: Value) -> Value {
    cluster["spec"]["accounting"] = json!({ "database": { "embedded": { "storage": "1Gi" } } });
    cluster["spec"]["login"] = json!({ "users": { "service": { "spec": { "type": "ClusterIP" } } } });
    cluster
}

/// Applies a SlurmCluster and waits until it is ready.
fn start(space: Namespace, cluster: &Value) -> Result<Slurm> {
    space.apply(&cluster.to_string())?;
    let slurm = Slurm::installed(space);
    slurm.wait_condition(CLUSTER, "Ready", "True", "")?;
    Ok(slurm)
}

fn change(slurm: &Slurm, spec: &Value) -> Result<()> {
    slurm.patch(CLUSTER, &json!({ "spec": spec }))
}

/// Waits until the SlurmCluster is as specified and no component changes.
fn wait_settled(slurm: &Slurm) -> Result<Value> {
    eventually("a settled SlurmCluster", || {
        let cluster = slurm.get(&[CLUSTER])?;
        let status = &cluster["status"];
        ensure!(
            status["phase"] == "Ready" && status["observedGeneration"] == cluster["metadata"]["generation"],
            "its status is {status}"
        );
        ensure!(
            condition(&cluster, "Degraded")?["status"] == "False",
            "its status is {status}"
        );
        Ok(cluster)
    })
}

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
    let script = "(srun --nodelist=cpu-1 --time=60 --job-name=from-a-login-pod \
        sh -c 'until [ -e /tmp/open ]; do sleep 1; done' >/dev/null 2>&1; echo $? >/tmp/srun-ended) &";
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

/// Creates the claim for the dumps of a database.
const DUMPS: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: dumps }
spec: { accessModes: [ReadWriteMany], resources: { requests: { storage: 1Gi } } }
";

#[test]
fn a_dump_comes_back_in_another_cluster() -> Result<()> {
    let space = Namespace::create("slc-dump")?;
    space.apply(DUMPS)?;
    let mut cluster = ten_lines("slurm");
    cluster["spec"]["nodeSets"]["cpu"]["replicas"] = json!(1);
    let dump = json!({ "schedule": "0 0 1 1 *", "keep": 2, "claim": "dumps" });
    cluster["spec"]["accounting"] = json!({ "database": { "embedded": { "storage": "1Gi", "dump": dump } } });
    let slurm = start(space, &cluster)?;
    slurm.wait_condition(CONTROLLER, "AccountingRegistered", "True", "")?;
    slurm.wait_idle(1)?;
    let job = slurm.sbatch(&["--job-name=before-the-dump"], "true")?;
    slurm.wait_job(&job, "COMPLETED")?;
    let records = |pod: &str| {
        let words = [
            "sacct",
            "--allclusters",
            "--noheader",
            "--allocations",
            "--format=jobname%30,state",
        ];
        slurm.space.exec_in(pod, "slurmctld", &words)
    };
    let recorded = |records: &str| {
        records
            .lines()
            .any(|line| line.split_whitespace().eq(["before-the-dump", "COMPLETED"]))
    };
    eventually("the record", || {
        let found = records("slurm-controller-0")?;
        ensure!(recorded(&found), "{found}");
        Ok(())
    })?;
    slurm
        .space
        .kubectl(&["create", "job", "dump-now", "--from=cronjob/slurm-mariadb-dump"])?;
    slurm.space.kubectl(&[
        "wait",
        "job/dump-now",
        "--for=condition=Complete",
        "--timeout=180s",
    ])?;

    let database = json!({ "embedded": { "dump": null } });
    change(&slurm, &json!({ "accounting": { "database": database } }))?;
    eventually("the end of the schedule", || slurm.space.has_no("cronjobs"))?;

    let mut second = ten_lines("second");
    second["spec"]["nodeSets"] = json!({});
    let restore = json!({ "storage": "1Gi", "restoreFrom": { "claim": "dumps" } });
    second["spec"]["accounting"] = json!({ "database": { "embedded": restore } });
    slurm.space.apply(&second.to_string())?;
    slurm.wait_condition("slurmcluster.keelson.dev/second", "Ready", "True", "")?;
    eventually("the record in the second cluster", || {
        let found = records("second-controller-0")?;
        ensure!(recorded(&found), "{found}");
        Ok(())
    })
}

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
        slurm.get(&["pvc", "statesave-slurm-controller-0"]).map(drop)
    })
}

/// The CRD of mariadb-operator, made by hand: only what the API server needs to accept our object. Nothing serves it.
const MARIADB_CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: mariadbs.k8s.mariadb.com }
spec:
  group: k8s.mariadb.com
  scope: Namespaced
  names: { kind: MariaDB, plural: mariadbs, singular: mariadb, listKind: MariaDBList }
  versions:
    - name: v1alpha1
      served: true
      storage: true
      subresources: { status: {} }
      schema: { openAPIV3Schema: { type: object, x-kubernetes-preserve-unknown-fields: true } }
";

#[test]
fn mariadb_operator_is_used_once_its_crd_is_there() -> Result<()> {
    let space = Namespace::create("slc-operated")?;
    let mut cluster = ten_lines("slurm");
    cluster["spec"]["nodeSets"] = json!({});
    let operated = json!({ "storage": "1Gi", "spec": { "replicas": 2 } });
    cluster["spec"]["accounting"] = json!({ "database": { "mariadbOperator": operated } });
    space.apply(&cluster.to_string())?;
    let slurm = Slurm::installed(space);
    slurm.wait_told(
        CLUSTER,
        ["Degraded", "True", "ReferenceMissing"],
        &["install mariadb-operator"],
    )?;
    slurm.space.apply(MARIADB_CRD)?;
    let shown = || {
        let shown = slurm.space.kubectl(&[
            "get",
            "mariadbs.k8s.mariadb.com",
            "slurm-database",
            "--output=json",
        ])?;
        Ok(serde_json::from_str::<Value>(&shown)?["spec"].clone())
    };
    let spec = eventually("the MariaDB object", shown)?;
    ensure!(
        spec["replicas"] == 2 && spec["storage"]["size"] == "1Gi" && spec["username"] == "slurm",
        "{spec}"
    );
    let storage = slurm.get(&["accounting", "slurm"])?["spec"]["storageConfig"].clone();
    ensure!(
        storage["host"] == "slurm-database" && storage["passwordKeyRef"] == spec["passwordSecretKeyRef"],
        "{storage} and {spec}"
    );
    // slurmdbd moves to a database that works, and the object goes when it has left.
    let embedded = json!({ "embedded": { "storage": "1Gi" }, "mariadbOperator": null });
    change(&slurm, &json!({ "accounting": { "database": embedded } }))?;
    eventually("the end of the MariaDB object", || {
        let left = slurm
            .space
            .kubectl(&["get", "mariadbs.k8s.mariadb.com", "--output=name"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
}
