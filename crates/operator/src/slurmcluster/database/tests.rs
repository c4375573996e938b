use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::StatefulSet, batch::v1::CronJob, core::v1::Pod};
use keelson_api::{
    Accounting,
    well_known::{label, reason},
};
use keelson_runtime::optional_kind::Installed;
use pretty_assertions::assert_eq;
use rstest::rstest;
use serde_json::{Value, json};

use super::{Database, build, generated_passwords, has_left, last_dump, operated, password_secret};
use crate::{
    problem::Problem,
    slurmcluster::tests::{cluster, observed},
};

fn built(embedded: &Value) -> Database {
    let spec = json!({ "accounting": { "database": { "embedded": embedded } } });
    build(&observed(cluster(&spec))).unwrap().unwrap()
}

fn dump(embedded: &Value) -> Value {
    built(embedded).dump.unwrap().value
}

#[test]
fn a_dump_to_load_is_mounted_for_reading() {
    let set = built(&json!({ "restoreFrom": { "claim": "dumps", "file": "old/slurm.sql.gz" } })).stateful_set;
    let spec = &set.value["spec"]["template"]["spec"];
    insta::assert_json_snapshot!(json!({
        "env": spec["containers"][0]["env"],
        "volumeMounts": spec["containers"][0]["volumeMounts"],
        "volumes": spec["volumes"],
    }));
    let set = built(&json!({ "restoreFrom": { "claim": "dumps" } })).stateful_set;
    let env = set.value["spec"]["template"]["spec"]["containers"][0]["env"].to_string();
    assert!(env.contains("MARIADB_RESTORE_DIR") && !env.contains("MARIADB_RESTORE_FILE"));
}

#[test]
fn scheduled_dumps() {
    let simple = json!({ "dump": { "schedule": "15 3 * * *", "claim": "dumps" } });
    insta::assert_json_snapshot!(dump(&simple));
    assert!(built(&json!({})).dump.is_none());
}

#[test]
fn dumps_run_where_the_database_may_run_and_with_its_image() {
    let dump = dump(&json!({
        "mariadb": { "image": "own/mariadb:1", "resources": { "limits": { "memory": "64Gi" } } },
        "template": { "spec": {
            "nodeSelector": { "pool": "system" }, "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "sidecar", "image": "x" }],
        } },
        "dump": {
            "schedule": "@daily", "timeZone": "Europe/Vienna", "keep": 30, "claim": "dumps",
            "container": { "resources": { "limits": { "memory": "1Gi" } } },
            "template": { "metadata": { "labels": { "team": "hpc" } }, "spec": { "nodeSelector": { "pool": "backup" } } },
        },
    }));
    assert_eq!(dump["spec"]["timeZone"], "Europe/Vienna");
    let template = &dump["spec"]["jobTemplate"]["spec"]["template"];
    let spec = &template["spec"];
    assert_eq!(spec["containers"].as_array().unwrap().len(), 1);
    let container = &spec["containers"][0];
    assert_eq!(container["image"], "own/mariadb:1");
    assert_eq!(container["resources"], json!({ "limits": { "memory": "1Gi" } }));
    assert_eq!(container["args"], json!(["dump"]));
    let keep = json!({ "name": "MARIADB_DUMP_KEEP", "value": "30" });
    assert!(container["env"].as_array().unwrap().contains(&keep));
    assert_eq!(spec["nodeSelector"], json!({ "pool": "backup" }));
    assert_eq!(spec["tolerations"], json!([{ "operator": "Exists" }]));
    assert_eq!(template["metadata"]["labels"]["team"], "hpc");
    // The Service of the database must not select it.
    assert_eq!(
        template["metadata"]["labels"]["app.kubernetes.io/name"],
        "slurm-mariadb-dump"
    );
}

/// slurmdbd with this many pods of the latest template.
fn slurmdbd(updated: i32) -> StatefulSet {
    let status =
        json!({ "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": updated });
    serde_json::from_value(json!({ "metadata": { "generation": 1 }, "status": status })).unwrap()
}

