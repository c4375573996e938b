use pretty_assertions::assert_eq;
use rstest::rstest;
use serde_json::{Map, Value, json};

use super::*;

#[expect(clippy::needless_pass_by_value, reason = "callers write it in place")]
pub(super) fn cluster(spec: Value) -> SlurmCluster {
    serde_json::from_value(json!({
        "apiVersion": "keelson.dev/v1alpha1", "kind": "SlurmCluster",
        "metadata": { "name": "slurm", "namespace": "hpc" }, "spec": spec,
    }))
    .unwrap()
}

pub(super) fn built(spec: Value) -> Children {
    children(&cluster(spec), &Around::default()).unwrap_or_else(|report| panic!("{report}"))
}

fn refusals(spec: Value, around: &Around) -> Vec<String> {
    let report = children(&cluster(spec), around).unwrap_err();
    report.violations.iter().map(ToString::to_string).collect()
}

fn ten_lines() -> Value {
    json!({ "accounting": {}, "login": { "users": {} }, "nodeSets": { "cpu": { "replicas": 2 } } })
}

#[test]
fn ten_lines_name_everything_that_a_cluster_needs() {
    let children = built(ten_lines());
    let spec = json!({
        "controller": children.controller.spec,
        "accounting": children.accounting.as_ref().map(|child| &child.spec),
        "restapi": children.restapi.spec,
        "login": children.loginsets.iter().map(|child| (&child.name, &child.spec)).collect::<Vec<_>>(),
        "workers": children.nodesets.iter().map(|child| (&child.name, &child.spec)).collect::<Vec<_>>(),
        "generated": children.controller.annotations,
        "files": children.config_files,
    });
    insta::assert_json_snapshot!(spec);
}

#[test]
fn every_child_is_a_valid_object_of_its_kind() {
    let children = built(ten_lines());
    let report = crate::validate::validate(&children.controller.object("hpc").unwrap());
    assert!(report.is_valid(), "{report}");
    let report = crate::validate::validate(&children.accounting.unwrap().object("hpc").unwrap());
    assert!(report.is_valid(), "{report}");
    let report = crate::validate::validate(&children.restapi.object("hpc").unwrap());
    assert!(report.is_valid(), "{report}");
    let report = crate::validate::validate(&children.loginsets[0].object("hpc").unwrap());
    assert!(report.is_valid(), "{report}");
    let report = crate::validate::validate(&children.nodesets[0].object("hpc").unwrap());
    assert!(report.is_valid(), "{report}");
}

/// A value of the type that the schema asks for.
fn sample(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    if schema["x-kubernetes-int-or-string"] == json!(true) {
        return json!("25%");
    }
    match schema["type"].as_str() {
        Some("boolean") => json!(true),
        Some("integer") => json!(7),
        Some("array") => json!([sample(&schema["items"])]),
        Some("object") if schema["x-kubernetes-preserve-unknown-fields"] == json!(true) => {
            json!({ "marked": "yes" })
        }
        Some("object") if schema.get("additionalProperties").is_some() => {
            json!({ "key": sample(&schema["additionalProperties"]) })
        }
        Some("object") => {
            let properties = schema["properties"].as_object().cloned().unwrap_or_default();
            Value::Object(
                properties
                    .iter()
                    .map(|(name, property)| (name.clone(), sample(property)))
                    .collect(),
            )
        }
        _ => json!("text"),
    }
}

/// All fields below a schema that have no fields of their own, as paths.
fn leaves(above: &[String], schema: &Value, found: &mut Vec<(Vec<String>, Value)>) {
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    for (name, property) in properties {
        let path: Vec<String> = above.iter().cloned().chain([name]).collect();
        if property["properties"].is_object() {
            leaves(&path, &property, found);
        } else {
            found.push((path, sample(&property)));
        }
    }
}

fn nested(path: &[String], value: &Value) -> Value {
    path.iter().rev().fold(value.clone(), |inner, name| {
        Value::Object(Map::from_iter([(name.clone(), inner)]))
    })
}

