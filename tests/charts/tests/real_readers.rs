//! Checks that every value of the charts is read. `KEELSON_BLESS=1` rewrites the pages that list the readers.

use anyhow::{Result, ensure};
use chart_tests::readers::{Chart, page};
use chart_tests::{helms, repository};
use serde_json::{Value, json};

/// Returns replacement values that the schemas of both charts accept.
fn changes() -> Vec<(&'static str, Value)> {
    vec![
        ("affinity", json!({ "nodeAffinity": {} })),
        ("failurePolicy", json!("Ignore")),
        ("failurePolicy", json!("Fail")),
        ("image", json!({ "repository": "changed", "tag": "changed" })),
        ("imagePullPolicy", json!("Always")),
        ("interval", json!("7s")),
        ("logLevel", json!("debug")),
        (
            "matchConditions",
            json!([{ "name": "changed", "expression": "true" }]),
        ),
        ("matchPolicy", json!("Exact")),
        ("clusterFrom", json!([{ "podSelector": {} }])),
        ("egress.dns", json!([{ "podSelector": {} }])),
        ("dnsPorts", json!([7])),
        ("apiServer.to", json!([{ "podSelector": {} }])),
        ("apiServer.ports", json!([7])),
        ("egress.rules", json!([{ "to": [{ "podSelector": {} }] }])),
        ("restrictCapabilities", json!(false)),
        ("loginFrom", json!([{ "podSelector": {} }])),
        ("metricsFrom", json!([{ "podSelector": {} }])),
        ("restapiFrom", json!([{ "podSelector": {} }])),
        ("metadata", json!({ "labels": { "changed": "changed" } })),
        ("minAvailable", json!(7)),
        ("maxUnavailable", json!(7)),
        ("podSecurityContext", json!({ "runAsUser": 7 })),
        ("podSpec", json!({ "nodeSelector": { "changed": "changed" } })),
        ("resources", json!({ "requests": { "storage": "7Gi" } })),
        ("securityContext", json!({ "runAsUser": 7 })),
        ("service.spec", json!({ "type": "NodePort" })),
        ("slurmMaxAnswer", json!("7Mi")),
        ("tolerations", json!([{ "key": "changed", "operator": "Exists" }])),
        (
            "topologySpreadConstraints",
            json!([{ "maxSkew": 7, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway" }]),
        ),
        (
            "volumeMounts",
            json!([{ "name": "changed", "mountPath": "/changed" }]),
        ),
    ]
}

#[test]
fn every_value_of_chart_slurm_is_read() -> Result<()> {
    let machines =
        json!([{ "targetNodeSet": "a", "networks": (0..9).map(|n| format!("net-{n}")).collect::<Vec<_>>() }]);
    let mut changes = changes();
    changes.extend([
        ("priorityClass.value", json!(7)),
        ("preemptionPolicy", json!("Never")),
        ("accessModes", json!(["ReadWriteMany"])),
        ("scrapeTimeout", json!("7s")),
        ("serviceMonitor.endpoints", json!([{ "path": "/changed" }])),
        ("strategy", json!({ "type": "Recreate" })),
        ("loginsets", json!({ "changed": {} })),
        ("nodesets", json!({ "changed": {} })),
        ("nodesets", json!(["a"])),
        ("users", json!({ "changed": { "uid": 7000 } })),
        ("groups", json!({ "changed": { "gid": 7000 } })),
        ("scalingMode", json!("DaemonSet")),
        ("pruneSlurmNodeRecords", json!("NodeNotFound")),
        ("updateStrategy.type", json!("OnDelete")),
        ("auth.type", json!("munge")),
        (
            "scheduledUpdate",
            json!({ "startTime": "2030-01-01T00:00:00Z", "duration": "1h" }),
        ),
        ("partitions", json!({ "changed": {} })),
        ("jobMappingDir", json!("/changed")),
        (
            "tls",
            json!({ "caCertRef": { "name": "changed", "key": "changed" } }),
        ),
        ("a3mega", machines.clone()),
        ("a3ultra", machines),
    ]);
    let sets = json!({
        "nodesetDefaults": { "ssh": { "enabled": true } }, "nodesets": { "a": {} }, "loginsets": { "a": {} },
        "accounting": { "enabled": true }, "restapi": { "replicas": 2, "pdb": { "enabled": true } },
        "networkPolicy": {
            "enabled": true, "operatorNamespaces": ["slurm-operator"],
            "egress": { "rules": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0" } }] }] },
            "database": { "enabled": true, "podSelector": { "app": "mariadb" } },
        },
        "partitions": { "all": { "enabled": true } },
        "priorityClass": { "enabled": true, "create": true },
        "vendor": { "nvidia": { "dcgm": { "enabled": true } } },
    });
    let with_database = json!({ "accounting": { "enabled": true }, "mariadb": { "enabled": true } });
    let elsewhere = json!({
        "controller": { "external": true, "externalConfig": { "host": "elsewhere" } },
        "accounting": { "enabled": true, "external": true, "externalConfig": { "host": "elsewhere" } },
        "jwksKeys": { "enabled": true },
    });
    check(&Chart {
        name: "slurm",
        installations: &[sets, with_database, elsewhere],
        changes: &changes,
        elsewhere: &[("asciiArt", "NOTES.txt")],
    })
}

#[test]
fn every_value_of_chart_slurm_cluster_is_read() -> Result<()> {
    let changes = [
        ("fullnameOverride", json!("changed")),
        ("metadata", json!({ "labels": { "changed": "changed" } })),
        ("images", json!({ "registry": "changed" })),
        ("confineJobs", json!(false)),
        ("auth", json!({ "type": "munge" })),
        ("controller", json!({ "clusterName": "changed" })),
        ("accounting", json!({ "extraConf": "changed" })),
        ("restApi", json!({ "replicas": 7 })),
        ("login", json!({ "changed": {} })),
        ("nodeSets", json!({ "changed": {} })),
        ("partitions", json!({ "changed": { "nodeSets": ["ALL"] } })),
        ("storage", json!({ "home": { "claim": "changed" } })),
        ("files", json!({ "/changed": { "content": "changed" } })),
        ("controlPlane.value", json!(7_000_000)),
        ("logins.value", json!(900_007)),
        ("workers.value", json!(7)),
        ("preemptionPolicy", json!("Never")),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
        ("users", json!({ "changed": { "uid": 7000 } })),
        ("groups", json!({ "changed": { "gid": 7000 } })),
    ];
    let sets = json!({
        "login": { "a": {} }, "nodeSets": { "a": {} }, "accounting": {}, "priorityClasses": { "create": true },
    });
    check(&Chart {
        name: "slurm-cluster",
        installations: &[sets],
        changes: &changes,
        elsewhere: &[],
    })
}

#[test]
fn every_value_of_chart_nodesets_is_read() -> Result<()> {
    let changes = [
        ("clusterName", json!("changed")),
        ("pullPolicy", json!("Always")),
        ("pullSecrets", json!([{ "name": "changed" }])),
        ("priorityClass.value", json!(7)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
        ("nodesetDefaults", json!({ "replicas": 7 })),
        ("nodesets", json!({ "changed": {} })),
    ];
    check(&Chart {
        name: "nodesets",
        installations: &[
            json!({ "clusterName": "team", "nodesets": { "a": {} }, "priorityClass": { "create": true } }),
        ],
        changes: &changes,
        elsewhere: &[],
    })
}

#[test]
fn every_value_of_chart_slurm_operator_is_read() -> Result<()> {
    let on = json!({
        "operator": { "replicas": 2, "pdb": { "enabled": true }, "serviceMonitor": { "enabled": true } },
        "webhook": {
            "replicas": 2, "pdb": { "enabled": true }, "metricsPort": 8089, "podsBinding": true, "serviceMonitor": { "enabled": true },
        },
        "certManager": { "enabled": true },
        "networkPolicy": {
            "enabled": true, "egress": { "rules": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0" } }] }] },
        },
    });
    check(&Chart {
        name: "slurm-operator",
        installations: &[on, json!({})],
        changes: &changes(),
        elsewhere: &[
            ("operator.profile", "operator/deployment.yaml, which refuses true"),
            (
                "operator.profileAddr",
                "nothing: there is no profile endpoint (a value of Slinky's)",
            ),
            (
                "webhook.leaderElection",
                "nothing: every replica does the same (a value of Slinky's)",
            ),
        ],
    })
}

fn check(chart: &Chart) -> Result<()> {
    let helms = helms();
    let Some(helm) = helms.first() else { return Ok(()) };
    let (wanted, unread) = page(helm, chart)?;
    ensure!(
        unread.is_empty(),
        "nothing reads these values; build, refuse or remove them:\n{}",
        unread.join("\n")
    );
    let place = repository().join(format!("docs/src/reference/readers-{}.md", chart.name));
    if std::env::var_os("KEELSON_BLESS").is_some() {
        std::fs::write(&place, &wanted)?;
    }
    let stored = std::fs::read_to_string(&place).unwrap_or_default();
    ensure!(
        stored == wanted,
        "{} is out of date: run the tests with KEELSON_BLESS=1",
        place.display()
    );
    Ok(())
}
