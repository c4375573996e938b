//! Tests from the Accounting that a user writes to the objects and the status, without a cluster.
#![allow(
    clippy::needless_pass_by_value,
    reason = "json! literals read better unborrowed"
)]

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Pod, Secret},
    },
};
use keelson_api::{Accounting, well_known::reason};
use rstest::rstest;
use serde_json::{Value, json};

use crate::{children::checksum, problem::Problem, teardown::Teardown};

use super::{
    build::Children,
    daemon::{self, Daemon},
    decide,
    observe::{Live, Observed},
    status::{self, Outcome},
};

fn secret(key: &str, value: &str) -> Arc<Secret> {
    let value = ByteString(value.as_bytes().to_vec());
    Arc::new(Secret {
        data: Some(BTreeMap::from([(key.to_owned(), value)])),
        ..Secret::default()
    })
}

fn fill(into: &mut Value, with: Value) {
    let Value::Object(fields) = with else {
        panic!("{with} has no fields");
    };
    for (key, value) in fields {
        into[key] = value;
    }
}

fn accounting(spec: Value) -> Accounting {
    let mut object = json!({
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": "Accounting",
        "metadata": { "name": "slurm", "namespace": "slurm", "uid": "uid-accounting", "generation": 3 },
        "spec": {
            "slurmKeyRef": { "name": "auth-slurm", "key": "slurm.key" },
            "jwtKeyRef": { "name": "auth-jwt", "key": "jwt.key" },
            "slurmdbd": { "image": "slurmdbd:1" },
            "storageConfig": {
                "host": "mariadb", "username": "slurm", "passwordKeyRef": { "name": "db", "key": "password" },
            },
        },
    });
    fill(&mut object["spec"], spec);
    serde_json::from_value(object).unwrap()
}

fn observed(spec: Value) -> Observed {
    Observed {
        accounting: Arc::new(accounting(spec)),
        slurm_key_in_use: None,
        slurm_key: Some(secret("slurm.key", "secret")),
        hash_key: Some(crate::fingerprints::HashKey::for_tests()),
        jwt_key: Some(secret("jwt.key", "secret")),
        password: Some(secret("password", "hush")),
        database_ca: None,
        database_client: None,
        jwks: None,
        live: Live::default(),
        log: None,
    }
}

fn children(observed: &Observed) -> Children {
    decide(observed).unwrap().unwrap()
}

fn slurmdbd_conf(children: &Children) -> String {
    let secret: Secret = serde_json::from_value(children.config.value.clone()).unwrap();
    let data = secret.data.unwrap().remove("slurmdbd.conf").unwrap();
    String::from_utf8(data.0).unwrap()
}

fn pod_annotations(children: &Children) -> Value {
    let template = children
        .stateful_set
        .value
        .pointer("/spec/template/metadata/annotations");
    template.unwrap().clone()
}

#[test]
fn a_plain_accounting() {
    let children = children(&observed(json!({})));
    insta::assert_yaml_snapshot!("service", children.service.value);
    insta::assert_yaml_snapshot!("stateful-set", children.stateful_set.value);
    insta::assert_snapshot!("slurmdbd-conf", slurmdbd_conf(&children));
    assert_eq!(
        children.config.value.pointer("/metadata/name"),
        Some(&json!("slurm-accounting"))
    );
}

#[test]
fn with_everything_that_a_user_may_change() {
    let mut observed = observed(json!({
        "jwksKeyRef": { "name": "jwks", "key": "keys.json" },
        "template": {
            "metadata": { "labels": { "team": "hpc" }, "annotations": { "note": "x" } },
            "spec": { "tolerations": [{ "operator": "Exists" }] },
        },
        "slurmdbd": { "image": "slurmdbd:1", "args": ["-v"], "resources": { "limits": { "cpu": "1" } } },
        "service": { "port": 7000, "metadata": { "labels": { "public": "no" } } },
        "storageConfig": {
            "host": "db.example.com", "port": 3307, "database": "acct", "username": "dbuser",
            "passwordKeyRef": { "name": "db", "key": "password" },
        },
        "extraConf": "DebugLevel=debug\nDbdPort=7000\nAuthInfo=disable_sack",
    }));
    observed.jwks = Some(Arc::new(ConfigMap {
        data: Some(BTreeMap::from([("keys.json".to_owned(), "{}".to_owned())])),
        ..ConfigMap::default()
    }));
    let children = children(&observed);
    insta::assert_yaml_snapshot!("full-service", children.service.value);
    insta::assert_yaml_snapshot!("full-stateful-set", children.stateful_set.value);
    insta::assert_snapshot!("full-slurmdbd-conf", slurmdbd_conf(&children));
    insta::assert_yaml_snapshot!("full-findings", children.findings);
}

