use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use keelson_api::{
    Controller, NodeSet, SlurmCluster,
    slurmcluster::Phase,
    well_known::{annotation, condition, reason},
};
use keelson_runtime::{
    apply::{self, Desired},
    optional_kind::Installed,
};
use pretty_assertions::assert_eq;
use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    apply::Applied,
    build::{self, Built},
    observe::{Live, Observed},
    status,
};
use crate::{conditions::tests::shown, fingerprints::HashKey, problem::Problem, teardown::Teardown};

fn object<K: DeserializeOwned>(
    api_version: &str,
    kind: &str,
    name: &str,
    spec: &Value,
    status: &Value,
) -> Arc<K> {
    let object = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": { "name": name, "namespace": "hpc", "uid": format!("uid-{name}"), "generation": 1 },
        "spec": spec, "status": status,
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

pub fn cluster(spec: &Value) -> Arc<SlurmCluster> {
    object("keelson.dev/v1alpha1", "SlurmCluster", "slurm", spec, &json!({}))
}

fn nodeset(name: &str, hostname: &str, status: &Value) -> Arc<NodeSet> {
    let spec =
        json!({ "controllerRef": { "name": "slurm" }, "template": { "spec": { "hostname": hostname } } });
    object("slinky.slurm.net/v1beta1", "NodeSet", name, &spec, status)
}

fn ready(message: &str) -> Value {
    let of = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": "AsSpecified", "message": message,
                "observedGeneration": 1, "lastTransitionTime": "2026-11-19T00:00:00Z" })
    };
    json!([
        of("Ready", "True"),
        of("Progressing", "False"),
        of("Degraded", "False")
    ])
}

pub fn observed(cluster: Arc<SlurmCluster>) -> Observed {
    let password = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "slurm-mariadb" },
                           "data": { "password": "cHc=" } });
    Observed {
        cluster,
        password: Some(Arc::new(serde_json::from_value(password).unwrap())),
        hash_key: Some(HashKey::for_tests()),
        file_sources: BTreeMap::new(),
        claims: BTreeMap::new(),
        config_files: None,
        files: None,
        mariadb_operator: Installed::Unknown,
        live: Live::default(),
    }
}

fn built(spec: &Value) -> Result<Built, Problem> {
    build::build(&observed(cluster(spec)))
}

fn computed(observed: &Observed, live: &Live) -> keelson_api::SlurmClusterStatus {
    let built = build::build(observed);
    status::compute(
        observed,
        live,
        built.as_ref(),
        &Applied::default(),
        &Teardown::Not,
        Timestamp::UNIX_EPOCH,
    )
}

#[test]
fn the_database_of_ten_lines() {
    let built = built(
        &json!({ "accounting": {}, "images": { "registry": "reg.example.com/slurm", "pullPolicy": "Always",
        "pullSecrets": [{ "name": "pull" }] } }),
    )
    .unwrap();
    let database = built.database.unwrap();
    insta::assert_json_snapshot!(json!({
        "service": database.service.value,
        "statefulSet": database.stateful_set.value,
    }));
}

#[test]
fn mariadb_operator_gets_one_object_if_it_is_there() {
    let spec = json!({ "accounting": { "database": { "mariadbOperator": {
        "storage": "20Gi", "spec": { "replicas": 3, "galera": { "enabled": true } } } } } });
    let mut observed = observed(cluster(&spec));
    observed.mariadb_operator = Installed::No;
    let problem = build::build(&observed).unwrap_err();
    assert_eq!(problem.reason, reason::REFERENCE_MISSING);
    assert!(
        problem.message.contains("install mariadb-operator"),
        "{}",
        problem.message
    );
    observed.mariadb_operator = Installed::Yes;
    let built = build::build(&observed).unwrap();
    assert!(built.database.is_none());
    insta::assert_json_snapshot!(built.operated.unwrap().value);
}

#[test]
fn children_have_the_cluster_as_their_owner() {
    let built = built(&json!({ "nodeSets": { "cpu": {} } })).unwrap();
    let owner = &built.nodesets[0].value["metadata"]["ownerReferences"][0];
    assert_eq!(owner["kind"], "SlurmCluster");
    assert_eq!(owner["controller"], json!(true));
    assert!(built.database.is_none() && built.accounting.is_none());
}

