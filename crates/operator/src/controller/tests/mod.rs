//! Tests from the Controller that a user writes to the objects and the status, without a cluster.
#![allow(
    clippy::needless_pass_by_value,
    reason = "json! literals read better unborrowed"
)]

mod requeue;
mod status;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use keelson_api::{Accounting, Controller, NodeSet};
use keelson_runtime::optional_kind::Installed;
use serde_json::{Value, json};

use crate::controller::{
    build::{self, Children},
    configuration::{
        candidate,
        choose::{self, Chosen},
        delivery::Expected,
    },
    observe::{Live, Observed},
    validate::{self, Validated},
};

use crate::{fingerprints::HashKey, problem::Problem};

fn secret(key: &str) -> Arc<Secret> {
    Arc::new(Secret {
        data: Some(BTreeMap::from([(key.to_owned(), ByteString(b"secret".to_vec()))])),
        ..Secret::default()
    })
}

fn controller(spec: Value) -> Controller {
    let mut object = json!({
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": "Controller",
        "metadata": { "name": "slurm", "namespace": "slurm", "uid": "uid-controller", "generation": 3 },
        "spec": {
            "slurmKeyRef": { "name": "auth-slurm", "key": "slurm.key" },
            "jwtKeyRef": { "name": "auth-jwt", "key": "jwt.key" },
            "slurmctld": { "image": "slurmctld:1" },
            "logfile": { "image": "login:1" },
        },
    });
    merge(object.pointer_mut("/spec").unwrap(), spec);
    serde_json::from_value(object).unwrap()
}

fn merge(into: &mut Value, from: Value) {
    for (key, value) in from.as_object().unwrap() {
        into[key] = value.clone();
    }
}

fn nodeset(name: &str, spec: Value) -> Arc<NodeSet> {
    let mut object = json!({
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": "NodeSet",
        "metadata": { "name": name, "namespace": "slurm" },
        "spec": { "controllerRef": { "name": "slurm" } },
    });
    merge(object.pointer_mut("/spec").unwrap(), spec);
    Arc::new(serde_json::from_value(object).unwrap())
}

pub(super) fn observed(spec: Value) -> Observed {
    Observed {
        controller: Arc::new(controller(spec)),
        accounting: None,
        nodesets: vec![
            nodeset(
                "slurm-worker-b",
                json!({ "partition": { "enabled": true, "config": "Default=YES" } }),
            ),
            nodeset(
                "slurm-worker-a",
                json!({ "template": { "spec": { "hostname": "a-" } } }),
            ),
        ],
        rivals: vec![],
        slurm_key: Some(secret("slurm.key")),
        jwt_key: Some(secret("jwt.key")),
        hash_key: Some(HashKey::for_tests()),
        config_maps: BTreeMap::new(),
        claim: None,
        kubernetes_nodes: 0,
        slurm_nodes: 0,
        monitoring: Installed::default(),
        live: Live::default(),
    }
}

fn chosen(observed: &Observed) -> Result<(Validated, Chosen), Problem> {
    let validated = validate::validate(observed)?;
    let rendered = build::render(&validated).unwrap();
    let mut configuration = match &validated {
        Validated::Internal(internal) => candidate::configuration(&rendered, internal)?,
        Validated::External(_) => choose::plain(rendered.clone()).configuration,
    };
    configuration.restart_hash = Some("restart".into());
    let findings = rendered.findings;
    let (notes, slurm_key_hash) = match &validated {
        Validated::Internal(internal) => (internal.notes.clone(), Some(internal.slurm_key_hash.clone())),
        Validated::External(_) => (vec![], None),
    };
    Ok((
        validated,
        Chosen {
            configuration,
            in_use: None,
            rolled_hash: Some("restart".into()),
            slurm_key_hash,
            expected: Expected {
                config: "hash".into(),
                jwt_key: None,
            },
            findings,
            notes,
            origins: BTreeMap::new(),
            waiting: vec![],
            held: None,
            accounting_waits: false,
        },
    ))
}

fn children(observed: &Observed) -> Result<Children, Problem> {
    let (validated, chosen) = chosen(observed)?;
    Ok(build::build(&observed.controller, &validated, &chosen, &observed.live).unwrap())
}