/// Covers what restarts slurmdbd, and what must not.
#[test]
fn slurmdbd_is_replaced_when_anything_that_it_reads_at_its_start_changes() {
    let before = pod_annotations(&children(&observed(json!({}))));
    let after = |change: fn(&mut Observed)| {
        let mut observed = observed(json!({}));
        change(&mut observed);
        pod_annotations(&children(&observed))
    };
    assert_eq!(before, after(|_| {}));
    assert_ne!(before, after(|o| o.password = Some(secret("password", "other"))));
    assert_ne!(
        before,
        after(|o| o.slurm_key = Some(secret("slurm.key", "other")))
    );
    assert_ne!(before, after(|o| o.jwt_key = Some(secret("jwt.key", "other"))));
    let with_jwks = |text: &str| {
        let mut observed = observed(json!({ "jwksKeyRef": { "name": "jwks", "key": "k" } }));
        observed.jwks = Some(Arc::new(ConfigMap {
            data: Some(BTreeMap::from([("k".to_owned(), text.to_owned())])),
            ..ConfigMap::default()
        }));
        pod_annotations(&children(&observed))
    };
    assert_ne!(with_jwks("a"), with_jwks("b"));
    // A change of the pod's status must not restart it.
    assert_eq!(
        before,
        after(|o| o.live.pod = Some(Arc::new(pod(json!({ "ready": true })))))
    );
}

fn with_tls(ca: &str, key: &str) -> Observed {
    let mut observed = observed(json!({
        "storageConfig": {
            "host": "mariadb", "passwordKeyRef": { "name": "db", "key": "password" },
            "tls": { "caCertRef": { "name": "db-ca", "key": "ca.crt" }, "clientCertRef": { "name": "db-client" } },
        },
        "extraConf": "StorageParameters=SSL_CIPHER=HIGH",
    }));
    observed.database_ca = Some(secret("ca.crt", ca));
    let mut client = secret("tls.crt", "certificate");
    let data = Arc::make_mut(&mut client).data.get_or_insert_default();
    data.insert("tls.key".to_owned(), ByteString(key.as_bytes().to_vec()));
    data.insert("ca.crt".to_owned(), ByteString(b"not read".to_vec()));
    observed.database_client = Some(client);
    observed
}

#[test]
fn tls_of_the_database() {
    let children = children(&with_tls("authority", "key"));
    insta::assert_snapshot!("tls-slurmdbd-conf", slurmdbd_conf(&children));
    let pod = children
        .stateful_set
        .value
        .pointer("/spec/template/spec")
        .unwrap();
    insta::assert_yaml_snapshot!("tls-volumes", pod.pointer("/volumes/0").unwrap());
    let text = children.stateful_set.value.to_string();
    assert!(
        !text.contains("authority") && !text.contains(&checksum::of_bytes(b"key")),
        "{text}"
    );
}

#[test]
fn slurmdbd_is_replaced_when_a_certificate_or_its_key_changes() {
    let annotations = |ca, key| pod_annotations(&children(&with_tls(ca, key)));
    let before = annotations("authority", "key");
    assert_eq!(annotations("authority", "key"), before);
    assert_ne!(annotations("another", "key"), before);
    assert_ne!(annotations("authority", "another"), before);
    let mut observed = with_tls("authority", "key");
    let client = observed.database_client.as_mut().unwrap();
    let data = Arc::make_mut(client).data.as_mut().unwrap();
    data.insert("ca.crt".to_owned(), ByteString(b"changed".to_vec()));
    assert_eq!(pod_annotations(&children(&observed)), before);
}

