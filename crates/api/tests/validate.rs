//! Tests every validation rule: rejected fields, warnings, and immutable fields.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use keelson_api::validate::{Report, Validate, conflicts, validate, validate_update};
use keelson_api::{Accounting, Controller, LoginSet, NodeSet, RestApi, Token};
use pretty_assertions::assert_eq;
use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Applies a JSON merge patch, without deletion by `null`.
fn patched(mut base: Value, patch: &Value) -> Value {
    match (&mut base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                let slot = base.entry(key.clone()).or_insert(Value::Null);
                *slot = patched(slot.take(), value);
            }
        }
        _ => return patch.clone(),
    }
    base
}

fn object<K: DeserializeOwned>(kind: &str, spec: &Value) -> K {
    serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind,
        "metadata": { "name": "slurm", "namespace": "hpc" }, "spec": spec,
    }))
    .unwrap()
}

fn key(name: &str) -> Value {
    json!({ "name": name, "key": "key" })
}

fn controller(patch: &Value) -> Controller {
    object(
        "Controller",
        &patched(
            json!({ "slurmKeyRef": key("slurm"), "jwtKeyRef": key("jwt"),
                "slurmctld": { "image": "slurmctld" }, "logfile": { "image": "alpine" } }),
            patch,
        ),
    )
}

fn nodeset(patch: &Value) -> NodeSet {
    object(
        "NodeSet",
        &patched(
            json!({ "controllerRef": { "name": "slurm" }, "slurmd": { "image": "slurmd" }, "logfile": { "image": "alpine" } }),
            patch,
        ),
    )
}

fn loginset(patch: &Value) -> LoginSet {
    object(
        "LoginSet",
        &patched(
            json!({ "controllerRef": { "name": "slurm" }, "sssdConfRef": key("sssd"),
                "login": { "image": "login" }, "initconf": { "image": "login" } }),
            patch,
        ),
    )
}

fn accounting(patch: &Value) -> Accounting {
    let base = json!({ "slurmKeyRef": key("slurm"), "jwtKeyRef": key("jwt"), "slurmdbd": { "image": "slurmdbd" },
        "storageConfig": { "host": "mariadb", "passwordKeyRef": key("db") } });
    object("Accounting", &patched(base, patch))
}

fn restapi(patch: &Value) -> RestApi {
    object(
        "RestApi",
        &patched(
            json!({ "controllerRef": { "name": "slurm" }, "slurmrestd": { "image": "slurmrestd" } }),
            patch,
        ),
    )
}

fn token(patch: &Value) -> Token {
    object(
        "Token",
        &patched(json!({ "jwtKeyRef": key("jwt"), "username": "slurm" }), patch),
    )
}

fn paths(report: &Report) -> Vec<String> {
    for violation in &report.violations {
        assert!(
            !violation.problem.is_empty() && !violation.remedy.is_empty(),
            "{violation:?}"
        );
    }
    report
        .violations
        .iter()
        .map(|violation| violation.path.to_string())
        .collect()
}

fn refused_at<K: Validate>(object: &K, expected: &str) {
    let report = validate(object);
    assert_eq!(
        paths(&report),
        if expected.is_empty() {
            vec![]
        } else {
            vec![expected.to_owned()]
        },
        "{report}"
    );
}