fn slurm_conf(observed: &Observed) -> String {
    let children = children(observed).unwrap();
    children
        .config
        .value
        .pointer("/data/slurm.conf")
        .unwrap()
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn a_plain_controller() {
    let children = children(&observed(json!({}))).unwrap();
    let daemon = children.daemon.unwrap();
    insta::assert_yaml_snapshot!("config", children.config.value);
    insta::assert_yaml_snapshot!("service", daemon.service.value);
    insta::assert_yaml_snapshot!("internal-service", daemon.internal_service.value);
    insta::assert_yaml_snapshot!("stateful-set", daemon.stateful_set.value);
}

#[test]
fn with_everything_that_a_user_may_change() {
    let mut observed = observed(json!({
        "clusterName": "lab",
        "inplaceReconfigure": true,
        "jwksKeyRef": { "name": "jwks", "key": "keys.json" },
        "configFileRefs": [{ "name": "extra" }],
        "prologScriptRefs": [{ "name": "prologs" }],
        "persistence": {
            "enabled": true, "storageClassName": "fast", "deletionPolicy": "Delete",
            "resources": { "requests": { "storage": "8Gi" } },
        },
        "template": {
            "metadata": { "labels": { "team": "hpc" } },
            "spec": { "tolerations": [{ "operator": "Exists" }], "priorityClassName": "high" },
        },
        "slurmctld": { "image": "slurmctld:1", "args": ["-v"], "resources": { "limits": { "cpu": "1" } } },
        "metrics": { "enabled": true },
        "extraConf": "SchedulerParameters=bf_continue",
    }));
    let map = |files: &[(&str, &str)]| {
        let data = files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        Some(Arc::new(ConfigMap {
            data: Some(data),
            ..ConfigMap::default()
        }))
    };
    observed.config_maps = BTreeMap::from([
        (
            "extra".to_owned(),
            map(&[
                ("gres.conf", "AutoDetect=off\n"),
                ("cgroup.conf", "CgroupPlugin=disabled\n"),
            ]),
        ),
        ("jwks".to_owned(), map(&[("keys.json", "{}")])),
        ("prologs".to_owned(), map(&[("prolog-10.sh", "#!/bin/sh\n")])),
    ]);
    let children = children(&observed).unwrap();
    insta::assert_yaml_snapshot!("full-config", children.config.value);
    insta::assert_yaml_snapshot!("full-stateful-set", children.daemon.unwrap().stateful_set.value);
}

#[test]
fn a_service_monitor_takes_over_what_the_user_wrote() {
    let monitor = |metrics: Value| children(&observed(metrics)).unwrap().monitor;
    let plain = json!({ "metrics": { "enabled": true, "serviceMonitor": { "enabled": true } } });
    insta::assert_yaml_snapshot!("service-monitor", monitor(plain).unwrap().value);
    let full = json!({ "metrics": { "enabled": true, "serviceMonitor": {
        "enabled": true,
        "labels": { "release": "prometheus", "app.kubernetes.io/name": "mine" },
        "annotations": { "note": "x" },
        "interval": "30s",
        "scrapeTimeout": "25s",
        "endpoints": [{ "path": "/metrics/jobs" }, { "path": "/metrics/nodes", "interval": "1m", "scrapeTimeout": "50s" }],
    } } });
    insta::assert_yaml_snapshot!("full-service-monitor", monitor(full).unwrap().value);
    for off in [
        json!({ "metrics": { "enabled": false, "serviceMonitor": { "enabled": true } } }),
        json!({ "metrics": { "enabled": true, "serviceMonitor": { "enabled": false } } }),
        json!({ "metrics": { "enabled": true } }),
        json!({ "metrics": { "enabled": true, "serviceMonitor": { "enabled": true } },
            "external": true, "externalConfig": { "host": "h", "port": 1 } }),
    ] {
        assert!(monitor(off.clone()).is_none(), "{off}");
    }
}

#[test]
fn with_backups_clients_get_every_host_and_no_single_address() {
    let observed = observed(json!({
        "ha": { "enabled": true, "backups": 2 },
        "persistence": { "enabled": true, "existingClaim": "shared" },
        "template": { "spec": { "affinity": { "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{ "topologyKey": "zone", "labelSelector": {} }],
        } } } },
    }));
    let text = slurm_conf(&observed);
    assert_eq!(text.matches("SlurmctldHost=").count(), 3, "{text}");
    assert!(!text.contains("SlurmctldAddr"), "{text}");
    let set = children(&observed).unwrap().daemon.unwrap().stateful_set.value;
    let path = "/spec/template/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    assert_eq!(
        set.pointer(path).unwrap().as_array().unwrap().len(),
        2,
        "the user's term is kept"
    );
    assert_eq!(set.pointer("/spec/volumeClaimTemplates"), None);
    assert_eq!(
        set.pointer("/spec/template/spec/containers/0/readinessProbe/httpGet/path"),
        Some(&json!("/livez"))
    );
}

