//! Databases that are made for a cluster: dumps of the operator's own, and mariadb-operator's.

use anyhow::{Result, ensure};
use e2e::slurm::Slurm;
use e2e::{Namespace, eventually};
use serde_json::{Value, json};

use crate::{CLUSTER, CONTROLLER, change, start, ten_lines};

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
    // mariadb-operator would delete what belongs to the MariaDB, but not its volume.
    let root = slurm.get(&["secret", "slurm-database-root"])?["metadata"].clone();
    ensure!(
        root["ownerReferences"].is_null() && spec["rootPasswordSecretKeyRef"]["name"] == root["name"],
        "{root} and {spec}"
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