/// The fields of a kind's spec, which a part of the SlurmCluster takes too.
fn fields_of(kind: &str) -> Vec<(Vec<String>, Value)> {
    let crds = crate::crds().unwrap();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    let version = serde_json::to_value(&crd.spec.versions[0]).unwrap();
    let mut found = Vec::new();
    leaves(
        &[],
        &version["schema"]["openAPIV3Schema"]["properties"]["spec"],
        &mut found,
    );
    found.retain(|(path, _)| path[0] != "controllerRef");
    assert!(found.len() > 5, "{kind} has only {} fields", found.len());
    found
}

#[rstest]
#[case("Controller", &["controller"])]
#[case("Accounting", &["accounting"])]
#[case("RestApi", &["restApi"])]
#[case("LoginSet", &["login", "users"])]
#[case("NodeSet", &["nodeSets", "cpu"])]
fn every_field_of_a_child_can_be_written_in_its_place(#[case] kind: &str, #[case] place: &[&str]) {
    let crds = crate::crds().unwrap();
    let crd = crds
        .iter()
        .find(|crd| crd.spec.names.kind == "SlurmCluster")
        .unwrap();
    let version = serde_json::to_value(&crd.spec.versions[0]).unwrap();
    let mut schema = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][place[0]];
    if place.len() == 2 {
        schema = &schema["additionalProperties"];
    }
    for (path, value) in fields_of(kind) {
        // The API server would prune a field that the schema lacks.
        let stored = path
            .iter()
            .fold(schema, |schema, name| &schema["properties"][name]);
        assert!(stored.is_object(), "{place:?} lacks {path:?}");
        assert!(
            stored.get("default").is_none(),
            "{place:?} {path:?} has a default"
        );

        let place: Vec<String> = place.iter().map(|name| (*name).to_owned()).collect();
        let full: Vec<String> = place.iter().chain(&path).cloned().collect();
        let children = match children(&cluster(nested(&full, &value)), &Around::default()) {
            Ok(children) => children,
            Err(report) => panic!("{full:?}: {report}"),
        };
        let spec = match kind {
            "Controller" => &children.controller.spec,
            "Accounting" => &children.accounting.as_ref().unwrap().spec,
            "RestApi" => &children.restapi.spec,
            "LoginSet" => &children.loginsets[0].spec,
            _ => &children.nodesets[0].spec,
        };
        let found = path.iter().fold(spec, |spec, name| &spec[name]);
        // Our lines follow the user's.
        let is_there = match (found.as_str(), value.as_str()) {
            (Some(found), Some(value)) => found.starts_with(value),
            _ => parts::over(found.clone(), value.clone()) == *found,
        };
        assert!(is_there, "{full:?}: {value} became {found}");
    }
}

#[test]
fn what_nobody_wrote_is_not_in_a_child_so_that_others_can_set_it() {
    let children = built(json!({ "nodeSets": { "cpu": {} } }));
    let workers = &children.nodesets[0].spec;
    assert!(workers.get("replicas").is_none());
    assert_eq!(children.accounting, None);
}

#[test]
fn partitions_become_lines_after_the_users() {
    let children = built(json!({
        "controller": { "extraConf": "SchedulerType=sched/backfill\n" },
        "nodeSets": { "cpu": {}, "gpu": {} },
        "partitions": {
            "main": { "nodeSets": ["gpu", "cpu"], "default": true },
            "gpu": { "nodeSets": ["gpu"], "config": "MaxTime=1-0 PriorityTier=10" },
        },
    }));
    assert_eq!(
        children.controller.spec["extraConf"],
        "SchedulerType=sched/backfill\n\
         PartitionName=gpu Nodes=gpu MaxTime=1-0 PriorityTier=10\n\
         PartitionName=main Nodes=cpu,gpu Default=YES"
    );
    let none = built(json!({ "nodeSets": { "cpu": {} }, "partitions": {} }));
    assert_eq!(none.controller.spec.get("extraConf"), None);
}