#[test]
fn backups_need_a_claim_that_many_nodes_can_write() {
    let mut observed = observed(json!({
        "ha": { "enabled": true },
        "persistence": { "enabled": true, "existingClaim": "shared" },
    }));
    let mut with = |modes: &[&str]| {
        let claim = json!({ "spec": { "accessModes": modes } });
        observed.claim = Some(Arc::new(serde_json::from_value(claim).unwrap()));
        children(&observed).map(drop).map_err(|problem| problem.message)
    };
    assert_eq!(with(&["ReadWriteMany"]), Ok(()));
    assert_eq!(
        with(&["ReadWriteOnce"]).unwrap_err(),
        "high availability needs a ReadWriteMany claim, but shared has ReadWriteOnce"
    );
}

#[test]
fn one_slurmctld_may_run_anywhere() {
    let set = children(&observed(json!({})))
        .unwrap()
        .daemon
        .unwrap()
        .stateful_set
        .value;
    assert_eq!(set.pointer("/spec/template/spec/affinity"), None);
}

#[test]
fn a_service_on_another_port_is_not_named_in_slurm_conf() {
    let text = slurm_conf(&observed(json!({ "service": { "port": 7000 } })));
    assert!(!text.contains("SlurmctldAddr"), "{text}");
    assert!(slurm_conf(&observed(json!({}))).contains("SlurmctldAddr=slurm-controller.slurm"));
}

#[test]
fn an_external_slurmctld_has_only_a_configuration() {
    let observed =
        observed(json!({ "external": true, "externalConfig": { "host": "ctl.example.com", "port": 6817 } }));
    let children = children(&observed).unwrap();
    assert!(children.daemon.is_none());
    insta::assert_yaml_snapshot!("external-config", children.config.value);
}

#[test]
fn a_file_that_nobody_brings_is_not_included() {
    let includes = |line: &str| children(&observed(json!({ "extraConf": line }))).map(drop);
    let problem = includes("Include /opt/site.conf\nInclude gpus.conf").unwrap_err();
    assert_eq!(
        problem.message,
        "spec.extraConf line 2: Include gpus.conf: no ConfigMap of spec.configFileRefs has a file of this name; add it there, \
         or remove the line"
    );
    // Only slurmctld's own container knows what is in the image.
    assert_eq!(includes("Include /opt/site.conf"), Ok(()));
}

#[test]
fn a_topology_that_nobody_describes_is_not_asked_for() {
    let with = |line: &str, files: Value| {
        let mut observed = observed(json!({ "extraConf": line, "configFileRefs": [{ "name": "files" }] }));
        let map = serde_json::from_value(json!({ "metadata": { "name": "files" }, "data": files })).unwrap();
        observed.config_maps = BTreeMap::from([("files".to_owned(), Some(Arc::new(map)))]);
        children(&observed).map(drop).map_err(|problem| problem.message)
    };
    let tree = "KillWait=30\nTopologyPlugin=topology/tree";
    assert_eq!(
        with(tree, json!({ "gres.conf": "" })).unwrap_err(),
        "spec.extraConf line 2: TopologyPlugin=topology/tree needs topology.yaml or topology.conf, and no ConfigMap of \
         spec.configFileRefs has it; add it there, or remove the line"
    );
    assert_eq!(with(tree, json!({ "topology.yaml": "---" })), Ok(()));
    assert_eq!(with("TopologyPlugin=topology/flat", json!({})), Ok(()));
}

#[test]
fn what_is_missing_is_named_and_nothing_is_built() {
    let mut observed = observed(json!({ "accountingRef": { "name": "db" } }));
    let message = |observed: &Observed| children(observed).unwrap_err().message;
    assert_eq!(
        message(&observed),
        "Accounting db does not exist: create it, or remove accountingRef"
    );
    observed.accounting = Some(Arc::new(Accounting::default()));
    observed.slurm_key = None;
    assert_eq!(
        message(&observed),
        "Secret auth-slurm does not exist: create it with the key \"slurm.key\""
    );
    observed.slurm_key = Some(secret("other"));
    assert_eq!(
        message(&observed),
        "Secret auth-slurm has no key \"slurm.key\", or it is empty: add it"
    );
}