#[rstest]
#[case::minimal(json!({}), "")]
#[case::cluster_name(json!({"clusterName": "prod-1"}), "")]
#[case::cluster_name_of_40(json!({"clusterName": "a".repeat(40)}), "")]
#[case::cluster_name_of_41(json!({"clusterName": "a".repeat(41)}), "spec.clusterName")]
#[case::cluster_name_is_a_path(json!({"clusterName": "../x"}), "spec.clusterName")]
#[case::cluster_name_injects(json!({"clusterName": "a\nSlurmUser=root"}), "spec.clusterName")]
#[case::empty_cluster_name_is_none(json!({"clusterName": ""}), "")]
#[case::empty_key_name(json!({"slurmKeyRef": {"name": ""}}), "spec.slurmKeyRef.name")]
#[case::key_in_another_namespace(json!({"slurmKeyRef": {"name": "ns/slurm"}}), "spec.slurmKeyRef.name")]
#[case::upper_case_secret(json!({"jwtKeyRef": {"name": "JWT"}}), "spec.jwtKeyRef.name")]
#[case::empty_key(json!({"jwtKeyRef": {"key": ""}}), "spec.jwtKeyRef.key")]
#[case::key_with_a_slash(json!({"jwtKeyRef": {"key": "a/b"}}), "spec.jwtKeyRef.key")]
#[case::jwks(json!({"jwksKeyRef": {"name": "x", "key": "jwks.json"}}), "")]
#[case::jwks_without_a_name(json!({"jwksKeyRef": {"name": "", "key": "jwks.json"}}), "spec.jwksKeyRef.name")]
#[case::accounting(json!({"accountingRef": {"name": ""}}), "spec.accountingRef.name")]
#[case::config_file(json!({"configFileRefs": [{"name": "a"}, {"name": ""}]}), "spec.configFileRefs[1].name")]
#[case::null_config_files(json!({"configFileRefs": null}), "")]
#[case::prolog(json!({"prologScriptRefs": [{"name": "A B"}]}), "spec.prologScriptRefs[0].name")]
#[case::external_without_config(json!({"external": true}), "spec.externalConfig")]
#[case::external(json!({"external": true, "externalConfig": {"host": "ctl", "port": 6817}}), "")]
#[case::external_host_empty(json!({"external": true, "externalConfig": {"host": "", "port": 1}}), "spec.externalConfig.host")]
#[case::external_host_injects(json!({"external": true, "externalConfig": {"host": "a\nb", "port": 1}}), "spec.externalConfig.host")]
#[case::external_host_runs(json!({"external": true, "externalConfig": {"host": "$(id)", "port": 1}}), "spec.externalConfig.host")]
#[case::external_port(json!({"external": true, "externalConfig": {"host": "a", "port": 0}}), "spec.externalConfig.port")]
#[case::ha_without_a_claim(json!({"ha": {"enabled": true}}), "spec.persistence.existingClaim")]
#[case::ha_without_persistence(json!({"ha": {"enabled": true}, "persistence": {"enabled": false, "existingClaim": "a"}}),
    "spec.persistence.existingClaim")]
#[case::ha(json!({"ha": {"enabled": true}, "persistence": {"existingClaim": "shared"}}), "")]
#[case::ha_off(json!({"ha": {"enabled": false}}), "")]
#[case::claim_name(json!({"persistence": {"existingClaim": "A"}}), "spec.persistence.existingClaim")]
#[case::access_mode(json!({"persistence": {"accessModes": ["RWX"]}}), "spec.persistence.accessModes[0]")]
#[case::size(json!({"persistence": {"resources": {"requests": {"storage": "4Gib"}}}}),
    "spec.persistence.resources.requests.storage")]
#[case::number_as_size(json!({"persistence": {"resources": {"requests": {"storage": 4}}}}), "")]
#[case::nul_in_extra_conf(json!({"extraConf": "A=1\u{0}"}), "spec.extraConf")]
#[case::lines_in_extra_conf(json!({"extraConf": "A=1\n\tB=2\r\n"}), "")]
#[case::max_node_count(json!({"maxNodeCount": 0}), "spec.maxNodeCount")]
#[case::service_port(json!({"service": {"port": 70000}}), "spec.service.port")]
#[case::service_port_unset(json!({"service": {"port": 0, "nodePort": 0}}), "")]
#[case::node_port(json!({"service": {"nodePort": -1}}), "spec.service.nodePort")]
#[case::service_type_of_a_wrong_type(json!({"service": {"spec": {"type": 3}}}), "spec.service.spec.type")]
#[case::service_label(json!({"service": {"metadata": {"labels": {"a b": "c"}}}}), "spec.service.metadata.labels.a b")]
#[case::pod_label_value(json!({"template": {"metadata": {"labels": {"x.y/a": "b c"}}}}), "spec.template.metadata.labels[x.y/a]")]
#[case::pod_annotation_value_is_free(json!({"template": {"metadata": {"annotations": {"a": "b c\n"}}}}), "")]
#[case::metrics_path(json!({"metrics": {"serviceMonitor": {"endpoints": [{"path": "metrics"}]}}}),
    "spec.metrics.serviceMonitor.endpoints[0].path")]