#[rstest]
#[case::no_authority(|o: &mut Observed| o.database_ca = None, "Secret db-ca does not exist: create it with the key \"ca.crt\"")]
#[case::no_certificate(|o: &mut Observed| o.database_client = None, "Secret db-client does not exist: create it with the key \"tls.crt\"")]
#[case::no_key_for_it(
    |o: &mut Observed| o.database_client = Some(secret("tls.crt", "certificate")),
    "Secret db-client has no key \"tls.key\", or it is empty: add it"
)]
fn a_missing_certificate_is_named(#[case] change: fn(&mut Observed), #[case] expected: &str) {
    let mut observed = with_tls("authority", "key");
    change(&mut observed);
    assert_eq!(decide(&observed).err().unwrap().message, expected);
}

#[rstest]
#[case::line_end("hush\n", "StoragePass=hush\n")]
#[case::comment_sign("a#b", "StoragePass=a\\#b\n")]
#[case::spaces("two words", "StoragePass=\"two words\"\n")]
fn a_password_reaches_slurmdbd_as_it_is(#[case] password: &str, #[case] line: &str) {
    let mut observed = observed(json!({}));
    observed.password = Some(secret("password", password));
    let conf = slurmdbd_conf(&children(&observed));
    assert!(conf.contains(line), "{conf}");
}

#[test]
fn a_password_that_would_add_a_line_is_refused_and_not_shown() {
    let mut observed = observed(json!({}));
    observed.password = Some(secret("password", "hush\nSlurmUser=root"));
    let message = decide(&observed).err().unwrap().message;
    assert!(message.contains("the database password"), "{message}");
    assert!(!message.contains("hush"), "{message}");
}

#[test]
fn an_external_slurmdbd_has_no_children() {
    let observed =
        observed(json!({ "external": true, "externalConfig": { "host": "dbd.example.com", "port": 7031 } }));
    assert!(decide(&observed).unwrap().is_none());
    let status = status::compute(
        &observed,
        &Outcome::External,
        &Teardown::Not,
        Timestamp::UNIX_EPOCH,
    );
    insta::assert_yaml_snapshot!("external-status", status);
}

#[rstest]
#[case::no_password(|o: &mut Observed| o.password = None, "Secret db does not exist: create it with the key \"password\"")]
#[case::empty_password(|o: &mut Observed| o.password = Some(secret("password", "")), "Secret db has no key \"password\", or it is empty: add it")]
#[case::no_slurm_key(|o: &mut Observed| o.slurm_key = None, "Secret auth-slurm does not exist: create it with the key \"slurm.key\"")]
#[case::no_jwt_key(|o: &mut Observed| o.jwt_key = Some(secret("other", "x")), "Secret auth-jwt has no key \"jwt.key\", or it is empty: add it")]
#[case::no_jwks(
    |o: &mut Observed| o.accounting = Arc::new(accounting(json!({ "jwksKeyRef": { "name": "jwks", "key": "k" } }))),
    "ConfigMap jwks does not exist: create it with the key \"k\""
)]
#[case::no_database(
    |o: &mut Observed| o.accounting = Arc::new(accounting(json!({ "storageConfig": null }))),
    "storageConfig must be set: the database's host and password"
)]
#[case::external_without_address(
    |o: &mut Observed| o.accounting = Arc::new(accounting(json!({ "external": true }))),
    "externalConfig must be set when external is true"
)]
fn what_is_missing_is_named(#[case] change: fn(&mut Observed), #[case] expected: &str) {
    let mut observed = observed(json!({}));
    change(&mut observed);
    assert_eq!(decide(&observed).err().unwrap().message, expected);
}

fn pod(container: Value) -> Pod {
    let mut status =
        json!({ "name": "slurmdbd", "image": "", "imageID": "", "ready": false, "restartCount": 0 });
    fill(&mut status, container);
    serde_json::from_value(json!({
        "metadata": { "name": "slurm-accounting-0" },
        "status": { "containerStatuses": [status] },
    }))
    .unwrap()
}