#[rstest]
#[case::uses_this_one("slurm-mariadb", 1, ["True", "False"], Some(1), false)]
#[case::has_not_looked_yet("db.example.com", 0, ["True", "False"], Some(1), false)]
#[case::cannot_connect("db.example.com", 1, ["False", "False"], Some(1), false)]
#[case::is_being_replaced("db.example.com", 1, ["True", "True"], Some(1), false)]
#[case::is_about_to_be_replaced("db.example.com", 1, ["True", "False"], Some(0), false)]
#[case::has_changed_over("db.example.com", 1, ["True", "False"], Some(1), true)]
#[case::runs_elsewhere("db.example.com", 1, ["True", "False"], None, true)]
fn the_database_stays_until_slurmdbd_uses_another(
    #[case] host: &str,
    #[case] seen: i64,
    #[case] conditions: [&str; 2],
    #[case] updated: Option<i32>,
    #[case] expected: bool,
) {
    let [ready, progressing] = conditions;
    let condition = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": "x", "message": "", "observedGeneration": seen,
                "lastTransitionTime": minute(0) })
    };
    let accounting: Accounting = serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Accounting",
        "metadata": { "name": "slurm", "generation": 1 },
        "spec": { "storageConfig": { "host": host, "passwordKeyRef": { "name": "n", "key": "k" } } },
        "status": { "conditions": [condition("Ready", ready), condition("Progressing", progressing)] },
    }))
    .unwrap();
    let slurmdbd = updated.map(slurmdbd);
    assert_eq!(
        has_left("slurm-mariadb", &accounting, slurmdbd.as_ref()),
        expected
    );
}

fn operated_cluster(operated: &Value) -> Value {
    json!({ "accounting": { "database": { "mariadbOperator": operated } } })
}

#[rstest]
#[case::without_a_database(json!({}), &[])]
#[case::embedded(json!({ "accounting": {} }), &["slurm-mariadb/password"])]
#[case::operated(operated_cluster(&json!({})), &["slurm-mariadb/password", "slurm-database-root/password"])]
#[case::with_a_key_of_the_users_own(
    operated_cluster(&json!({ "spec": { "rootPasswordSecretKeyRef": { "key": "root" } } })),
    &["slurm-mariadb/password", "slurm-database-root/root"]
)]
#[case::with_secrets_of_the_users_own(
    operated_cluster(&json!({
        "passwordKeyRef": { "name": "own", "key": "k" },
        "spec": { "rootPasswordSecretKeyRef": { "name": "own" } },
    })),
    &[]
)]
fn passwords_are_generated_for_a_database_that_has_none(#[case] spec: Value, #[case] expected: &[&str]) {
    let generated = generated_passwords(&cluster(&spec));
    let generated: Vec<String> = generated
        .iter()
        .map(|reference| format!("{}/{}", reference.name, reference.key))
        .collect();
    assert_eq!(generated, expected);
}

#[test]
fn a_generated_password_outlives_the_cluster_and_mariadb_operator_notices_another() {
    let cluster = cluster(&operated_cluster(&json!({})));
    for reference in generated_passwords(&cluster) {
        let secret = password_secret(&cluster, &reference, [1; 32]).value;
        assert_eq!(secret["metadata"]["ownerReferences"], Value::Null);
        assert_eq!(secret["metadata"]["labels"][label::MARIADB_WATCH], "");
        assert!(secret["stringData"]["password"].is_string());
    }
}

#[rstest]
#[case::at_the_end("pw\n")]
#[case::inside("p\r\nw")]
fn mariadb_operator_gets_no_password_with_a_line_break(#[case] password: &str) {
    let mut observed = observed(cluster(&operated_cluster(&json!({}))));
    observed.mariadb_operator = Installed::Yes;
    assert!(operated::build(&observed).is_ok());
    let secret = json!({ "metadata": { "name": "slurm-mariadb" }, "data": {
        "password": k8s_openapi::ByteString(password.into()) } });
    observed.password = Some(Arc::new(serde_json::from_value(secret).unwrap()));
    let problem = operated::build(&observed).unwrap_err();
    assert_eq!(problem.reason, reason::INVALID_SPEC);
    assert_eq!(
        problem.message,
        "key \"password\" of Secret slurm-mariadb contains a line break, which mariadb-operator would take as a part of the \
         password: write the password without it"
    );
}

