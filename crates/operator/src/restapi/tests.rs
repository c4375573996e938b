//! From a RestApi as a user writes it to the objects and the status, without a cluster.
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
use serde_json::{Value, json};

use super::{
    build::{self, Children},
    observe::{Live, Observed},
    status, validate,
};

use crate::teardown::Teardown;

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
        slurm_key: Some(Arc::new(Secret {
            data: Some(secret),
            ..Secret::default()
        })),
        config: Some(Arc::new(ConfigMap {
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
        service,
        deployment,
        disruption_budget,
    } = children(&observed(json!({}), json!({})));
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

#[test]
fn a_changed_configuration_rolls_the_pods() {
    let before = observed(json!({}), json!({}));
    let mut after = before.clone();
    let config = BTreeMap::from([("slurm.conf".to_owned(), "ClusterName=y\n".to_owned())]);
    after.config = Some(Arc::new(ConfigMap {
        data: Some(config),
        ..ConfigMap::default()
    }));
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
