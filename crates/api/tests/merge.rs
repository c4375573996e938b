//! Tests every rule for merging the user's pods, containers and Services into ours.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use k8s_openapi::api::core::v1::ServiceSpec;
use keelson_api::merge::{merge_container, merge_pod_spec, merge_service_spec};
use keelson_api::overrides::{RawObject, ServiceOverride};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn our_container() -> Value {
    json!({
        "name": "slurmd",
        "image": "ours:1",
        "args": ["-Z"],
        "command": ["slurmd"],
        "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
        "ports": [{ "containerPort": 6818, "name": "slurmd" }],
        "volumeMounts": [{ "mountPath": "/etc/slurm", "name": "slurm-etc", "readOnly": true }],
        "securityContext": { "privileged": true, "runAsUser": 401, "capabilities": { "add": ["BPF", "SYS_ADMIN"] } },
        "livenessProbe": { "httpGet": { "path": "/livez", "port": "slurmd" }, "failureThreshold": 6, "periodSeconds": 10 },
        "lifecycle": { "preStop": { "exec": { "command": ["scontrol"] } } },
    })
}

/// The value at `pointer` in our container after the user's override.
#[rstest]
#[case::absent_is_ours(json!({}), "/image", json!("ours:1"))]
#[case::image(json!({"image": "theirs:2"}), "/image", json!("theirs:2"))]
#[case::name(json!({"name": "worker"}), "/name", json!("worker"))]
#[case::args_behind_ours(json!({"args": ["-vv"]}), "/args", json!(["-Z", "-vv"]))]
#[case::no_args_change_nothing(json!({"args": []}), "/args", json!(["-Z"]))]
#[case::null_args_delete_ours(json!({"args": null}), "/args", Value::Null)]
#[case::command_is_replaced(json!({"command": ["bash"]}), "/command", json!(["bash"]))]
#[case::empty_command_replaces(json!({"command": []}), "/command", json!([]))]
#[case::false_counts(json!({"securityContext": {"privileged": false}}), "/securityContext/privileged", json!(false))]
#[case::zero_counts(json!({"securityContext": {"runAsUser": 0}}), "/securityContext/runAsUser", json!(0))]
#[case::empty_text_counts(json!({"image": ""}), "/image", json!(""))]
#[case::siblings_stay(json!({"securityContext": {"privileged": false}}), "/securityContext/runAsUser", json!(401))]
#[case::empty_map_changes_nothing(json!({"securityContext": {}}), "/securityContext/privileged", json!(true))]
#[case::null_deletes_a_map(json!({"securityContext": null}), "/securityContext", Value::Null)]
#[case::null_deletes_a_leaf(json!({"securityContext": {"privileged": null}}), "/securityContext",
    json!({"runAsUser": 401, "capabilities": {"add": ["BPF", "SYS_ADMIN"]}}))]
#[case::capabilities_are_atomic(json!({"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}),
    "/securityContext/capabilities/add", json!(["NET_ADMIN"]))]
#[case::no_capabilities(json!({"securityContext": {"capabilities": {"add": []}}}),
    "/securityContext/capabilities/add", json!([]))]
#[case::env_by_name(json!({"env": [{"name": "B", "value": "9"}, {"name": "C", "value": "3"}]}), "/env",
    json!([{"name": "A", "value": "1"}, {"name": "B", "value": "9"}, {"name": "C", "value": "3"}]))]
#[case::env_empty_value(json!({"env": [{"name": "A", "value": ""}]}), "/env/0", json!({"name": "A", "value": ""}))]
#[case::no_env_adds_nothing(json!({"env": []}), "/env",
    json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]))]
#[case::null_env_deletes_ours(json!({"env": null}), "/env", Value::Null)]
#[case::env_value_from_ousts_value(json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}),
    "/env/0", json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}))]
#[case::ports_by_number(json!({"ports": [{"containerPort": 6818, "hostPort": 1}, {"containerPort": 22}]}), "/ports",
    json!([{"containerPort": 6818, "name": "slurmd", "hostPort": 1}, {"containerPort": 22}]))]
#[case::two_new_ports_of_one_number(
    json!({"ports": [{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}]}), "/ports",
    json!([{"containerPort": 6818, "name": "slurmd"}, {"containerPort": 53, "protocol": "TCP"},
        {"containerPort": 53, "protocol": "UDP"}]))]
