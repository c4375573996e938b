//! Tests from the LoginSet that a user writes to the objects and the status, without a cluster.
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
use crate::{conditions::tests::shown, pod_diagnosis::tests::crashing, teardown::Teardown};

const SSSD_CONF: &str = "[sssd]\nservices = nss, pam\ndomains = a\n[domain/a]\nid_provider = ldap\n";

fn secret(key: &str, value: &str) -> Arc<Secret> {
    let data = BTreeMap::from([(key.to_owned(), ByteString(value.as_bytes().to_vec()))]);
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
        slurm_key: Some(secret("slurm.key", "secret")),
        hash_key: Some(crate::fingerprints::HashKey::for_tests()),
        sssd: Some(secret("sssd.conf", SSSD_CONF)),
        cluster_domain: "cluster.local".into(),
        live: Live::default(),
    }
}

fn children(observed: &Observed) -> Children {
    let live = observed.live.deployment.as_deref();
    build::build(&observed.loginset, &validate::validate(observed).unwrap(), live).unwrap()
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
fn a_file_with_which_nobody_can_log_in_is_refused() {
    let mut observed = observed(json!({}));
    observed.sssd = Some(secret("sssd.conf", &SSSD_CONF.replace("ldap", "ldpa")));
    let problem = validate::validate(&observed).unwrap_err();
    assert_eq!(
        (problem.reason, problem.message.as_str()),
        (
            "InvalidSpec",
            "key \"sssd.conf\" of Secret sssd: [domain/a] has the unknown id_provider \"ldpa\": \
             use one of ad, files, idp, ipa, ldap, proxy"
        )
    );
}

#[test]
fn a_file_whose_domains_may_be_in_the_image_is_accepted() {
    let mut observed = observed(json!({}));
    observed.sssd = Some(secret("sssd.conf", "[sssd]\nservices = nss, pam\n"));
    assert!(validate::validate(&observed).is_ok());
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
fn a_changed_key_of_root_reaches_running_pods() {
    let with = |keys: &str| children(&observed(json!({ "rootSshAuthorizedKeys": keys })));
    let (one, other) = (with("ssh-ed25519 AAAA a"), with("ssh-ed25519 BBBB b"));
    assert_ne!(one.ssh_config.value, other.ssh_config.value);
    assert_eq!(one.deployment.value, other.deployment.value);
}

#[test]
fn another_line_for_sshd_replaces_pods() {
    let with = |lines: &str| {
        children(&observed(json!({ "extraSshdConfig": lines })))
            .deployment
            .value
    };
    assert_ne!(with("LoginGraceTime 30"), with("LoginGraceTime 60"));
}

/// A Deployment of an operator that mounted keys as single files.
fn with_fixed_keys(spec: Value) -> Observed {
    let mut observed = observed(spec);
    let validated = validate::validate(&observed).unwrap();
    let deployment = build::build_with_fixed_keys(&observed.loginset, &validated);
    observed.live.deployment = Some(Arc::new(serde_json::from_value(deployment).unwrap()));
    observed
}

#[test]
fn pods_of_an_earlier_operator_are_known_by_the_hash_that_it_gave_them() {
    let before = with_fixed_keys(json!({
        "rootSshAuthorizedKeys": "ssh-ed25519 AAAA root@example",
        "extraSshdConfig": "LoginGraceTime 30",
    }));
    let wanted = children(&before).deployment.value;
    assert_eq!(
        wanted.pointer("/spec/template/metadata/annotations/slinky.slurm.net~1sshd-conf-hash"),
        Some(&json!(
            "2a0b13881e8673710d73dbb720333fabf5b6df476edb5a5e2961d2db5cfafb12"
        ))
    );
}

#[test]
fn pods_of_an_earlier_operator_stay_until_something_replaces_them() {
    let keys = json!({ "rootSshAuthorizedKeys": "ssh-ed25519 AAAA a" });
    let mut before = with_fixed_keys(keys.clone());
    let mounts_keys = |observed: &Observed| {
        let children = children(observed);
        children
            .deployment
            .value
            .to_string()
            .contains("authorized_keys.d")
    };
    assert!(!mounts_keys(&before));
    let mut change = |spec: Value| {
        let live = before.live.deployment.clone();
        before = observed(spec);
        before.live.deployment = live;
        mounts_keys(&before)
    };
    assert!(!change(
        json!({ "rootSshAuthorizedKeys": "ssh-ed25519 AAAA a", "replicas": 3 })
    ));
    assert!(change(json!({ "rootSshAuthorizedKeys": "ssh-ed25519 BBBB b" })));
    assert!(change(
        json!({ "rootSshAuthorizedKeys": "ssh-ed25519 AAAA a", "login": { "image": "login:2" } })
    ));
}

#[test]
fn a_login_pod_that_does_not_come_up_goes_before_lines_that_are_not_used() {
    let mut observed = observed(json!({}));
    let unused = ["line 1: Port is ignored".to_owned()];
    let degraded = |observed: &Observed| {
        let status = status::compute(observed, None, &unused, &Teardown::Not, Timestamp::UNIX_EPOCH);
        shown(&status.conditions, "Degraded").map(str::to_owned)
    };
    assert_eq!(degraded(&observed), ["True", "InvalidSpec", &unused[0]]);
    observed.live.pods = vec![crashing("login-1", "sshd: no hostkeys available")];
    let [holds, reason, message] = degraded(&observed);
    assert_eq!([holds.as_str(), reason.as_str()], ["True", "DaemonEnded"]);
    assert!(message.contains("pod login-1: "), "{message}");
    assert!(message.contains("no hostkeys available"), "{message}");
}

#[test]
fn a_plain_hash_stays_until_pods_are_replaced_for_something_else() {
    let path = "/spec/template/metadata/annotations/slinky.slurm.net~1sssd-conf-hash";
    let hash_of = |observed: &Observed| {
        let deployment = super::decide(observed).unwrap().deployment.value;
        deployment.pointer(path).unwrap().as_str().unwrap().to_owned()
    };
    let mut before = observed(json!({}));
    let keyed = hash_of(&before);
    let plain = crate::children::checksum::of_bytes(SSSD_CONF.as_bytes());
    let mut running = children(&before).deployment.value;
    *running.pointer_mut(path).unwrap() = json!(plain);
    let live = Some(Arc::new(serde_json::from_value(running).unwrap()));
    before.live.deployment.clone_from(&live);
    assert_eq!(hash_of(&before), plain, "an upgrade replaces nothing");
    let mut changed = observed(json!({ "login": { "image": "login:2" } }));
    changed.live.deployment = live;
    assert_eq!(hash_of(&changed), keyed);
}

#[test]
fn a_login_pod_with_munge_is_ready_without_sackds_socket() {
    let mut observed = observed(json!({}));
    let mut controller = observed.controller.as_deref().unwrap().clone();
    controller.spec.auth = Some(serde_json::from_value(json!({ "type": "munge" })).unwrap());
    observed.controller = Some(Arc::new(controller));
    let pod = &children(&observed).deployment.value["spec"]["template"]["spec"];
    assert_eq!(
        pod["containers"][0]["readinessProbe"]["exec"]["command"],
        json!([
            "test",
            "-S",
            "/run/munge/munge.socket.2",
            "-a",
            "-e",
            "/run/slurm/conf/slurm.conf"
        ])
    );
    let volumes = pod["volumes"].to_string();
    assert!(
        volumes.contains("munge.key") && !volumes.contains("\"path\":\"slurm.key\""),
        "{volumes}"
    );
}