#[case::container_of_a_wrong_type(json!({"slurmctld": {"env": {"A": "1"}}}), "spec.slurmctld.env")]
#[case::container_number_as_text(json!({"slurmctld": {"ports": [{"containerPort": "x"}]}}), "spec.slurmctld.ports[0].containerPort")]
#[case::container_limits(json!({"slurmctld": {"resources": {"limits": {"cpu": "two"}}}}), "spec.slurmctld.resources.limits.cpu")]
#[case::container_limits_negative(json!({"slurmctld": {"resources": {"limits": {"cpu": "-1"}}}}), "spec.slurmctld.resources.limits.cpu")]
#[case::container_numbers_as_limits(json!({"slurmctld": {"resources": {"limits": {"cpu": 2, "nvidia.com/gpu": 8}}}}), "")]
#[case::container_nulls(json!({"slurmctld": {"livenessProbe": null, "env": null}}), "")]
#[case::container_of_the_future(json!({"slurmctld": {"fieldOf2030": {"x": 1}}}), "")]
#[case::container_name(json!({"logfile": {"name": "A_b"}}), "spec.logfile.name")]
#[case::container_env_name(json!({"reconfigure": {"env": [{"name": "A=B", "value": "1"}]}}), "spec.reconfigure.env[0].name")]
#[case::directive(json!({"slurmctld": {"$retainKeys": ["a"]}}), "spec.slurmctld.$retainKeys")]
#[case::patch_directive(json!({"slurmctld": {"env": [{"name": "A", "$patch": "delete"}]}}), "")]
#[case::patch_directive_unknown(json!({"slurmctld": {"env": [{"name": "A", "$patch": "merge"}]}}), "spec.slurmctld.env[0].$patch")]
#[case::pod_of_a_wrong_type(json!({"template": {"spec": {"containers": [{"name": "a", "tty": "yes"}]}}}),
    "spec.template.spec.containers[0].tty")]
#[case::pod_container_without_a_name(json!({"template": {"spec": {"containers": [{"image": "a"}]}}}),
    "spec.template.spec.containers[0].name")]
#[case::pod_two_containers_of_one_name(json!({"template": {"spec": {"containers": [{"name": "a", "image": "a"}],
    "initContainers": [{"name": "a", "image": "a"}]}}}), "spec.template.spec.initContainers[0].name")]
#[case::pod_our_container_merges(json!({"template": {"spec": {"containers": [{"name": "slurmctld"}]}}}), "")]
#[case::pod_our_init_container_among_the_others(json!({"template": {"spec": {"containers": [{"name": "logfile"}]}}}),
    "spec.template.spec.containers[0].name")]
#[case::pod_volume_name(json!({"template": {"spec": {"volumes": [{"name": "A"}]}}}), "spec.template.spec.volumes[0].name")]
#[case::pod_volume_size(json!({"template": {"spec": {"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "big"}}]}}}),
    "spec.template.spec.volumes[0].emptyDir.sizeLimit")]
#[case::pod_never_restarts(json!({"template": {"spec": {"restartPolicy": "Never"}}}), "spec.template.spec.restartPolicy")]
fn controllers(#[case] patch: Value, #[case] path: &str) {
    refused_at(&controller(&patch), path);
}

#[test]
fn a_controller_without_keys_is_refused_twice() {
    let images = json!({ "slurmctld": { "image": "slurmctld" }, "logfile": { "image": "alpine" } });
    let bare: Controller = object("Controller", &images);
    assert_eq!(paths(&validate(&bare)), ["spec.slurmKeyRef", "spec.jwtKeyRef"]);
    let old_name: Controller = object(
        "Controller",
        &patched(
            json!({ "slurmKeyRef": key("slurm"), "jwtHs256KeyRef": key("jwt") }),
            &images,
        ),
    );
    refused_at(&old_name, "");
}

/// Image references as container runtimes parse them.
#[rstest]
#[case("alpine", true)]
#[case("slurm/slurmd:26.05-ubuntu24.04", true)]
#[case("ghcr.io/slinkyproject/slurmd:26.05", true)]
#[case("localhost:5000/a_b/c__d-e.f", true)]
#[case("[fd00::1]:5000/slurmd", true)]
#[case(
    "a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    true
)]
#[case(
    "a:b@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    true
)]
#[case("foo bar", false)]
#[case(" foo", false)]
#[case("Slurm/slurmd", false)]
#[case("a:", false)]
#[case("a:b:c", false)]
#[case("a@sha256:12", false)]
#[case("a@b", false)]
#[case("a//b", false)]
#[case("/a", false)]
#[case("https://example.org/a", false)]
#[case("a\n", false)]
fn images(#[case] image: &str, #[case] right: bool) {
    let path = if right { "" } else { "spec.slurmd.image" };
    refused_at(&nodeset(&json!({ "slurmd": { "image": image } })), path);
}

#[rstest]
#[case::minimal(json!({}), "")]
#[case::no_image(json!({"slurmd": {"image": null}}), "spec.slurmd.image")]
#[case::an_empty_image(json!({"logfile": {"image": ""}}), "spec.logfile.image")]
#[case::an_image_in_the_template(json!({"slurmd": {"image": null},
    "template": {"spec": {"containers": [{"name": "slurmd", "image": "a"}]}}}), "")]