#[test]
fn a_claim_for_one_node_is_refused_for_pods_on_several() {
    let spec = json!({ "login": { "users": {} }, "nodeSets": { "cpu": { "replicas": 2 } },
                       "storage": { "home": { "claim": "home" } } });
    let mut observed = observed(cluster(&spec));
    let claim = |mode: &str| {
        let claim = json!({ "metadata": { "name": "home" }, "spec": { "accessModes": [mode] } });
        Arc::new(serde_json::from_value(claim).unwrap())
    };
    observed.claims.insert("home".into(), claim("ReadWriteOnce"));
    let problem = build::build(&observed).unwrap_err();
    assert_eq!(problem.reason, reason::INVALID_SPEC);
    assert_eq!(
        problem.message,
        "spec.storage.home: claim home allows ReadWriteOnce, but pods on several nodes mount it: use a claim that allows \
         ReadWriteMany"
    );
    observed.claims.insert("home".into(), claim("ReadWriteMany"));
    assert!(build::build(&observed).is_ok());
}

#[test]
fn a_file_rolls_out_by_the_hash_of_its_content() {
    let hash = |content: &str, update: &str| {
        let spec = json!({ "nodeSets": { "cpu": {} }, "files": { "/etc/motd": { "content": content, "update": update } } });
        let built = built(&spec).unwrap();
        built.nodesets[0].value["spec"]["template"]["metadata"]["annotations"]["keelson.dev/files-hash"]
            .clone()
    };
    assert!(hash("a", "RollOut").is_string());
    assert_ne!(hash("a", "RollOut"), hash("b", "RollOut"));
    assert_eq!(hash("a", "Live"), Value::Null);
}

#[test]
fn a_missing_config_map_is_named_with_the_key_it_needs() {
    let spec = json!({ "nodeSets": { "cpu": {} },
        "files": { "/etc/motd": { "configMapKeyRef": { "name": "motd", "key": "text" } } } });
    let problem = built(&spec).unwrap_err();
    assert_eq!(
        problem.message,
        "ConfigMap motd does not exist: create it with the key \"text\", which spec.files[/etc/motd] names"
    );
}

#[test]
fn files_from_config_maps_count_towards_the_size_of_their_copy() {
    let spec = json!({ "files": { "/etc/a": { "content": "a".repeat(600_000) },
        "/etc/b": { "configMapKeyRef": { "name": "motd", "key": "text" } } } });
    let mut observed = observed(cluster(&spec));
    let motd = json!({ "metadata": { "name": "motd" }, "data": { "text": "b".repeat(600_000) } });
    let motd = Arc::new(serde_json::from_value(motd).unwrap());
    observed.file_sources.insert("motd".into(), motd);
    let problem = build::build(&observed).unwrap_err();
    assert_eq!(problem.reason, reason::INVALID_SPEC);
    assert_eq!(
        problem.message,
        "spec.files: are 1200000 bytes in total, and one ConfigMap holds at most 1048576; put large files into the images or \
         on a volume of spec.storage"
    );
}

#[test]
fn a_field_of_the_wrong_type_is_named_as_the_user_wrote_it() {
    let problem = built(&json!({ "nodeSets": { "cpu": { "replicas": "two" } } })).unwrap_err();
    assert!(
        problem.message.starts_with("spec.nodeSets.cpu.replicas: "),
        "{}",
        problem.message
    );
}

#[test]
fn the_first_component_that_is_not_ready_is_the_headline() {
    let observed = observed(cluster(&json!({ "nodeSets": { "cpu": {} } })));
    let status = computed(&observed, &Live::default());
    assert_eq!(status.phase, Some(Phase::Creating));
    assert_eq!(
        shown(&status.conditions, condition::READY),
        [
            "False",
            reason::COMPONENT_NOT_READY,
            "Controller slurm: it does not exist yet; for details: kubectl describe controller slurm (2 more not ready)"
        ]
    );
    let names: Vec<(&str, &str, bool)> = status
        .components
        .iter()
        .map(|row| (row.kind.as_str(), row.name.as_str(), row.ready))
        .collect();
    assert_eq!(
        names,
        [
            ("Controller", "slurm", false),
            ("RestApi", "slurm", false),
            ("NodeSet", "slurm-worker-cpu", false)
        ]
    );
}