#[case::mounts_by_path(json!({"volumeMounts": [{"mountPath": "/etc/slurm", "name": "mine"}]}), "/volumeMounts",
    json!([{"mountPath": "/etc/slurm", "name": "mine", "readOnly": true}]))]
#[case::same_volume_elsewhere(json!({"volumeMounts": [{"mountPath": "/x", "name": "slurm-etc"}]}), "/volumeMounts",
    json!([{"mountPath": "/etc/slurm", "name": "slurm-etc", "readOnly": true}, {"mountPath": "/x", "name": "slurm-etc"}]))]
#[case::probe_fields_merge(json!({"livenessProbe": {"failureThreshold": 60}}), "/livenessProbe",
    json!({"httpGet": {"path": "/livez", "port": "slurmd"}, "failureThreshold": 60, "periodSeconds": 10}))]
#[case::probe_handler_is_replaced(json!({"livenessProbe": {"tcpSocket": {"port": 1}}}), "/livenessProbe",
    json!({"tcpSocket": {"port": 1}, "failureThreshold": 6, "periodSeconds": 10}))]
#[case::probe_handler_of_the_same_kind_is_replaced_too(json!({"livenessProbe": {"httpGet": {"port": 1}}}),
    "/livenessProbe/httpGet", json!({"port": 1}))]
#[case::probe_off(json!({"livenessProbe": null}), "/livenessProbe", Value::Null)]
#[case::probe_new(json!({"startupProbe": {"exec": {"command": ["true"]}}}), "/startupProbe",
    json!({"exec": {"command": ["true"]}}))]
#[case::pre_stop_of_another_kind(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 3}}}}), "/lifecycle/preStop",
    json!({"sleep": {"seconds": 3}}))]
#[case::env_from_is_atomic(json!({"envFrom": [{"prefix": "X"}]}), "/envFrom", json!([{"prefix": "X"}]))]
#[case::unknown_fields_pass(json!({"fieldOf2030": {"deep": [1, {"a": false}]}}), "/fieldOf2030",
    json!({"deep": [1, {"a": false}]}))]
#[case::new_maps_without_nulls(json!({"resources": {"limits": {"cpu": 2}, "requests": null}}), "/resources",
    json!({"limits": {"cpu": 2}}))]
#[case::patch_delete_takes_an_element_out(json!({"env": [{"name": "A", "$patch": "delete"}]}), "/env",
    json!([{"name": "B", "value": "2"}]))]
#[case::patch_delete_takes_a_field_out(json!({"livenessProbe": {"$patch": "delete"}}), "/livenessProbe", Value::Null)]
#[case::patch_delete_of_nothing(json!({"startupProbe": {"$patch": "delete"}}), "/startupProbe", Value::Null)]
#[case::patch_replace_starts_afresh(json!({"securityContext": {"$patch": "replace", "runAsUser": 7}}), "/securityContext",
    json!({"runAsUser": 7}))]
#[case::a_wrong_type_is_passed_on(json!({"env": {"A": "1"}}), "/env/A", json!("1"))]
#[case::an_element_without_a_key_is_passed_on(json!({"env": [{"value": "x"}]}), "/env/2", json!({"value": "x"}))]
fn containers(#[case] user: Value, #[case] pointer: &str, #[case] expected: Value) {
    let user: RawObject = read(user);
    let merged = merge_container(our_container(), Some(&user));
    assert_eq!(merged.pointer(pointer).cloned().unwrap_or_default(), expected);
}

fn our_pod() -> Value {
    json!({
        "hostname": "slinky-",
        "enableServiceLinks": false,
        "containers": [{ "name": "slurmd", "image": "ours:1", "args": ["-Z"] }],
        "initContainers": [{ "name": "logfile", "image": "ours:1" }],
        "volumes": [
            { "name": "slurm-etc", "projected": { "defaultMode": 384, "sources": [{ "secret": { "name": "key" } }] } },
            { "name": "slurm-logfile", "emptyDir": { "medium": "Memory" } },
        ],
        "tolerations": [{ "key": "ours" }],
        "imagePullSecrets": [{ "name": "ours" }],
        "dnsConfig": { "searches": ["ours"] },
        "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{ "topologyKey": "h" }] } },
        "securityContext": { "runAsNonRoot": true, "fsGroup": 401 },
        "topologySpreadConstraints": [{ "topologyKey": "zone", "maxSkew": 1 }],
    })
}