#[rstest]
#[case::by_hostname(json!({ "template": { "spec": { "hostname": "dgx-" } } }), "dgx")]
#[case::by_nodeset(json!({ "template": { "spec": { "hostname": "" } } }), "slurm-worker-gpu")]
#[case::by_nodeset_without_any(json!({ "template": { "spec": null } }), "slurm-worker-gpu")]
fn a_partition_has_the_slurm_names_of_its_nodesets(#[case] set: Value, #[case] name: &str) {
    for member in ["gpu", name] {
        let spec = json!({ "nodeSets": { "cpu": {}, "gpu": set }, "partitions": { "p": { "nodeSets": ["cpu", member] } } });
        let around = Around {
            other_nodesets: Some(BTreeSet::new()),
            ..Around::default()
        };
        let cluster = cluster(spec);
        let children = children(&cluster, &around).unwrap_or_else(|report| panic!("{report}"));
        let nodeset = children.nodesets[1].object("hpc").unwrap();
        assert_eq!(nodeset.slurm_name(), name);
        assert_eq!(
            children.controller.spec["extraConf"],
            format!("PartitionName=p Nodes=cpu,{name}")
        );
        let (_, part) = partitions(&cluster).remove(0);
        assert!(contains(&cluster, &part, name) && contains(&cluster, &part, "cpu"));
        assert!(!contains(&cluster, &part, "other"));
    }
}

#[test]
fn a_gpu_is_written_once_and_set_everywhere() {
    let children = built(json!({
        "controller": { "extraConf": "GresTypes=gpu,licence" },
        "nodeSets": {
            "gpu": { "gpu": { "resource": "nvidia.com/gpu", "count": 8, "type": "h200" },
                     "extraConf": "RealMemory=1000 Gres=licence:1",
                     "slurmd": { "resources": { "limits": { "cpu": "4" } } } },
            "amd": { "gpu": { "resource": "amd.com/gpu", "count": 2, "autoDetect": "rsmi" } },
        },
    }));
    let of = |name: &str| {
        &children
            .nodesets
            .iter()
            .find(|child| child.name.ends_with(name))
            .unwrap()
            .spec
    };
    let gpu = of("-gpu");
    assert_eq!(gpu["extraConf"], "RealMemory=1000 Gres=licence:1,gpu:h200:8");
    assert_eq!(
        gpu["slurmd"]["resources"],
        json!({ "limits": { "cpu": "4", "nvidia.com/gpu": 8 }, "requests": { "nvidia.com/gpu": 8 } })
    );
    assert_eq!(of("-amd")["extraConf"], "Gres=gpu:2");
    let conf = children.controller.spec["extraConf"].as_str().unwrap();
    assert!(
        conf.contains("AccountingStorageTRES=gres/gpu,gres/gpu:h200"),
        "{conf}"
    );
    assert!(!conf.contains("GresTypes=gpu\n"), "{conf}");
    assert_eq!(
        children.config_files["gres.conf"],
        "NodeName=amd-[0-65535] AutoDetect=rsmi\nNodeName=gpu-[0-65535] AutoDetect=nvidia\n"
    );
    assert_eq!(
        children.controller.spec["configFileRefs"],
        json!([{ "name": "slurm-config-extra" }])
    );
}