#[test]
fn nodes_are_counted_by_partition_also_those_of_nodesets_of_the_users_own() {
    let spec = json!({ "nodeSets": { "cpu": {} },
        "partitions": { "all": { "nodeSets": ["ALL"] }, "cpu-only": { "nodeSets": ["cpu"] } } });
    let observed = observed(cluster(&spec));
    let counts = |idle: i32, allocated: i32| json!({ "desired": 3, "readyReplicas": 3, "slurmIdle": idle, "slurmAllocated": allocated, "conditions": ready("") });
    let controller: Arc<Controller> = object(
        "slinky.slurm.net/v1beta1",
        "Controller",
        "slurm",
        &json!({}),
        &json!({ "conditions": ready(""), "slurmVersion": "26.05.1" }),
    );
    let live = Live {
        controller: Some(controller),
        restapi: Some(object(
            "slinky.slurm.net/v1beta1",
            "RestApi",
            "slurm",
            &json!({ "controllerRef": { "name": "slurm" } }),
            &json!({ "conditions": ready("") }),
        )),
        nodesets: vec![
            nodeset("slurm-worker-cpu", "cpu-", &counts(2, 1)),
            nodeset("extra", "extra-", &counts(0, 3)),
        ],
        ..Live::default()
    };
    let status = computed(&observed, &live);
    assert_eq!(status.phase, Some(Phase::Ready));
    assert_eq!(status.version.as_deref(), Some("26.05.1"));
    let nodes = status.nodes.unwrap();
    assert_eq!((nodes.desired, nodes.idle, nodes.allocated), (6, 2, 4));
    let partitions: Vec<(&str, i32, i32)> = status
        .partitions
        .iter()
        .map(|row| (row.name.as_str(), row.nodes.desired, row.nodes.allocated))
        .collect();
    assert_eq!(partitions, [("all", 6, 4), ("cpu-only", 3, 1)]);
    assert_eq!(shown(&status.conditions, condition::READY)[0], "True");
}

#[test]
fn a_component_that_gets_sick_is_named_with_its_own_words() {
    let observed = observed(cluster(&json!({})));
    let mut conditions = ready("");
    conditions[2]["status"] = json!("True");
    conditions[2]["reason"] = json!("ConfigRefused");
    conditions[2]["message"] = json!("slurmctld refused it");
    let live = Live {
        controller: Some(object(
            "slinky.slurm.net/v1beta1",
            "Controller",
            "slurm",
            &json!({}),
            &json!({ "conditions": conditions }),
        )),
        ..Live::default()
    };
    let status = computed(&observed, &live);
    assert_eq!(
        shown(&status.conditions, condition::DEGRADED),
        [
            "True",
            reason::COMPONENT_DEGRADED,
            "Controller slurm: slurmctld refused it; for details: kubectl describe controller slurm"
        ]
    );
}

/// Returns what the SlurmCluster says about a Controller and a NodeSet `cpu` that someone deleted.
fn with_deleted_children(spec: &Value, of_cluster: &Value, owner: &str) -> keelson_api::SlurmClusterStatus {
    let mut cluster = cluster(spec).as_ref().clone();
    let deletion = serde_json::from_value(of_cluster.clone()).unwrap();
    cluster.metadata.deletion_timestamp = deletion;
    let mut conditions = ready("");
    let waiting = json!({ "type": "Terminating", "status": "True", "reason": "InUse", "message": "waiting for NodeSet a",
                          "observedGeneration": 1, "lastTransitionTime": "2026-11-19T00:00:00Z" });
    conditions.as_array_mut().unwrap().push(waiting);
    let deleted = |value: Value| {
        let mut object = value;
        object["metadata"]["deletionTimestamp"] = json!("2026-11-19T00:00:00Z");
        object["metadata"]["ownerReferences"] = json!([{ "apiVersion": "keelson.dev/v1alpha1", "kind": "SlurmCluster",
            "name": "slurm", "uid": owner, "controller": true }]);
        object
    };
    let status = json!({ "conditions": conditions });
    let controller: Arc<Controller> = object(
        "slinky.slurm.net/v1beta1",
        "Controller",
        "slurm",
        &json!({}),
        &status,
    );
    let controller = deleted(serde_json::to_value(controller.as_ref()).unwrap());
    let status = json!({ "conditions": ready("") });
    let nodeset =
        deleted(serde_json::to_value(nodeset("slurm-worker-cpu", "cpu-", &status).as_ref()).unwrap());
    let restapi = object(
        "slinky.slurm.net/v1beta1",
        "RestApi",
        "slurm",
        &json!({ "controllerRef": { "name": "slurm" } }),
        &status,
    );
    let live = Live {
        controller: Some(Arc::new(serde_json::from_value(controller).unwrap())),
        restapi: Some(restapi),
        nodesets: vec![Arc::new(serde_json::from_value(nodeset).unwrap())],
        ..Live::default()
    };
    computed(&observed(Arc::new(cluster)), &live)
}