/// The value at `pointer` in our pod after the user's override.
#[rstest]
#[case::containers_are_added_behind_ours(json!({"containers": [{"name": "x"}]}), "/containers",
    json!([{"name": "slurmd", "image": "ours:1", "args": ["-Z"]}, {"name": "x"}]))]
#[case::a_container_of_our_name_merges(json!({"containers": [{"name": "slurmd", "args": ["-v"], "tty": false}]}),
    "/containers", json!([{"name": "slurmd", "image": "ours:1", "args": ["-Z", "-v"], "tty": false}]))]
#[case::no_containers_change_nothing(json!({"containers": []}), "/containers/0/name", json!("slurmd"))]
#[case::init_containers_are_added(json!({"initContainers": [{"name": "a"}, {"name": "b"}]}), "/initContainers",
    json!([{"name": "logfile", "image": "ours:1"}, {"name": "a"}, {"name": "b"}]))]
#[case::an_init_container_of_our_name_merges(json!({"initContainers": [{"name": "logfile", "image": "i"}]}),
    "/initContainers", json!([{"name": "logfile", "image": "i"}]))]
#[case::volumes_by_name(json!({"volumes": [{"name": "slurm-logfile", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "x"}]}),
    "/volumes/1", json!({"name": "slurm-logfile", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}))]
#[case::a_volume_has_one_source(json!({"volumes": [{"name": "slurm-logfile", "hostPath": {"path": "/l"}}]}),
    "/volumes/1", json!({"name": "slurm-logfile", "hostPath": {"path": "/l"}}))]
#[case::projected_sources_are_atomic(json!({"volumes": [{"name": "slurm-etc", "projected": {"sources": []}}]}),
    "/volumes/0/projected", json!({"defaultMode": 384, "sources": []}))]
#[case::tolerations_are_atomic(json!({"tolerations": [{"key": "theirs"}]}), "/tolerations", json!([{"key": "theirs"}]))]
#[case::no_tolerations(json!({"tolerations": []}), "/tolerations", json!([]))]
#[case::pull_secrets_by_name(json!({"imagePullSecrets": [{"name": "ours"}, {"name": "theirs"}]}), "/imagePullSecrets",
    json!([{"name": "ours"}, {"name": "theirs"}]))]
#[case::searches_are_atomic(json!({"dnsConfig": {"searches": ["theirs"]}}), "/dnsConfig/searches", json!(["theirs"]))]
#[case::affinity_terms_are_atomic(
    json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}}),
    "/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution", json!([]))]
#[case::other_affinity_keeps_ours(json!({"affinity": {"nodeAffinity": {}}}),
    "/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution", json!([{"topologyKey": "h"}]))]
#[case::spread_by_topology_key(json!({"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 0},
    {"topologyKey": "host"}]}), "/topologySpreadConstraints",
    json!([{"topologyKey": "zone", "maxSkew": 0}, {"topologyKey": "host"}]))]
#[case::host_aliases_by_ip(json!({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]}), "/hostAliases",
    json!([{"ip": "10.0.0.1", "hostnames": ["a"]}]))]
#[case::root_may_run(json!({"securityContext": {"runAsNonRoot": false}}), "/securityContext",
    json!({"runAsNonRoot": false, "fsGroup": 401}))]
#[case::true_over_false(json!({"enableServiceLinks": true}), "/enableServiceLinks", json!(true))]
#[case::scalar(json!({"hostname": "gpu-"}), "/hostname", json!("gpu-"))]
#[case::new_field(json!({"runtimeClassName": "nvidia"}), "/runtimeClassName", json!("nvidia"))]
#[case::unknown_field(json!({"fieldOf2030": []}), "/fieldOf2030", json!([]))]
fn pods(#[case] user: Value, #[case] pointer: &str, #[case] expected: Value) {
    let merged = merge_pod_spec(our_pod(), Some(&read(user)));
    assert_eq!(merged.pointer(pointer).cloned().unwrap_or_default(), expected);
}

#[rstest]
#[case::type_is_taken(json!({"type": "LoadBalancer"}), "/type", json!("LoadBalancer"))]
#[case::external_ips_never(json!({"externalIPs": ["1.2.3.4"]}), "/externalIPs", Value::Null)]
#[case::our_selector_stands(json!({"selector": {"app": "evil", "zone": "a"}}), "/selector",
    json!({"app": "slurmctld", "zone": "a"}))]