fn minute(minute: i64) -> String {
    Timestamp::from_second(minute * 60).unwrap().to_string()
}

/// A pod that was created in this minute.
fn pod(name: &str, created: i64, phase: &str, state: &Value) -> Arc<Pod> {
    let status = json!({ "name": "dump", "ready": false, "image": "", "imageID": "", "restartCount": 0, "state": state });
    let pod = json!({
        "metadata": { "name": name, "creationTimestamp": minute(created) },
        "status": { "phase": phase, "containerStatuses": [status] },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn failed(created: i64) -> Arc<Pod> {
    let message = "error: the database was not dumped: mariadb-dump: Got error: 1045\n";
    let state = json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": message } });
    pod("dump-x", created, "Failed", &state)
}

fn succeeded(created: i64) -> Arc<Pod> {
    pod(
        "dump-y",
        created,
        "Succeeded",
        &json!({ "terminated": { "exitCode": 0 } }),
    )
}

fn without_image(created: i64) -> Arc<Pod> {
    let state = json!({ "waiting": { "reason": "ErrImagePull", "message": "not found" } });
    pod("dump-z", created, "Pending", &state)
}

const WORDS: &str = "the last dump of the database failed in pod dump-x: error: the database was not dumped: mariadb-dump: \
    Got error: 1045";

#[rstest]
#[case::never_ran((None, None, false), &[], None)]
#[case::is_running((Some(1), None, true), &[], None)]
#[case::succeeded((Some(1), Some(2), false), &[succeeded(1)], None)]
#[case::succeeded_just_now((Some(1), None, false), &[succeeded(1)], None)]
#[case::failed((Some(1), None, false), &[failed(1)], Some(WORDS))]
#[case::failed_and_is_tried_again((Some(1), None, true), &[failed(1)], Some(WORDS))]
#[case::failed_after_one_that_succeeded((Some(3), Some(2), false), &[succeeded(1), failed(3)], Some(WORDS))]
#[case::succeeded_after_one_that_failed((Some(3), Some(4), false), &[failed(1), succeeded(3)], None)]
#[case::succeeded_at_another_attempt((Some(1), None, false), &[failed(1), succeeded(2)], None)]
#[case::is_running_after_one_that_failed((Some(3), None, true), &[failed(1)], Some(WORDS))]
#[case::succeeded_in_a_pod_that_is_gone((Some(3), Some(4), false), &[failed(1)], None)]
#[case::took_too_long((Some(3), Some(2), false), &[succeeded(1)], Some("the last dump of the database failed"))]
#[case::failed_long_ago((Some(1), None, false), &[], Some("the last dump of the database failed"))]
#[case::does_not_start(
    (Some(3), Some(2), true),
    &[succeeded(1), without_image(3)],
    Some("a dump of the database does not start: pod dump-z: container dump ErrImagePull: not found")
)]
fn a_failed_dump_is_told_until_one_succeeds(
    #[case] (scheduled, succeeded, active): (Option<i64>, Option<i64>, bool),
    #[case] pods: &[Arc<Pod>],
    #[case] expected: Option<&str>,
) {
    let active = if active {
        json!([{ "name": "dump-1" }])
    } else {
        Value::Null
    };
    let status = json!({ "active": active, "lastScheduleTime": scheduled.map(minute), "lastSuccessfulTime": succeeded.map(minute) });
    let cron_job: CronJob = serde_json::from_value(json!({ "metadata": {}, "status": status })).unwrap();
    let expected = expected.map(|message| Problem {
        reason: reason::DUMP_FAILED,
        message: message.to_owned(),
    });
    assert_eq!(
        last_dump::problem(&cron_job, pods, Timestamp::UNIX_EPOCH),
        expected
    );
}