#[test]
fn a_child_that_someone_deletes_is_degraded() {
    let spec = json!({ "nodeSets": { "cpu": {} } });
    let status = with_deleted_children(&spec, &Value::Null, "uid-slurm");
    assert_eq!(
        shown(&status.conditions, condition::DEGRADED),
        [
            "True",
            reason::COMPONENT_DEGRADED,
            "Controller slurm: it is being deleted and will be created again once it is gone; until then, changes are not \
             applied to it (waiting for NodeSet a); for details: kubectl describe controller slurm"
        ]
    );
    assert_eq!(shown(&status.conditions, condition::READY)[0], "True");
    let rows = |status: &keelson_api::SlurmClusterStatus| -> Vec<(bool, Option<String>)> {
        let rows = status.components.iter();
        rows.map(|row| (row.ready, row.reason.clone())).collect()
    };
    let deleted = (true, Some(reason::BEING_DELETED.to_owned()));
    let well = (true, Some(reason::AS_SPECIFIED.to_owned()));
    assert_eq!(rows(&status), [deleted.clone(), well.clone(), deleted.clone()]);

    let without_workers = with_deleted_children(&json!({}), &Value::Null, "uid-slurm");
    assert_eq!(rows(&without_workers), [deleted, well.clone(), well.clone()]);
    let of_the_users_own = with_deleted_children(&spec, &Value::Null, "another");
    assert_eq!(rows(&of_the_users_own)[2], well);
    let with_the_cluster = with_deleted_children(&spec, &json!("2026-11-19T00:00:00Z"), "uid-slurm");
    assert_eq!(rows(&with_the_cluster), [well.clone(), well.clone(), well]);
}

/// Returns what a SlurmCluster consists of whose workers `gpu` lost their GPUs, while their NodeSet is in this state.
fn without_gpus(spec: &Value, nodeset: impl FnOnce(&Built) -> Option<Value>) -> Built {
    let gpu = json!({ "resource": "nvidia.com/gpu", "count": 8 });
    let before = built(&json!({ "nodeSets": { "cpu": {}, "gpu": { "gpu": gpu } } })).unwrap();
    let mut observed = observed(cluster(spec));
    let stored = |value: &Value| {
        let mut object = value.clone();
        object["metadata"]["uid"] = json!("uid");
        object
    };
    let config_files = stored(&before.config_files.as_ref().unwrap().value);
    observed.config_files = Some(Arc::new(serde_json::from_value(config_files).unwrap()));
    let controller = stored(&before.controller.value);
    observed.live.controller = Some(Arc::new(serde_json::from_value(controller).unwrap()));
    let nodesets = nodeset(&before).into_iter();
    observed.live.nodesets = nodesets
        .map(|nodeset| Arc::new(serde_json::from_value(nodeset).unwrap()))
        .collect();
    build::build(&observed).unwrap()
}

fn gres_conf(built: &Built) -> Option<&str> {
    built.config_files.as_ref()?.value["data"]["gres.conf"].as_str()
}

/// Returns the NodeSet `gpu` as the API server has it after this was applied.
fn stored_gpu_nodeset(built: &Built, status: &Value) -> Value {
    let name = |nodeset: &&Desired<NodeSet>| nodeset.key().name == "slurm-worker-gpu";
    let desired = built.nodesets.iter().find(name).unwrap();
    let mut stored = desired.value.clone();
    stored["metadata"]["annotations"][annotation::APPLIED_HASH] = json!(apply::hash(&desired.value));
    stored["metadata"]["generation"] = json!(2);
    stored["status"] = status.clone();
    stored
}