#[case::an_image_of_another_container(json!({"slurmd": {"image": null},
    "template": {"spec": {"containers": [{"name": "mine", "image": "a"}]}}}), "spec.slurmd.image")]
#[case::a_container_without_an_image(json!({"template": {"spec": {"initContainers": [{"name": "mine"}]}}}),
    "spec.template.spec.initContainers[0].image")]
#[case::no_controller(json!({"controllerRef": {"name": ""}}), "spec.controllerRef.name")]
#[case::negative_replicas(json!({"replicas": -1}), "spec.replicas")]
#[case::no_replicas(json!({"replicas": 0}), "")]
#[case::padding(json!({"ordinalPadding": -1}), "spec.ordinalPadding")]
#[case::ready_seconds(json!({"minReadySeconds": -1}), "spec.minReadySeconds")]
#[case::history(json!({"revisionHistoryLimit": -1}), "spec.revisionHistoryLimit")]
#[case::startup(json!({"maxConcurrentStartup": 0}), "spec.maxConcurrentStartup")]
#[case::unavailable_none(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}),
    "spec.updateStrategy.rollingUpdate.maxUnavailable")]
#[case::unavailable_negative(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": -1}}}),
    "spec.updateStrategy.rollingUpdate.maxUnavailable")]
#[case::unavailable_zero_percent(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "0%"}}}),
    "spec.updateStrategy.rollingUpdate.maxUnavailable")]
#[case::unavailable_text(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "many"}}}),
    "spec.updateStrategy.rollingUpdate.maxUnavailable")]
#[case::unavailable_number_as_text(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "3"}}}),
    "spec.updateStrategy.rollingUpdate.maxUnavailable")]
#[case::unavailable_more_than_all(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "101%"}}}),
    "spec.updateStrategy.rollingUpdate.maxUnavailable")]
#[case::unavailable_all(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}}}), "")]
#[case::unavailable(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "25%"}}}), "")]
#[case::unavailable_one(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}}}), "")]
#[case::rollout_partition(json!({"updateStrategy": {"rollingUpdate": {"partition": -1}}}),
    "spec.updateStrategy.rollingUpdate.partition")]
#[case::window(json!({"updateStrategy": {"type": "ScheduledUpdate",
    "scheduledUpdate": {"startTime": "2026-11-15T22:00:00+01:00", "duration": "1m", "flags": ["flex"]}}}), "")]
#[case::window_without_a_start(json!({"updateStrategy": {"type": "ScheduledUpdate"}}),
    "spec.updateStrategy.scheduledUpdate.startTime")]
#[case::window_too_short(json!({"updateStrategy": {"scheduledUpdate": {"duration": "59s"}}}),
    "spec.updateStrategy.scheduledUpdate.duration")]
#[case::window_negative(json!({"updateStrategy": {"scheduledUpdate": {"duration": "-1h"}}}),
    "spec.updateStrategy.scheduledUpdate.duration")]
#[case::window_without_a_unit(json!({"updateStrategy": {"scheduledUpdate": {"duration": "30"}}}),
    "spec.updateStrategy.scheduledUpdate.duration")]
#[case::window_start(json!({"updateStrategy": {"scheduledUpdate": {"startTime": "tonight"}}}),
    "spec.updateStrategy.scheduledUpdate.startTime")]
#[case::window_flag(json!({"updateStrategy": {"scheduledUpdate": {"flags": ["FLEX", "A B"]}}}),
    "spec.updateStrategy.scheduledUpdate.flags[1]")]
#[case::ssh_off(json!({"ssh": {"enabled": false, "sssdConfRef": {"name": "", "key": ""}}}), "")]
#[case::ssh_without_sssd_name(json!({"ssh": {"enabled": true, "sssdConfRef": {"name": "", "key": "k"}}}),
    "spec.ssh.sssdConfRef.name")]