fn ended(message: &str) -> Value {
    json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": message } })
}

#[rstest]
#[case::ready(json!({ "ready": true, "state": { "running": {} } }), Daemon::Ready)]
#[case::waits_for_its_database(json!({ "state": { "running": {} } }), Daemon::Busy)]
#[case::is_being_created(json!({ "state": { "waiting": { "reason": "ContainerCreating" } } }), Daemon::Starting)]
#[case::converts_its_database_after_an_end(
    json!({ "state": { "running": {} }, "lastState": ended("fatal: no") }),
    Daemon::Busy
)]
#[case::has_no_image(
    json!({ "state": { "waiting": { "reason": "ErrImagePull", "message": "not found" } } }),
    troubled(reason::POD_HELD, "container slurmdbd ErrImagePull: not found")
)]
#[case::waits_to_be_started_again(
    json!({ "state": { "waiting": { "reason": "CrashLoopBackOff" } }, "lastState": ended("[t] fatal: no\n[t] error: later\n") }),
    troubled(reason::DAEMON_ENDED, "container slurmdbd terminated and is being restarted: fatal: no")
)]
fn the_pod_tells_how_far_slurmdbd_is(#[case] container: Value, #[case] expected: Daemon) {
    assert_eq!(
        daemon::of_pod(Some(&Arc::new(pod(container))), Timestamp::UNIX_EPOCH),
        expected
    );
}

fn troubled(reason: &'static str, message: &str) -> Daemon {
    Daemon::Troubled(Problem {
        reason,
        message: format!("pod slurm-accounting-0: {message}"),
    })
}

/// Log of slurmdbd 26.05 while the database rejects its password.
const REFUSED: &str = "\
[2026-11-15T18:07:00.246] error: mysql_real_connect failed: 1045 Access denied for user 'slurm'@'10.0.1.9' (using password: YES)
[2026-11-15T18:07:00.246] error: The database must be up when starting the MYSQL plugin.  Trying again in 5 seconds.
";

#[test]
fn the_line_with_the_cause_is_quoted() {
    let cause = "error: mysql_real_connect failed: 1045 Access denied for user 'slurm'@'10.0.1.9' (using password: YES)";
    assert_eq!(daemon::refusal(REFUSED).unwrap(), cause);
    let (first, _) = REFUSED.split_once('\n').unwrap();
    assert_eq!(daemon::refusal(first).unwrap(), cause, "between the two lines");
    let getting_on = format!("{REFUSED}[t] error: Database settings not recommended values: x\n");
    assert_eq!(daemon::refusal(&getting_on), None);
}

/// Logs of slurmdbd 26.05 with TLS, and of `init`; a test of `init` shows that they say this.
#[rstest]
#[case::another_authority(
    "error: mysql_real_connect failed: 2026 TLS/SSL error: self-signed certificate in certificate chain"
)]
#[case::another_name("error: mysql_real_connect failed: 2026 TLS/SSL error: Hostname verification failed")]
#[case::no_client_certificate(
    "error: mysql_real_connect failed: 1045 Access denied for user 'slurm'@'db' (using password: YES)"
)]
fn the_drivers_own_error_is_in_the_condition(#[case] error: &str) {
    let (_, again) = REFUSED.trim_end().split_once('\n').unwrap();
    let log = format!("[2026-11-19T04:50:58.184] {error}\n{again}\n");
    let status = status_of(json!({ "state": { "running": {} } }), Some(&log));
    let ready = status.pointer("/conditions/0/message").unwrap().as_str().unwrap();
    assert_eq!(
        ready,
        format!("slurmdbd cannot use the database slurm_acct_db at mariadb:3306 as user slurm: {error}")
    );
}

#[test]
fn a_database_without_tls_is_in_the_condition() {
    let error = "error: the database mariadb:3306 offers no TLS, and slurmdbd would connect without it";
    let status = status_of(
        json!({ "state": { "running": {} } }),
        Some(&format!("init: {error}\n")),
    );
    let ready = status.pointer("/conditions/0").unwrap();
    assert_eq!(ready["reason"], reason::DATABASE_UNUSABLE);
    assert!(ready["message"].as_str().unwrap().ends_with(error), "{ready}");
}