#[rstest]
#[case::observed(2, 2, false)]
#[case::some_are_old(2, 1, true)]
#[case::nobody_looked_at_it_yet(1, 2, true)]
fn removed_gpus_stay_until_the_workers_are_replaced(
    #[case] observed_generation: i64,
    #[case] updated: i32,
    #[case] stays: bool,
) {
    let spec = json!({ "nodeSets": { "cpu": {}, "gpu": {} } });
    let status =
        json!({ "observedGeneration": observed_generation, "replicas": 2, "updatedReplicas": updated });
    let after = built(&spec).unwrap();
    let with_gpus = without_gpus(&spec, |before| Some(stored_gpu_nodeset(before, &status)));
    assert!(gres_conf(&with_gpus).is_some(), "its template still has GPUs");
    let applied = without_gpus(&spec, |_| Some(stored_gpu_nodeset(&after, &status)));
    assert_eq!(gres_conf(&applied).is_some(), stays);
}

#[test]
fn removed_gpu_workers_stay_in_gres_conf_until_they_are_gone() {
    let spec = json!({ "nodeSets": { "cpu": {} } });
    let status = json!({ "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2 });
    let draining = without_gpus(&spec, |before| {
        let mut nodeset = stored_gpu_nodeset(before, &status);
        nodeset["metadata"]["deletionTimestamp"] = json!("2026-11-19T00:00:00Z");
        Some(nodeset)
    });
    assert_eq!(
        gres_conf(&draining),
        Some("NodeName=gpu-[0-65535] AutoDetect=nvidia\n")
    );
    let gone = without_gpus(&spec, |_| None);
    assert_eq!(gres_conf(&gone), None);
    let conf = gone.controller.value["spec"]["extraConf"].as_str().unwrap();
    assert!(
        conf.contains("GresTypes=gpu\nAccountingStorageTRES=gres/gpu\n"),
        "{conf}"
    );
}

#[test]
fn renamed_gpu_workers_keep_their_line_until_they_are_replaced() {
    let gpu = json!({ "resource": "nvidia.com/gpu", "count": 8 });
    let spec = json!({ "nodeSets": { "cpu": {}, "gpu": {
        "gpu": gpu, "template": { "spec": { "hostname": "dgx-" } } } } });
    let names = |status: Value| {
        let after = built(&spec).unwrap();
        let built = without_gpus(&spec, |_| Some(stored_gpu_nodeset(&after, &status)));
        let lines = gres_conf(&built).unwrap().lines().map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    let (old, new) = (
        "NodeName=gpu-[0-65535] AutoDetect=nvidia",
        "NodeName=dgx-[0-65535] AutoDetect=nvidia",
    );
    let of = |updated: i32| json!({ "observedGeneration": 2, "replicas": 2, "updatedReplicas": updated });
    assert_eq!(names(of(1)), [new, old]);
    assert_eq!(names(of(2)), [new]);
}

#[test]
fn an_invalid_spec_blocks_with_every_field() {
    let observed = observed(cluster(
        &json!({ "partitions": { "p": { "nodeSets": ["gone"] } } }),
    ));
    let status = computed(&observed, &Live::default());
    let [holds, why, message] = shown(&status.conditions, condition::DEGRADED);
    assert_eq!((holds, why), ("True", reason::INVALID_SPEC));
    assert!(message.contains("spec.partitions.p.nodeSets[0]"), "{message}");
}

#[test]
fn a_failed_dump_is_told_and_holds_nothing_up() {
    let spec = json!({ "accounting": { "database": { "embedded": { "dump": { "schedule": "@daily", "claim": "dumps" } } } } });
    let observed = observed(cluster(&spec));
    let mut live = Live::default();
    live.database.dump = Some(object(
        "batch/v1",
        "CronJob",
        "slurm-mariadb-dump",
        &json!({ "schedule": "@daily", "jobTemplate": {} }),
        &json!({ "lastScheduleTime": "2026-11-19T00:00:00Z" }),
    ));
    let status = computed(&observed, &live);
    let row = status.components.last().unwrap();
    assert_eq!(
        (row.kind.as_str(), row.ready, row.reason.as_deref()),
        ("CronJob", true, Some(reason::DUMP_FAILED))
    );
    assert_eq!(
        shown(&status.conditions, condition::DEGRADED),
        [
            "True",
            reason::COMPONENT_DEGRADED,
            "CronJob slurm-mariadb-dump: the last dump of the database failed; for details: kubectl describe cronjob \
             slurm-mariadb-dump"
        ]
    );
}
