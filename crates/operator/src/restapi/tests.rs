//! Tests from the RestApi that a user writes to the objects and the status, without a cluster.
#![allow(
    clippy::needless_pass_by_value,
    reason = "json! literals read better unborrowed"
)]

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use keelson_api::{Controller, RestApi};
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    build::{self, Children},
    observe::{Live, Observed},
    status, validate,
};

use crate::{conditions::tests::shown, pod_diagnosis::tests::crashing, teardown::Teardown};

fn observed(spec: Value, controller: Value) -> Observed {
    let mut restapi = json!({
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": "RestApi",
        "metadata": { "name": "slurm", "namespace": "slurm", "uid": "uid-restapi" },
        "spec": { "controllerRef": { "name": "slurm" }, "slurmrestd": { "image": "slurmrestd:1" } },
    });
    for (key, value) in spec.as_object().unwrap() {
        restapi["spec"][key] = value.clone();
    }
    let mut owner = json!({
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": "Controller",
        "metadata": { "name": "slurm", "namespace": "slurm" },
        "spec": { "slurmKeyRef": { "name": "auth-slurm", "key": "slurm.key" } },
    });
    for (key, value) in controller.as_object().unwrap() {
        owner["spec"][key] = value.clone();
    }
    let secret = BTreeMap::from([("slurm.key".to_owned(), ByteString(b"secret".to_vec()))]);
    let config = BTreeMap::from([("slurm.conf".to_owned(), "ClusterName=x\n".to_owned())]);
    Observed {
        restapi: Arc::new(serde_json::from_value::<RestApi>(restapi).unwrap()),
        controller: Some(Arc::new(serde_json::from_value::<Controller>(owner).unwrap())),
        slurm_key_in_use: None,
        hash_key: Some(crate::fingerprints::HashKey::for_tests()),
        slurm_key: Some(Arc::new(Secret {
            data: Some(secret),
            ..Secret::default()
        })),
        candidate: Some(Arc::new(ConfigMap {
            data: Some(config),
            ..ConfigMap::default()
        })),
        live: Live::default(),
    }
}

fn children(observed: &Observed) -> Children {
    build::build(&observed.restapi, &validate::validate(observed).unwrap()).unwrap()
}

#[test]
fn a_plain_restapi() {
    let Children {
        config,
        service,
        deployment,
        disruption_budget,
    } = children(&observed(json!({}), json!({})));
    insta::assert_yaml_snapshot!("config", config.value);
    insta::assert_yaml_snapshot!("service", service.value);
    insta::assert_yaml_snapshot!("deployment", deployment.value);
    assert!(
        disruption_budget.is_none(),
        "one replica alone must not block a node drain"
    );
}

#[test]
fn several_replicas_have_a_disruption_budget() {
    let children = children(&observed(json!({ "replicas": 3 }), json!({})));
    insta::assert_yaml_snapshot!("disruption-budget", children.disruption_budget.unwrap().value);
}

#[test]
fn the_address_stands_behind_the_users_arguments() {
    let args = |controller: Value| {
        let user = json!({ "slurmrestd": { "image": "x", "args": ["-v"] } });
        let deployment = children(&observed(user, controller)).deployment.value;
        deployment
            .pointer("/spec/template/spec/containers/0/args")
            .cloned()
            .unwrap()
    };
    assert_eq!(
        args(json!({})),
        json!(["-s", "openapi/slurmctld", "-v", "0.0.0.0:6820"])
    );
    assert_eq!(
        args(json!({ "accountingRef": { "name": "db" } })),
        json!(["-v", "0.0.0.0:6820"])
    );
}

fn config(text: &str, name: Option<&str>) -> Arc<ConfigMap> {
    let config = json!({
        "metadata": { "annotations": name.map(|name| json!({ "keelson.dev/config-name": name })) },
        "data": { "slurm.conf": text },
    });
    Arc::new(serde_json::from_value(config).unwrap())
}

/// Returns what slurmrestd gets when `new` is the newest configuration and the Controller has this status.
fn served(name: Option<&str>, in_use: Option<&str>, status: Value) -> String {
    let mut observed = observed(json!({}), json!({}));
    let mut controller = observed.controller.as_deref().cloned().unwrap();
    controller.status = serde_json::from_value(status).unwrap();
    observed.controller = Some(Arc::new(controller));
    observed.candidate = Some(config("new", name));
    observed.live.config = in_use.map(|text| config(text, None));
    validate::validate(&observed).unwrap().slurm_conf
}

#[rstest]
#[case::nothing_in_use_yet(Some("n"), None, json!({}), "new")]
#[case::not_taken_in(Some("n"), Some("old"), json!({ "activeConfigHash": "o" }), "old")]
#[case::nothing_known(Some("n"), Some("old"), Value::Null, "old")]
#[case::taken_in(Some("n"), Some("old"), json!({ "activeConfigHash": "n" }), "new")]
#[case::slurmctld_is_elsewhere(None, Some("old"), json!({}), "new")]
#[case::an_image_that_does_not_tell(Some("n"), Some("old"), json!({ "conditions": [{ "type": "ConfigApplied",
    "status": "Unknown", "reason": "ConfigPending", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }), "new")]
fn slurmrestd_gets_what_slurmctld_has_accepted(
    #[case] name: Option<&str>,
    #[case] in_use: Option<&str>,
    #[case] status: Value,
    #[case] expected: &str,
) {
    assert_eq!(served(name, in_use, status), expected);
}

#[test]
fn a_changed_configuration_rolls_the_pods() {
    let before = observed(json!({}), json!({}));
    let mut after = before.clone();
    after.candidate = Some(config("ClusterName=y\n", None));
    let template = |observed: &Observed| {
        children(observed)
            .deployment
            .value
            .pointer("/spec/template")
            .cloned()
    };
    assert_ne!(template(&before), template(&after));
}

#[test]
fn without_its_controller_it_says_so() {
    let mut observed = observed(json!({}), json!({}));
    observed.controller = None;
    let problem = validate::validate(&observed).unwrap_err();
    insta::assert_yaml_snapshot!(
        "blocked",
        status::compute(&observed, Some(&problem), &Teardown::Not, Timestamp::UNIX_EPOCH)
    );
}

#[test]
fn a_slurmrestd_that_ends_is_quoted() {
    let mut observed = observed(json!({}), json!({}));
    observed.live.pods = vec![crashing("rest-1", "fatal: no")];
    let status = status::compute(&observed, None, &Teardown::Not, Timestamp::UNIX_EPOCH);
    let [holds, reason, message] = shown(&status.conditions, "Degraded");
    assert_eq!([holds, reason], ["True", "DaemonEnded"]);
    assert!(
        message.starts_with("pod rest-1: ") && message.ends_with("fatal: no"),
        "{message}"
    );
    let [_, reason, ready] = shown(&status.conditions, "Ready");
    assert_eq!(
        (reason, ready),
        ("Starting", format!("0 of 1 slurmrestd ready; {message}").as_str())
    );
}

#[test]
fn slurmrestd_needs_no_key_of_munge() {
    let observed = observed(json!({}), json!({ "auth": { "type": "munge" } }));
    let deployment = &children(&observed).deployment.value;
    assert!(
        !deployment["spec"]["template"]["spec"]
            .to_string()
            .contains("auth-slurm")
    );
}