#[test]
fn only_what_was_lost_after_the_start_counts_against_a_ready_slurmdbd() {
    let lost = "[t] error: mysql_real_connect failed: 2002 Can't connect to server on 'mariadb' (115)\n";
    let started = "[t] slurmdbd version 26.05.5 started\n";
    assert_eq!(daemon::lost_connection(&format!("{lost}{started}")), None);
    assert_eq!(
        daemon::lost_connection(&format!(
            "{started}{lost}[t] error: unable to re-connect to as_mysql database\n"
        ))
        .unwrap(),
        "error: mysql_real_connect failed: 2002 Can't connect to server on 'mariadb' (115)"
    );
    assert!(daemon::lost_connection(lost).is_some(), "the start is long ago");
}

fn status_of(container: Value, log: Option<&str>) -> Value {
    let mut observed = observed(json!({}));
    observed.live.pod = Some(Arc::new(pod(container)));
    observed.live.stateful_set = Some(Arc::new(StatefulSet::default()));
    observed.log = log.map(str::to_owned);
    json!(status::compute(
        &observed,
        &Outcome::Applied(&[]),
        &Teardown::Not,
        Timestamp::UNIX_EPOCH,
    ))
}

#[test]
fn the_status_quotes_what_slurmdbd_says() {
    let running = json!({ "state": { "running": {} } });
    insta::assert_yaml_snapshot!("refused-status", status_of(running.clone(), Some(REFUSED)));
    let converting = "[2026-11-15T18:07:00.246] pre-converting job table for lab\n";
    insta::assert_yaml_snapshot!("converting-status", status_of(running.clone(), Some(converting)));
    insta::assert_yaml_snapshot!("no-log-status", status_of(running, None));
    let failed = json!({ "state": ended("[t] fatal: Database schema is from a newer version of Slurm\n") });
    insta::assert_yaml_snapshot!("ended-status", status_of(failed, None));
    let crashed = json!({ "state": ended("[t] fatal: SlurmUser is not 401\n") });
    insta::assert_yaml_snapshot!("crashed-status", status_of(crashed, None));
    let ready = json!({ "ready": true, "state": { "running": {} } });
    insta::assert_yaml_snapshot!("ready-status", status_of(ready.clone(), None));
    insta::assert_yaml_snapshot!("lost-status", status_of(ready, Some(REFUSED)));
}

#[test]
fn a_rollout_is_told_as_progress() {
    let mut observed = observed(json!({}));
    let set =
        json!({ "metadata": {}, "status": { "replicas": 1, "currentRevision": "a", "updateRevision": "b" } });
    observed.live.stateful_set = Some(Arc::new(serde_json::from_value(set).unwrap()));
    let status = status::compute(
        &observed,
        &Outcome::Applied(&[]),
        &Teardown::Not,
        Timestamp::UNIX_EPOCH,
    );
    let progressing = status
        .conditions
        .iter()
        .find(|c| c.type_ == "Progressing")
        .unwrap();
    assert_eq!(
        (progressing.status.as_str(), progressing.reason.as_str()),
        ("True", "RollingOut")
    );
}

#[test]
fn lines_that_are_not_used_degrade_a_working_accounting() {
    let mut observed = observed(json!({}));
    observed.live.pod = Some(Arc::new(pod(json!({ "ready": true }))));
    let unused = ["line 1: DbdPort is ignored".to_owned()];
    let status = status::compute(
        &observed,
        &Outcome::Applied(&unused),
        &Teardown::Not,
        Timestamp::UNIX_EPOCH,
    );
    let told: Vec<_> = status
        .conditions
        .iter()
        .map(|c| (c.type_.as_str(), c.status.as_str()))
        .collect();
    assert_eq!(
        told,
        [("Ready", "True"), ("Progressing", "False"), ("Degraded", "True")]
    );
}
