//! From a LoginSet as a user writes it to the objects and the status, without a cluster.
#![allow(
    clippy::needless_pass_by_value,
    reason = "json! literals read better unborrowed"
)]

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use keelson_api::{Controller, LoginSet};
use serde_json::{Value, json};

use super::{
    build::{self, Children},
    host_keys,
    observe::{Live, Observed},
    status, validate,
};
use crate::{conditions::tests::shown, pod_trouble::tests::crashing};

fn secret(key: &str) -> Arc<Secret> {
    let data = BTreeMap::from([(key.to_owned(), ByteString(b"secret".to_vec()))]);
    Arc::new(Secret {
        data: Some(data),
        ..Secret::default()
    })
}

fn observed(spec: Value) -> Observed {
    let mut loginset = json!({
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": "LoginSet",
        "metadata": { "name": "slurm-login-a", "namespace": "slurm", "uid": "uid-login" },
        "spec": {
            "controllerRef": { "name": "slurm" },
            "login": { "image": "login:1" },
            "initconf": { "image": "login:1" },
            "sssdConfRef": { "name": "sssd", "key": "sssd.conf" },
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        loginset["spec"][key] = value.clone();
    }
    let controller = json!({
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": "Controller",
        "metadata": { "name": "slurm", "namespace": "slurm" },
        "spec": { "slurmKeyRef": { "name": "auth-slurm", "key": "slurm.key" } },
    });
    Observed {
        loginset: Arc::new(serde_json::from_value::<LoginSet>(loginset).unwrap()),
        controller: Some(Arc::new(
            serde_json::from_value::<Controller>(controller).unwrap(),
        )),
        slurm_key_in_use: None,
        slurm_key: Some(secret("slurm.key")),
        sssd: Some(secret("sssd.conf")),
        cluster_domain: "cluster.local".into(),
        live: Live::default(),
    }
}

fn children(observed: &Observed) -> Children {
    build::build(&observed.loginset, &validate::validate(observed).unwrap()).unwrap()
}

#[test]
fn a_plain_loginset() {
    let Children {
        ssh_config,
        service,
        deployment,
        findings,
    } = children(&observed(json!({
        "rootSshAuthorizedKeys": "ssh-ed25519 AAAA root@example",
        "extraSshdConfig": "LoginGraceTime 30",
    })));
    insta::assert_yaml_snapshot!("ssh-config", ssh_config.value);
    insta::assert_yaml_snapshot!("service", service.value);
    insta::assert_yaml_snapshot!("deployment", deployment.value);
    assert!(findings.is_empty());
}

#[test]
fn the_port_of_sshd_is_the_users() {
    let deployment = children(&observed(json!({
        "login": { "image": "login:1", "ports": [{ "name": "login", "containerPort": 2222 }] },
    })))
    .deployment
    .value;
    let ports = deployment
        .pointer("/spec/template/spec/containers/0/ports")
        .unwrap();
    assert_eq!(
        *ports,
        json!([{ "name": "login", "containerPort": 2222, "protocol": "TCP" }])
    );
}

#[test]
fn without_sssd_nothing_of_it_is_mounted() {
    let mut observed = observed(json!({ "sssd": { "enabled": false } }));
    observed.sssd = None;
    assert!(!children(&observed).deployment.value.to_string().contains("sssd"));
}

#[test]
fn a_missing_sssd_conf_is_named() {
    let mut observed = observed(json!({}));
    observed.sssd = None;
    assert_eq!(
        validate::validate(&observed).unwrap_err().message,
        "Secret sssd does not exist: create it with the key \"sssd.conf\""
    );
}

#[test]
fn host_keys_are_immutable_and_named_as_sshd_expects_them() {
    let loginset = observed(json!({})).loginset;
    let files: host_keys::Files = vec![("ssh_host_ed25519_key".into(), "k".into())];
    insta::assert_yaml_snapshot!("host-keys", build::build_host_keys(&loginset, files).value);
}

#[test]
fn host_keys_can_be_read_by_ssh() {
    let files = host_keys::generate("login").unwrap();
    assert_eq!(files.len(), 6);
    for (name, text) in files {
        if name.split('.').next_back() == Some("pub") {
            ssh_key::PublicKey::from_openssh(&text).unwrap();
        } else {
            ssh_key::PrivateKey::from_openssh(&text).unwrap();
        }
    }
}

#[test]
fn a_changed_key_of_root_reaches_the_pods() {
    let with = |keys: &str| {
        children(&observed(json!({ "rootSshAuthorizedKeys": keys })))
            .deployment
            .value
    };
    assert_ne!(with("ssh-ed25519 AAAA a"), with("ssh-ed25519 BBBB b"));
}

#[test]
fn a_login_pod_that_does_not_come_up_goes_before_lines_that_are_not_used() {
    let mut observed = observed(json!({}));
    let unused = ["line 1: Port is not used".to_owned()];
    let degraded = |observed: &Observed| {
        let status = status::compute(observed, None, &unused, Timestamp::UNIX_EPOCH);
        shown(&status.conditions, "Degraded").map(str::to_owned)
    };
    assert_eq!(degraded(&observed), ["True", "InvalidSpec", &unused[0]]);
    observed.live.pods = vec![crashing("login-1", "sshd: no hostkeys available")];
    let [holds, reason, message] = degraded(&observed);
    assert_eq!([holds.as_str(), reason.as_str()], ["True", "DaemonEnded"]);
    assert!(message.contains("pod login-1: "), "{message}");
    assert!(message.contains("no hostkeys available"), "{message}");
}