#[case::ssh_without_sssd(json!({"ssh": {"enabled": true}}), "spec.ssh.sssdConfRef")]
#[case::ssh_sssd_off(json!({"ssh": {"enabled": true, "sssd": {"enabled": false}}}), "")]
#[case::sshd_config(json!({"ssh": {"enabled": false, "extraSshdConfig": "a\u{7}"}}), "spec.ssh.extraSshdConfig")]
#[case::hostname(json!({"template": {"spec": {"hostname": "gpu-"}}}), "")]
#[case::hostname_with_a_dot(json!({"template": {"spec": {"hostname": "a.b-"}}}), "spec.template.spec.hostname")]
#[case::hostname_upper_case(json!({"template": {"spec": {"hostname": "GPU"}}}), "spec.template.spec.hostname")]
#[case::hostname_dash(json!({"template": {"spec": {"hostname": "-"}}}), "spec.template.spec.hostname")]
#[case::hostname_of_a_wrong_type(json!({"template": {"spec": {"hostname": 7}}}), "spec.template.spec.hostname")]
#[case::hostname_too_long(json!({"template": {"spec": {"hostname": "a".repeat(62)}}, "replicas": 100}),
    "spec.template.spec.hostname")]
#[case::hostname_just_fits(json!({"template": {"spec": {"hostname": "a".repeat(61)}}, "replicas": 100}), "")]
#[case::partition(json!({"partition": {"enabled": true, "config": "State=UP Default=YES"}}), "")]
#[case::partition_line_break(json!({"partition": {"enabled": true, "config": "State=UP\rSlurmUser=root"}}), "spec.partition.config")]
#[case::partition_empty(json!({"partition": {"enabled": true, "config": ""}}), "spec.partition.config")]
#[case::claim(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"},
    "spec": {"resources": {"requests": {"storage": "1Gi"}}}}]}), "")]
#[case::claim_without_a_name(json!({"volumeClaimTemplates": [{"spec": {"resources": {"requests": {"storage": "1Gi"}}}}]}),
    "spec.volumeClaimTemplates[0].metadata.name")]
#[case::claim_without_a_size(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}),
    "spec.volumeClaimTemplates[0].spec.resources.requests.storage")]
#[case::claim_of_no_size(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"},
    "spec": {"resources": {"requests": {"storage": "big"}}}}]}), "spec.volumeClaimTemplates[0].spec.resources.requests.storage")]
#[case::claim_of_a_wrong_type(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": "x"}}]}),
    "spec.volumeClaimTemplates[0].spec.accessModes")]
#[case::null_claims(json!({"volumeClaimTemplates": null}), "")]
#[case::drain(json!({"drain": {"timeout": "2h", "onTimeout": "Requeue"}}), "")]
#[case::drain_timeout(json!({"drain": {"timeout": "soon"}}), "spec.drain.timeout")]
fn nodesets(#[case] patch: Value, #[case] path: &str) {
    refused_at(&nodeset(&patch), path);
}

#[test]
fn a_nodeset_whose_name_makes_too_long_host_names_is_refused() {
    let mut long = nodeset(&json!({}));
    long.metadata.name = Some("a".repeat(62));
    refused_at(&long, "metadata.name");
    long.spec.template = serde_json::from_value(json!({ "spec": { "hostname": "a-" } })).unwrap();
    refused_at(&long, "");
}

#[rstest]
#[case::minimal(json!({}), "")]
#[case::no_controller(json!({"controllerRef": {"name": ""}}), "spec.controllerRef.name")]
#[case::no_sssd_name(json!({"sssdConfRef": {"name": ""}}), "spec.sssdConfRef.name")]
#[case::sssd_off(json!({"sssdConfRef": {"name": ""}, "sssd": {"enabled": false}}), "")]
#[case::replicas(json!({"replicas": -1}), "spec.replicas")]
#[case::private_key(json!({"rootSshAuthorizedKeys": "-----BEGIN OPENSSH PRIVATE KEY-----\n"}), "spec.rootSshAuthorizedKeys")]
#[case::keys(json!({"rootSshAuthorizedKeys": "ssh-ed25519 AAAA a@b\n# note\n"}), "")]
#[case::sshd_config(json!({"extraSshdConfig": "\u{1}"}), "spec.extraSshdConfig")]
#[case::strategy(json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}}}), "")]
#[case::surge_of_twice_as_many(json!({"strategy": {"rollingUpdate": {"maxSurge": "200%"}}}), "")]
#[case::unavailable_more_than_all(json!({"strategy": {"rollingUpdate": {"maxUnavailable": "200%"}}}),
    "spec.strategy.rollingUpdate.maxUnavailable")]
#[case::strategy_type(json!({"strategy": {"type": "BlueGreen"}}), "spec.strategy.type")]
#[case::recreate_with_bounds(json!({"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}), "spec.strategy.rollingUpdate")]
#[case::strategy_stuck(json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}), "spec.strategy.rollingUpdate")]
#[case::strategy_text(json!({"strategy": {"rollingUpdate": {"maxSurge": "x"}}}), "spec.strategy.rollingUpdate.maxSurge")]
#[case::init_container(json!({"template": {"spec": {"initContainers": [{"name": "login"}]}}}),
    "spec.template.spec.initContainers[0].name")]