#[test]
fn shared_volumes_and_files_are_in_logins_and_workers_beside_the_users_own() {
    let children = built(json!({
        "login": { "users": { "login": { "volumeMounts": [{ "name": "mine", "mountPath": "/mine" }] },
                              "template": { "spec": { "volumes": [{ "name": "mine", "emptyDir": {} }] } } } },
        "nodeSets": { "cpu": {} },
        "storage": { "home": { "claim": "home" },
                     "shared": [{ "path": "/data", "nfs": { "server": "nfs", "path": "/export" }, "readOnly": true }] },
        "files": { "/etc/motd": { "content": "hello" }, "/etc/live": { "content": "x", "update": "Live" } },
    }));
    let login = &children.loginsets[0].spec;
    let mounts: Vec<&str> = login["login"]["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["mountPath"].as_str().unwrap())
        .collect();
    assert_eq!(
        mounts,
        ["/mine", "/home", "/data", "/etc/motd", "/run/keelson/files"]
    );
    let worker = &children.nodesets[0].spec;
    assert_eq!(
        worker["template"]["spec"]["volumes"],
        json!([
            { "name": "home", "persistentVolumeClaim": { "claimName": "home" } },
            { "name": "shared-0", "nfs": { "server": "nfs", "path": "/export", "readOnly": true } },
            { "name": "keelson-files", "configMap": { "name": "slurm-files", "defaultMode": 420,
                "items": [{ "key": "etc__motd", "path": "etc__motd" }] } },
            { "name": "keelson-live-files", "configMap": { "name": "slurm-files", "defaultMode": 420,
                "items": [{ "key": "etc__live", "path": "etc__live" }] } },
        ])
    );
}

#[test]
fn unconfined_jobs_need_no_privileges() {
    let children = built(json!({ "confineJobs": false, "nodeSets": { "cpu": {} } }));
    let worker = &children.nodesets[0].spec["slurmd"]["securityContext"];
    assert_eq!(worker["privileged"], json!(false));
    assert_eq!(children.config_files["cgroup.conf"], "CgroupPlugin=disabled\n");
    let conf = children.controller.spec["extraConf"].as_str().unwrap();
    assert!(conf.starts_with("ProctrackType=proctrack/linuxproc\n"), "{conf}");
}

#[test]
fn keys_are_generated_unless_they_are_named() {
    let own = built(json!({}));
    assert_eq!(own.controller.spec["slurmKeyRef"]["name"], "slurm-auth-slurm");
    assert_eq!(own.controller.annotations["keelson.dev/generate"], "true");
    let named =
        built(json!({ "accounting": {}, "controller": { "slurmKeyRef": { "name": "mine", "key": "k" } } }));
    assert_eq!(named.controller.annotations["keelson.dev/generate"], "jwtKey");
    let accounting = named.accounting.unwrap();
    assert_eq!(
        accounting.spec["slurmKeyRef"],
        json!({ "name": "mine", "key": "k" })
    );
    assert_eq!(accounting.spec["jwtKeyRef"]["name"], "slurm-auth-jwt");
}

#[test]
fn a_database_is_embedded_unless_the_user_names_one() {
    let embedded = built(json!({ "accounting": {} }));
    assert_eq!(
        embedded.accounting.unwrap().spec["storageConfig"]["host"],
        "slurm-mariadb"
    );
    let external = built(json!({ "accounting": { "database": { "external": {
        "host": "db.example.com", "username": "slurm", "passwordKeyRef": { "name": "db", "key": "pw" } } } } }));
    let storage = &external.accounting.unwrap().spec["storageConfig"];
    assert_eq!(
        *storage,
        json!({ "host": "db.example.com", "port": 3306, "database": "slurm_acct_db", "username": "slurm",
                "passwordKeyRef": { "name": "db", "key": "pw" } })
    );
    let own = json!({ "accounting": { "storageConfig": { "host": "h", "passwordKeyRef": { "name": "n", "key": "k" } } } });
    assert_eq!(
        built(own.clone()).accounting.unwrap().spec["storageConfig"]["host"],
        "h"
    );
    assert_eq!(cluster(own).embedded_database(), None);
    assert_eq!(
        cluster(json!({ "accounting": { "enabled": false } })).embedded_database(),
        None
    );
}

#[test]
fn slurmdbd_finds_the_database_of_mariadb_operator() {
    let of = |operated: Value| {
        let children = built(json!({ "accounting": { "database": { "mariadbOperator": operated } } }));
        children.accounting.unwrap().spec["storageConfig"].clone()
    };
    assert_eq!(
        of(json!({})),
        json!({ "host": "slurm-database", "port": 3306, "database": "slurm_acct_db", "username": "slurm",
                "passwordKeyRef": { "name": "slurm-mariadb", "key": "password" } })
    );
    assert_eq!(
        of(json!({ "host": "slurm-database-primary" }))["host"],
        "slurm-database-primary"
    );
}

#[rstest]
#[case::no_such_workers(
    json!({ "nodeSets": { "cpu": {} }, "partitions": { "p": { "nodeSets": ["gpu"] } } }),
    "spec.partitions.p.nodeSets[0]: there are no workers with the name \"gpu\""
)]
#[case::empty_partition(
    json!({ "partitions": { "p": { "nodeSets": [] } } }),
    "spec.partitions.p.nodeSets: the partition would have no nodes"
)]
#[case::two_defaults(
    json!({ "partitions": { "a": { "nodeSets": ["ALL"], "default": true }, "b": { "nodeSets": ["ALL"], "default": true } } }),
    "spec.partitions.b.default: partition a is the default already"
)]
#[case::default_twice(
    json!({ "partitions": { "a": { "nodeSets": ["ALL"], "config": "Default=NO" } } }),
    "spec.partitions.a.config: Default is set here and in default"
)]
#[case::defaults_instead_of_a_partition(
    json!({ "partitions": { "default": { "nodeSets": ["ALL"] } } }),
    "spec.partitions.default: is \"default\", which Slurm interprets as the defaults of all partitions; use another name"
)]
#[case::defaults_in_capitals(
    json!({ "partitions": { "DEFAULT": { "nodeSets": ["ALL"] } } }),
    "spec.partitions.DEFAULT: is \"DEFAULT\", which Slurm interprets as the defaults of all partitions; use another name"
)]
#[case::own_partition_of_that_name(
    json!({ "nodeSets": { "cpu": { "partition": { "enabled": true } } }, "partitions": { "cpu": { "nodeSets": ["cpu"] } } }),
    "spec.partitions.cpu: spec.nodeSets.cpu.partition creates a partition with this name too"
)]
#[case::own_partition_of_that_slurm_name(
    json!({ "nodeSets": { "cpu": { "partition": { "enabled": true }, "template": { "spec": { "hostname": "node-" } } } },
        "partitions": { "node": { "nodeSets": ["cpu"] } } }),
    "spec.partitions.node: spec.nodeSets.cpu.partition creates a partition with this name too"
)]
#[case::two_databases(
    json!({ "accounting": { "database": { "embedded": {}, "external": { "host": "h", "passwordKeyRef": { "name": "n", "key": "k" } } } } }),
    "spec.accounting.database: there are two databases"
)]
#[case::two_databases_in_other_words(
    json!({ "accounting": { "database": { "embedded": {} }, "storageConfig": { "host": "h" } } }),
    "spec.accounting.database: accounting.storageConfig or accounting.external says where the database is, too"
)]
#[case::gpus_that_disagree(
    json!({ "nodeSets": { "g": { "gpu": { "resource": "nvidia.com/gpu", "count": 8 },
        "slurmd": { "resources": { "limits": { "nvidia.com/gpu": 4 } } } } } }),
    "is 4, but gpu.count is 8; remove it: gpu sets it"
)]
#[case::gpus_twice(
    json!({ "nodeSets": { "g": { "gpu": { "resource": "nvidia.com/gpu", "count": 8 }, "extraConf": "Gres=gpu:8" } } }),
    "spec.nodeSets.g.extraConf: sets Gres=gpu, and so does gpu"
)]
#[case::no_gpu_among_the_types(
    json!({ "controller": { "extraConf": "GresTypes=licence" },
        "nodeSets": { "g": { "gpu": { "resource": "nvidia.com/gpu", "count": 8 } } } }),
    "spec.controller.extraConf: GresTypes=licence lacks gpu"
)]
#[case::two_gres_confs(
    json!({ "nodeSets": { "amd": { "gpu": { "resource": "amd.com/gpu", "count": 2 } },
        "gpu": { "gpu": { "resource": "nvidia.com/gpu", "count": 8 } } } }),
    "spec.nodeSets.amd.gpu.autoDetect: is \"off\", so these GPUs need a gres.conf of your own, but those of gpu are in the generated one"
)]
#[case::a_bad_name(json!({ "nodeSets": { "GPU": {} } }), "spec.nodeSets.GPU: \"GPU\" cannot be part of a name")]
#[case::all(json!({ "nodeSets": { "all": {} } }), "spec.nodeSets.all: ALL is Slurm's word for all nodes")]
#[case::no_source(
    json!({ "nodeSets": { "cpu": {} }, "storage": { "home": {} } }),
    "spec.storage.home: has no source"
)]
#[case::two_sources(
    json!({ "nodeSets": { "cpu": {} }, "storage": { "shared": [{ "path": "/d", "claim": "c", "hostPath": "/d" }] } }),
    "spec.storage.shared[0]: has more than one source"
)]
#[case::mounted_twice(
    json!({ "nodeSets": { "cpu": { "slurmd": { "volumeMounts": [{ "name": "x", "mountPath": "/home" }] } } },
        "storage": { "home": { "claim": "c" } } }),
    "spec.nodeSets.cpu.slurmd.volumeMounts[0]: spec.storage or spec.files mounts /home too"
)]
#[case::a_file_of_slurm(
    json!({ "nodeSets": { "cpu": {} }, "files": { "/etc/slurm/slurm.conf": { "content": "" } } }),
    "spec.files[/etc/slurm/slurm.conf]: Slurm's configuration comes from slurmctld"
)]
#[case::too_large_files(
    json!({ "nodeSets": { "cpu": {} }, "files": { "/etc/a": { "content": "a".repeat(600_000) },
        "/etc/b": { "content": "b".repeat(600_000), "update": "Live" } } }),
    "spec.files: are 1200000 bytes in total, and one ConfigMap holds at most 1048576; put large files into the images or on a volume of spec.storage"
)]
#[case::a_file_without_content(
    json!({ "nodeSets": { "cpu": {} }, "files": { "/etc/motd": {} } }),
    "spec.files[/etc/motd]: has no content"
)]
#[case::a_word_for_a_schedule(
    json!({ "accounting": { "database": { "embedded": { "dump": { "schedule": "every day", "claim": "dumps" } } } } }),
    "spec.accounting.database.embedded.dump.schedule: \"every day\" is not a schedule"
)]
#[case::dumps_beside_the_database(
    json!({ "accounting": { "database": { "embedded": { "dump": { "schedule": "@daily", "claim": "data-slurm-mariadb-0" } } } } }),
    "spec.accounting.database.embedded.dump.claim: claim data-slurm-mariadb-0 is the volume of the database itself"
)]
#[case::a_dump_from_the_database_itself(
    json!({ "accounting": { "database": { "embedded": { "restoreFrom": { "claim": "data-slurm-mariadb-0" } } } } }),
    "spec.accounting.database.embedded.restoreFrom.claim: claim data-slurm-mariadb-0 is the volume of the database itself"
)]
#[case::a_dump_elsewhere(
    json!({ "accounting": { "database": { "embedded": { "restoreFrom": { "claim": "dumps", "file": "a/../../b" } } } } }),
    "spec.accounting.database.embedded.restoreFrom.file: \"a/../../b\" is not a path in the claim"
)]
fn what_cannot_work_is_refused_with_field_and_remedy(#[case] spec: Value, #[case] expected: &str) {
    let around = Around {
        other_nodesets: Some(BTreeSet::new()),
        ..Around::default()
    };
    let refusals = refusals(spec, &around);
    assert!(
        refusals.iter().any(|text| text.contains(expected)),
        "{refusals:#?}"
    );
}

#[test]
fn dumps_need_room_in_the_name() {
    let spec = json!({ "accounting": { "database": { "embedded": { "dump": { "schedule": "@daily", "claim": "dumps" } } } } });
    let named = |length: usize| {
        let mut cluster = cluster(spec.clone());
        cluster.metadata.name = Some("c".repeat(length));
        children(&cluster, &Around::default()).map(drop)
    };
    assert_eq!(named(39), Ok(()));
    let refused = named(41).unwrap_err().violations.remove(0);
    assert_eq!(
        refused.remedy,
        "use a name of the cluster that is 2 characters shorter"
    );
}

#[test]
fn a_nodeset_of_the_users_own_can_be_in_a_partition() {
    let spec = json!({ "partitions": { "p": { "nodeSets": ["extra"] } } });
    let around = |names: Option<&[&str]>| Around {
        other_nodesets: names.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
        ..Around::default()
    };
    assert!(children(&cluster(spec.clone()), &around(Some(&["extra"]))).is_ok());
    // Just after the start, the webhook does not know all NodeSets.
    assert!(children(&cluster(spec.clone()), &around(None)).is_ok());
    assert!(children(&cluster(spec), &around(Some(&[]))).is_err());
}