#[case::our_selector_cannot_be_deleted(json!({"selector": null}), "/selector", json!({"app": "slurmctld"}))]
#[case::ports_are_added(json!({"ports": [{"name": "x", "port": 1}]}), "/ports",
    json!([{"name": "slurmctld", "port": 6817, "targetPort": "slurmctld"}, {"name": "x", "port": 1}]))]
#[case::a_port_of_our_name_changes_ours(json!({"ports": [{"name": "slurmctld", "nodePort": 30000, "port": 6817}]}), "/ports",
    json!([{"name": "slurmctld", "port": 6817, "targetPort": "slurmctld", "nodePort": 30000}]))]
#[case::a_port_of_our_number_changes_ours(json!({"ports": [{"port": 6817, "appProtocol": "tcp"}]}), "/ports",
    json!([{"name": "slurmctld", "port": 6817, "targetPort": "slurmctld", "appProtocol": "tcp"}]))]
#[case::ranges_are_atomic(json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}), "/loadBalancerSourceRanges",
    json!(["10.0.0.0/8"]))]
fn services(#[case] user: Value, #[case] pointer: &str, #[case] expected: Value) {
    let ours: ServiceSpec = read(json!({
        "selector": { "app": "slurmctld" },
        "ports": [{ "name": "slurmctld", "port": 6817, "targetPort": "slurmctld" }],
    }));
    let user = ServiceOverride {
        spec: Some(read(user)),
        ..ServiceOverride::default()
    };
    let merged = merge_service_spec(&ours, Some(&user)).unwrap();
    assert_eq!(merged.pointer(pointer).cloned().unwrap_or_default(), expected);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            any_object(inner).prop_map(Value::Object),
        ]
    })
}

/// Generates objects from keys with a special meaning, so that the rules interact.
fn any_object(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = serde_json::Map<String, Value>> {
    let key = prop::sample::select(vec![
        "name",
        "value",
        "valueFrom",
        "env",
        "args",
        "ports",
        "containerPort",
        "containers",
        "volumes",
        "emptyDir",
        "livenessProbe",
        "httpGet",
        "exec",
        "lifecycle",
        "preStop",
        "securityContext",
        "$patch",
        "unknown",
    ]);
    prop::collection::vec((key, inner), 0..5).prop_map(|pairs| {
        pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    })
}

/// Collects every scalar whose path contains only maps.
fn scalars(prefix: &str, value: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter().filter(|(key, _)| !key.starts_with('$')) {
                scalars(&format!("{prefix}/{key}"), value, found);
            }
        }
        Value::Array(_) | Value::Null => {}
        scalar => found.push((prefix.to_owned(), scalar.clone())),
    }
}

proptest! {
    #[test]
    fn no_change_changes_nothing(ours in any_object(any_json())) {
        let ours = Value::Object(ours);
        prop_assert_eq!(merge_pod_spec(ours.clone(), Some(&RawObject::default())), ours);
    }

    #[test]
    fn every_written_scalar_is_used(ours in any_object(any_json()), user in any_object(any_json())) {
        let merged = merge_pod_spec(Value::Object(ours), Some(&RawObject(user.clone())));
        let mut written = Vec::new();
        scalars("", &Value::Object(user), &mut written);
        for (path, value) in written {
            prop_assert_eq!(merged.pointer(&path), Some(&value), "at {}", path);
        }
    }

    #[test]
    fn nulls_and_directives_never_reach_the_server(user in any_object(any_json())) {
        fn clean(value: &Value) -> bool {
            match value {
                Value::Null => false,
                Value::Object(map) => map.iter().all(|(key, value)| key != "$patch" && clean(value)),
                Value::Array(list) => list.iter().all(clean),
                _ => true,
            }
        }
        let merged = merge_pod_spec(json!({}), Some(&RawObject(user)));
        prop_assert!(clean(&merged), "{}", merged);
    }

    #[test]
    fn merging_twice_is_merging_once(user in any_object(any_json())) {
        let mut user = user;
        user.remove("containers");
        let once = merge_pod_spec(our_pod(), Some(&RawObject(user.clone())));
        let user_lists_no_new_elements = user.values().all(|value| !value.is_array());
        if user_lists_no_new_elements {
            prop_assert_eq!(merge_pod_spec(once.clone(), Some(&RawObject(user))), once);
        }
    }
}