fn loginsets(#[case] patch: Value, #[case] path: &str) {
    refused_at(&loginset(&patch), path);
}

#[rstest]
#[case::minimal(json!({}), "")]
#[case::no_host(json!({"storageConfig": {"host": ""}}), "spec.storageConfig.host")]
#[case::host_injects(json!({"storageConfig": {"host": "a\nStoragePass=x"}}), "spec.storageConfig.host")]
#[case::database_injects(json!({"storageConfig": {"database": "a b"}}), "spec.storageConfig.database")]
#[case::user_injects(json!({"storageConfig": {"username": "a\nb"}}), "spec.storageConfig.username")]
#[case::password_name(json!({"storageConfig": {"passwordKeyRef": {"name": ""}}}), "spec.storageConfig.passwordKeyRef.name")]
#[case::port(json!({"storageConfig": {"port": 99999}}), "spec.storageConfig.port")]
#[case::port_unset(json!({"storageConfig": {"port": 0, "database": ""}}), "")]
#[case::external(json!({"external": true, "externalConfig": {"host": "dbd", "port": 6819}, "storageConfig": {"host": ""}}), "")]
#[case::extra_conf(json!({"extraConf": "\u{0}"}), "spec.extraConf")]
fn accountings(#[case] patch: Value, #[case] path: &str) {
    refused_at(&accounting(&patch), path);
}

#[test]
fn an_accounting_without_a_database_is_refused() {
    let bare: Accounting = object(
        "Accounting",
        &json!({ "slurmKeyRef": key("slurm"), "jwtKeyRef": key("jwt"), "slurmdbd": { "image": "slurmdbd" } }),
    );
    refused_at(&bare, "spec.storageConfig");
}

#[rstest]
#[case::minimal(json!({}), "")]
#[case::no_controller(json!({"controllerRef": {"name": ""}}), "spec.controllerRef.name")]
#[case::replicas(json!({"replicas": -2}), "spec.replicas")]
#[case::args_of_a_wrong_type(json!({"slurmrestd": {"args": "-v"}}), "spec.slurmrestd.args")]
fn restapis(#[case] patch: Value, #[case] path: &str) {
    refused_at(&restapi(&patch), path);
}

#[rstest]
#[case::minimal(json!({}), "")]
#[case::no_user(json!({"username": ""}), "spec.username")]
#[case::user_injects(json!({"username": "a b", "secretRef": key("s")}), "spec.username")]
#[case::user_that_no_secret_is_named_after(json!({"username": "Anna_B"}), "spec.secretRef")]
#[case::user_with_a_secret(json!({"username": "Anna_B", "secretRef": key("anna")}), "")]
#[case::lifetime(json!({"lifetime": "1h"}), "")]
#[case::lifetime_text(json!({"lifetime": "1 hour"}), "spec.lifetime")]
#[case::lifetime_zero(json!({"lifetime": "0s"}), "spec.lifetime")]
#[case::secret_name(json!({"secretRef": {"name": "", "key": "k"}}), "spec.secretRef.name")]
fn tokens(#[case] patch: Value, #[case] path: &str) {
    refused_at(&token(&patch), path);
}

#[rstest]
#[case::external_ips(validate(&controller(&json!({"service": {"spec": {"externalIPs": ["1.2.3.4"]}}}))), "spec.service.spec.externalIPs")]
#[case::external_config(validate(&controller(&json!({"externalConfig": {"host": "a", "port": 1}}))), "spec.externalConfig")]
#[case::upper_case(validate(&controller(&json!({"clusterName": "Prod"}))), "spec.clusterName")]
#[case::both_jwt_keys(validate(&controller(&json!({"jwtHs256KeyRef": key("other")}))), "spec.jwtHs256KeyRef")]
#[case::optional_key(validate(&controller(&json!({"slurmKeyRef": {"optional": true}}))), "spec.slurmKeyRef.optional")]
#[case::twice(validate(&controller(&json!({"configFileRefs": [{"name": "a"}, {"name": "a"}]}))), "spec.configFileRefs[1]")]
#[case::kept_claim(validate(&controller(&json!({"persistence": {"existingClaim": "a", "deletionPolicy": "Delete"}}))),
    "spec.persistence.deletionPolicy")]