#[test]
fn job_records_go_where_the_accounting_says() {
    let conf = |accounting: Value, mut controller: Value| {
        controller["accountingRef"] = json!({ "name": "db" });
        let mut observed = observed(controller);
        observed.accounting = Some(Arc::new(
            serde_json::from_value(json!({
                "apiVersion": "slinky.slurm.net/v1beta1",
                "kind": "Accounting",
                "metadata": { "name": "db", "namespace": "slurm" },
                "spec": accounting,
            }))
            .unwrap(),
        ));
        slurm_conf(&observed)
    };
    let elsewhere =
        json!({ "external": true, "externalConfig": { "host": "dbd.example.com", "port": 7031 } });
    let controller_elsewhere =
        json!({ "external": true, "externalConfig": { "host": "ctl.example.com", "port": 6817 } });
    for (accounting, controller, host, port) in [
        (json!({}), json!({}), "db-accounting", "6819"),
        (
            json!({ "service": { "port": 7000 } }),
            json!({}),
            "db-accounting",
            "7000",
        ),
        (elsewhere.clone(), json!({}), "dbd.example.com", "7031"),
        (elsewhere, controller_elsewhere, "dbd.example.com", "7031"),
    ] {
        let text = conf(accounting, controller);
        for line in [
            "AccountingStorageType=accounting_storage/slurmdbd".to_owned(),
            format!("AccountingStorageHost={host}"),
            format!("AccountingStoragePort={port}"),
        ] {
            assert!(
                text.lines().any(|known| known == line),
                "{line} is missing:\n{text}"
            );
        }
    }
}

#[test]
fn pods_from_before_keep_the_plain_hash_of_a_key_that_has_not_changed() {
    let hash_of = |observed: &Observed| {
        let set = children(observed).unwrap().daemon.unwrap().stateful_set.value;
        let path = "/spec/template/metadata/annotations/slinky.slurm.net~1slurm-key-hash";
        set.pointer(path).unwrap().as_str().unwrap().to_owned()
    };
    let mut observed = observed(json!({}));
    let plain = crate::children::checksum::of_bytes(b"secret");
    assert_ne!(hash_of(&observed), plain, "a new cluster has no plain hash");
    let running = |hash: &str| {
        let annotations = json!({ "slinky.slurm.net/slurm-key-hash": hash });
        let set = json!({ "spec": { "selector": {}, "serviceName": "", "template": { "metadata": { "annotations": annotations } } } });
        Some(Arc::new(serde_json::from_value(set).unwrap()))
    };
    observed.live.stateful_set = running(&plain);
    assert_eq!(hash_of(&observed), plain);
    observed.live.stateful_set = running("of another key");
    assert_eq!(hash_of(&observed).len(), 64);
    assert_ne!(
        hash_of(&observed),
        plain,
        "with another key they are replaced anyway"
    );
}

#[test]
fn pods_that_are_replaced_anyway_need_no_restart_of_their_own() {
    let hash_of = |observed: &Observed, running: &str| {
        let (validated, mut chosen) = chosen(observed).unwrap();
        chosen.rolled_hash = Some(running.into());
        let children = build::build(&observed.controller, &validated, &chosen, &observed.live).unwrap();
        let set = children.daemon.unwrap().stateful_set;
        let path = "/spec/template/metadata/annotations/slinky.slurm.net~1slurm-config-hash";
        set.value.pointer(path).unwrap().clone()
    };
    let mut observed = observed(json!({}));
    let first = hash_of(&observed, "before");
    assert_eq!(first, "restart", "there is none yet");

    let (validated, mut accepted) = chosen(&observed).unwrap();
    accepted.configuration.restart_hash = Some("before".into());
    let children = build::build(&observed.controller, &validated, &accepted, &observed.live).unwrap();
    let mut set = children.daemon.unwrap().stateful_set.value;
    let hash = keelson_runtime::apply::hash(&set);
    set["metadata"]["annotations"]["keelson.dev/applied-hash"] = json!(hash);
    observed.live.stateful_set = Some(Arc::new(serde_json::from_value(set).unwrap()));
    assert_eq!(hash_of(&observed, "before"), "before", "nothing else changes");

    let mut changed = observed.controller.as_ref().clone();
    changed.spec.slurmctld = serde_json::from_value(json!({ "image": "slurmctld:2" })).unwrap();
    observed.controller = Arc::new(changed);
    assert_eq!(
        hash_of(&observed, "before"),
        "restart",
        "the image is another one"
    );
}

#[test]
fn slurmctld_has_room_for_the_nodes_that_it_knows_and_keeps_it() {
    let room = |observed: &Observed| match validate::validate(observed).unwrap() {
        Validated::Internal(internal) => slurm_conf::sizing::max_node_count(internal.conf.nodes),
        Validated::External(_) => 0,
    };
    let mut observed = observed(json!({}));
    assert_eq!(room(&observed), 1_024);
    observed.slurm_nodes = 600;
    assert_eq!(room(&observed), 4_096);
    // While Slurm does not answer, the room is kept.
    observed.slurm_nodes = 0;
    let published = json!({ "data": { "slurm.conf": "ClusterName=c\nMaxNodeCount=4096\n" } });
    observed.live.config = Some(Arc::new(serde_json::from_value(published).unwrap()));
    assert_eq!(room(&observed), 4_096);
}