#[case::operator_label(validate(&controller(&json!({"template": {"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}}))),
    "spec.template.metadata.labels[app.kubernetes.io/name]")]
#[case::node_name(validate(&nodeset(&json!({"template": {"spec": {"nodeName": "n1"}}}))), "spec.template.spec.nodeName")]
#[case::replicas_of_a_daemon_set(validate(&nodeset(&json!({"scalingMode": "DaemonSet", "replicas": 2}))), "spec.replicas")]
#[case::padding_of_a_daemon_set(validate(&nodeset(&json!({"scalingMode": "DaemonSet", "ordinalPadding": 2}))), "spec.ordinalPadding")]
#[case::pin(validate(&nodeset(&json!({"scalingMode": "DaemonSet", "pinToNode": true}))), "spec.pinToNode")]
#[case::prune(validate(&nodeset(&json!({"pruneSlurmNodeRecords": "NodeNotFound"}))), "spec.pruneSlurmNodeRecords")]
#[case::no_timeout(validate(&nodeset(&json!({"drain": {"onTimeout": "Cancel"}}))), "spec.drain.onTimeout")]
#[case::nodes_in_partition(validate(&nodeset(&json!({"partition": {"enabled": true, "config": "Nodes=ALL"}}))), "spec.partition.config")]
#[case::no_field_of_a_pod(validate(&nodeset(&json!({"template": {"spec": {"volumes": [{"name": "v", "emptyDri": {}}]}}}))), "spec.template.spec.volumes[0].emptyDri")]
#[case::no_field_of_a_container(validate(&nodeset(&json!({"slurmd": {"imagePulPolicy": "Never"}}))), "spec.slurmd.imagePulPolicy")]
#[case::odd_key(validate(&loginset(&json!({"rootSshAuthorizedKeys": "AAAA"}))), "spec.rootSshAuthorizedKeys")]
#[case::no_slurmrestd(validate(&restapi(&json!({"replicas": 0}))), "spec.replicas")]
#[case::long_token(validate(&token(&json!({"lifetime": "700000h"}))), "spec.lifetime")]
fn warned_of(#[case] report: Report, #[case] path: &str) {
    assert_eq!(paths(&report), Vec::<String>::new());
    assert_eq!(
        report
            .warnings
            .iter()
            .map(|warning| warning.path.to_string())
            .collect::<Vec<_>>(),
        [path]
    );
}

fn changed_at<K: Validate>(old: &K, new: &K, expected: &str) {
    let report = validate_update(old, new);
    assert_eq!(
        paths(&report),
        if expected.is_empty() {
            vec![]
        } else {
            vec![expected.to_owned()]
        },
        "{report}"
    );
}

#[rstest]
#[case::nothing(json!({}), json!({}), "")]
#[case::cluster_name(json!({}), json!({"clusterName": "other"}), "spec.clusterName")]
#[case::cluster_name_spelt_out(json!({}), json!({"clusterName": "hpc_slurm"}), "")]
#[case::slurm_key_name(json!({}), json!({"slurmKeyRef": {"name": "new"}}), "spec.slurmKeyRef.name")]
#[case::slurm_key_key(json!({}), json!({"slurmKeyRef": {"key": "new"}}), "")]
#[case::jwt_key(json!({}), json!({"jwtKeyRef": {"key": "new"}}), "spec.jwtKeyRef")]
#[case::persistence_off(json!({}), json!({"persistence": {"enabled": false}}), "spec.persistence.enabled")]
#[case::persistence_spelt_out(json!({}), json!({"persistence": {"enabled": true}}), "")]
#[case::claim(json!({"persistence": {"existingClaim": "a"}}), json!({"persistence": {"existingClaim": "b"}}),
    "spec.persistence.existingClaim")]
#[case::claim_without_persistence(json!({"persistence": {"enabled": false, "existingClaim": "a"}}),
    json!({"persistence": {"enabled": false, "existingClaim": "b"}}), "")]
#[case::new_fault(json!({}), json!({"maxNodeCount": 0}), "spec.maxNodeCount")]
#[case::old_fault_stays(json!({"maxNodeCount": 0}), json!({"maxNodeCount": 0, "extraConf": "A=1"}), "")]
#[case::old_fault_made_another(json!({"extraConf": "\u{0}"}), json!({"extraConf": "\u{0}\u{0}"}), "spec.extraConf")]
#[case::fault_mended(json!({"maxNodeCount": 0}), json!({"maxNodeCount": 10}), "")]
#[case::service(json!({}), json!({"service": {"port": 1}}), "")]
fn controller_changes(#[case] old: Value, #[case] new: Value, #[case] path: &str) {
    changed_at(&controller(&old), &controller(&new), path);
}

#[rstest]
#[case::controller(json!({}), json!({"controllerRef": {"name": "b"}}), "spec.controllerRef")]
#[case::claims(json!({}), json!({"volumeClaimTemplates": [{"metadata": {"name": "a"},
    "spec": {"resources": {"requests": {"storage": "1Gi"}}}}]}), "spec.volumeClaimTemplates")]
#[case::no_claims(json!({"volumeClaimTemplates": null}), json!({"volumeClaimTemplates": []}), "")]
#[case::same_claims_spelt_differently(
    json!({"volumeClaimTemplates": [{"metadata": {"name": "a"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}]}),
    json!({"volumeClaimTemplates": [{"metadata": {"name": "a"}, "spec": {"resources": {"requests": {"storage": "1024Mi"}}}}]}), "")]
#[case::mode(json!({}), json!({"scalingMode": "DaemonSet"}), "")]
fn nodeset_changes(#[case] old: Value, #[case] new: Value, #[case] path: &str) {
    changed_at(&nodeset(&old), &nodeset(&new), path);
}

#[test]
fn other_kinds_keep_their_cluster_and_key() {
    changed_at(
        &loginset(&json!({})),
        &loginset(&json!({"controllerRef": {"name": "b"}})),
        "spec.controllerRef",
    );
    changed_at(
        &accounting(&json!({})),
        &accounting(&json!({"jwtKeyRef": {"name": "b"}})),
        "spec.jwtKeyRef",
    );
    changed_at(
        &token(&json!({})),
        &token(&json!({"jwtKeyRef": {"name": "b"}})),
        "spec.jwtKeyRef",
    );
    changed_at(
        &restapi(&json!({})),
        &restapi(&json!({"controllerRef": {"name": "b"}})),
        "",
    );
    let old_field: Token = object(
        "Token",
        &json!({ "jwtHs256KeyRef": key("jwt"), "username": "slurm" }),
    );
    changed_at(&old_field, &token(&json!({})), "");
}

#[test]
fn metadata_and_dying_objects_may_always_change() {
    let wrong = controller(&json!({"maxNodeCount": 0}));
    let mut labelled = wrong.clone();
    labelled.metadata.finalizers = Some(vec!["keelson.dev/in-use".into()]);
    assert_eq!(validate_update(&wrong, &labelled), Report::default());

    let mut dying = controller(&json!({"clusterName": "other", "maxNodeCount": -1}));
    dying.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-11-15T00:00:00Z")).unwrap());
    assert_eq!(validate_update(&wrong, &dying), Report::default());
}

fn named(name: &str, patch: &Value) -> NodeSet {
    let mut nodeset = nodeset(patch);
    nodeset.metadata.name = Some(name.to_owned());
    nodeset
}

fn with_hostname(name: &str, hostname: &str, replicas: i32) -> NodeSet {
    named(
        name,
        &json!({ "replicas": replicas, "template": { "spec": { "hostname": hostname } } }),
    )
}

#[rstest]
#[case::apart(with_hostname("a", "x-", 3), with_hostname("b", "y-", 3), false)]
#[case::same_prefix(with_hostname("a", "x-", 3), with_hostname("b", "x-", 3), true)]
#[case::same_slurm_name(with_hostname("a", "x-", 3), with_hostname("b", "x", 3), true)]
#[case::ordinals_meet(with_hostname("a", "x-", 11), with_hostname("b", "x-1", 1), true)]
#[case::ordinals_do_not_meet_yet(with_hostname("a", "x-", 10), with_hostname("b", "x-1", 1), false)]
#[case::ordinals_meet_the_other_way(with_hostname("a", "x-1", 1), with_hostname("b", "x-", 11), true)]
#[case::name_is_the_prefix(named("x", &json!({})), with_hostname("b", "x-", 1), true)]
#[case::another_cluster(named("a", &json!({"controllerRef": {"name": "c2"}, "template": {"spec": {"hostname": "x-"}}})),
    with_hostname("b", "x-", 3), false)]
#[case::itself(with_hostname("a", "x-", 3), with_hostname("a", "x-", 3), false)]
fn nodesets_of_one_cluster_share_its_names(
    #[case] one: NodeSet,
    #[case] other: NodeSet,
    #[case] clash: bool,
) {
    assert_eq!(!conflicts(&one, [&other]).is_valid(), clash);
}
