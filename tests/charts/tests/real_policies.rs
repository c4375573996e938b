//! Tests the rendered network policies with the evaluator, because no network plug-in enforces them here.

use anyhow::{Context, Result};
use chart_tests::network_policy::Network;
use chart_tests::{helms, rendered};
use serde_json::{Value, json};

const OPERATOR: &str = "slurm-operator";
const CLUSTER: &str = "slurm";
const METADATA: &str = "169.254.169.254";

fn pod(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Value {
    let labels: serde_json::Map<String, Value> = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    json!({ "metadata": { "namespace": namespace, "name": name, "labels": labels },
        "spec": { "containers": [{ "ports": [{ "name": "login", "containerPort": 22 }] }] } })
}

/// Returns the pods of a cluster, with the labels that the operator sets, and unrelated pods.
fn pods() -> Vec<Value> {
    const NAME: &str = "app.kubernetes.io/name";
    const INSTANCE: &str = "app.kubernetes.io/instance";
    const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "slurm-operator");
    vec![
        pod(CLUSTER, "slurmctld", &[(NAME, "slurmctld"), (INSTANCE, "slurm")]),
        pod(
            CLUSTER,
            "slurmrestd",
            &[(NAME, "slurmrestd"), (INSTANCE, "slurm")],
        ),
        pod(CLUSTER, "slurmdbd", &[(NAME, "slurmdbd"), (INSTANCE, "slurm")]),
        pod(
            CLUSTER,
            "login",
            &[(NAME, "login"), (INSTANCE, "slurm-login-users")],
        ),
        pod(
            CLUSTER,
            "worker",
            &[(NAME, "slurmd"), ("slinky.slurm.net/cluster", "slurm")],
        ),
        pod(
            OPERATOR,
            "operator",
            &[(NAME, "slurm-operator"), (INSTANCE, "slurm-operator"), PART_OF],
        ),
        pod(
            OPERATOR,
            "webhook",
            &[
                (NAME, "slurm-operator-webhook"),
                (INSTANCE, "slurm-operator"),
                PART_OF,
            ],
        ),
        pod(
            "elsewhere",
            "labelled-stranger",
            &[(NAME, "slurm-operator"), PART_OF],
        ),
        pod(
            "elsewhere",
            "false-worker",
            &[(NAME, "slurmd"), ("slinky.slurm.net/cluster", "slurm")],
        ),
        pod(CLUSTER, "stranger", &[("app", "stranger")]),
        pod("kube-system", "dns", &[("k8s-app", "kube-dns")]),
        pod(
            "openshift-dns",
            "openshift-dns",
            &[("dns.operator.openshift.io/daemonset-dns", "default")],
        ),
    ]
}

fn network(egress: &Value) -> Result<Vec<Network>> {
    networks(&json!({ "egress": egress }), &json!({}), &json!({}))
}

/// Renders the policies of both charts. `cluster` and `operator` override fields of `networkPolicy` in the two charts,
/// `accounting` fields of the cluster's `accounting`.
fn networks(cluster: &Value, operator: &Value, accounting: &Value) -> Result<Vec<Network>> {
    let over = |mut base: Value, over: &Value| {
        if let (Some(base), Some(over)) = (base.as_object_mut(), over.as_object()) {
            base.extend(over.clone());
        }
        base
    };
    let cluster = json!({
        "networkPolicy": over(json!({ "enabled": true, "operatorNamespaces": [OPERATOR] }), cluster),
        "accounting": over(json!({ "enabled": true }), accounting),
        "nodesets": { "cpu": {} }, "loginsets": { "users": {} },
    });
    let operator =
        json!({ "networkPolicy": over(json!({ "enabled": true }), operator), "namespaceOverride": OPERATOR });
    helms()
        .iter()
        .map(|helm| {
            let mut policies = rendered(helm, "slurm", &cluster)?;
            policies.extend(rendered(helm, "slurm-operator", &operator)?);
            policies.retain(|object| object.get("kind") == Some(&json!("NetworkPolicy")));
            Ok(Network {
                policies,
                pods: pods(),
            })
        })
        .collect()
}

/// Finds a pod by its name in `pods`.
fn find<'a>(network: &'a Network, name: &str) -> Result<&'a Value> {
    let named = |pod: &&Value| pod.pointer("/metadata/name").and_then(Value::as_str) == Some(name);
    network
        .pods
        .iter()
        .find(named)
        .with_context(|| format!("no pod {name}"))
}

fn lets(network: &Network, from: &str, to: &str, port: u64) -> Result<bool> {
    network.lets(find(network, from)?, find(network, to)?, port)
}

#[test]
fn a_stranger_with_the_operators_label_is_kept_out() -> Result<()> {
    for network in network(&json!({}))? {
        for (server, port) in [("slurmctld", 6816), ("slurmctld", 6817), ("slurmrestd", 6820)] {
            assert!(
                lets(&network, "operator", server, port)?,
                "the operator and {server}:{port}"
            );
            for stranger in ["labelled-stranger", "false-worker", "stranger"] {
                assert!(
                    !lets(&network, stranger, server, port)?,
                    "{stranger} reaches {server}:{port}"
                );
            }
        }
        for (server, port) in [
            ("slurmdbd", 6819),
            ("worker", 6818),
            ("worker", 50000),
            ("login", 50000),
        ] {
            for stranger in ["labelled-stranger", "false-worker", "stranger", "operator"] {
                assert!(
                    !lets(&network, stranger, server, port)?,
                    "{stranger} reaches {server}:{port}"
                );
            }
        }
        assert!(lets(&network, "stranger", "login", 22)?, "nobody can log in");
    }
    Ok(())
}

#[test]
fn a_cluster_at_work_has_every_connection_that_it_needs() -> Result<()> {
    for network in network(&json!({}))? {
        for (client, server, port) in [
            ("worker", "slurmctld", 6817),
            ("login", "slurmctld", 6817),
            ("slurmctld", "worker", 6818),
            ("login", "worker", 6818),
            ("worker", "login", 50000),
            ("worker", "worker", 50000),
            ("slurmctld", "slurmdbd", 6819),
            ("login", "slurmdbd", 6819),
            ("slurmrestd", "slurmctld", 6817),
            ("slurmrestd", "slurmdbd", 6819),
            ("worker", "dns", 53),
            ("login", "dns", 53),
            ("operator", "dns", 53),
        ] {
            assert!(
                lets(&network, client, server, port)?,
                "{client} to {server}:{port}"
            );
        }
        for client in ["worker", "login", "operator"] {
            assert!(
                network.lets_out(find(&network, client)?, "169.254.20.10", 53)?,
                "{client} and the node's DNS"
            );
        }
        assert!(
            network.lets_out(find(&network, "operator")?, "192.0.2.1", 6443)?,
            "the API server"
        );
    }
    Ok(())
}

#[test]
fn users_programs_reach_what_is_listed_and_no_credentials_of_the_node() -> Result<()> {
    let internet = json!({ "rules": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0" } }] }] });
    for (egress, address, port, expected) in [
        (json!({}), "192.0.2.1", 443, false),
        (json!({}), METADATA, 80, false),
        (internet.clone(), "192.0.2.1", 443, true),
        (internet.clone(), METADATA, 80, false),
        (
            json!({ "linkLocal": true, "rules": internet["rules"] }),
            METADATA,
            80,
            true,
        ),
        (json!({ "enabled": false }), METADATA, 80, true),
    ] {
        for network in network(&egress)? {
            for client in ["worker", "login"] {
                let found = network.lets_out(find(&network, client)?, address, port)?;
                assert_eq!(found, expected, "{client} to {address}:{port} with {egress}");
            }
            assert!(!network.lets_out(find(&network, "operator")?, METADATA, 80)?);
        }
    }
    Ok(())
}

// A network plug-in that filters packets after the translation of the Service address sees the port of the pod.
#[test]
fn dns_of_openshift_is_reached_on_the_port_of_its_pods() -> Result<()> {
    let egress = json!({
        "dnsPorts": [53, 5353],
        "dns": [{
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "openshift-dns" } },
            "podSelector": { "matchLabels": { "dns.operator.openshift.io/daemonset-dns": "default" } },
        }],
    });
    let policy = json!({ "egress": egress });
    for network in networks(&policy, &policy, &json!({}))? {
        for client in ["worker", "login", "operator", "webhook"] {
            for port in [53, 5353] {
                assert!(
                    lets(&network, client, "openshift-dns", port)?,
                    "{client} and port {port}"
                );
            }
            assert!(!lets(&network, client, "openshift-dns", 9154)?, "{client}");
            assert!(!lets(&network, client, "dns", 53)?, "{client}");
        }
    }
    Ok(())
}

#[test]
fn the_operator_reaches_what_is_listed_for_it_and_no_credentials_of_the_node() -> Result<()> {
    let proxy =
        json!({ "rules": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0" } }], "ports": [{ "port": 3128 }] }] });
    for (egress, expected) in [(json!({}), false), (proxy, true)] {
        for network in networks(&json!({}), &json!({ "egress": egress }), &json!({}))? {
            for client in ["operator", "webhook"] {
                let client = find(&network, client)?;
                assert_eq!(
                    network.lets_out(client, "192.0.2.1", 3128)?,
                    expected,
                    "with {egress}"
                );
                assert!(!network.lets_out(client, METADATA, 3128)?);
                assert!(!network.lets_out(client, METADATA, 443)?);
            }
        }
    }
    Ok(())
}

#[test]
fn members_at_all_addresses_do_not_open_the_way_to_credentials_of_the_node() -> Result<()> {
    let everywhere = json!([{ "ipBlock": { "cidr": "0.0.0.0/0" } }, { "ipBlock": { "cidr": "::/0" } }]);
    for (link_local, expected) in [(false, false), (true, true)] {
        let policy = json!({ "clusterFrom": everywhere, "egress": { "linkLocal": link_local } });
        for network in networks(&policy, &json!({}), &json!({}))? {
            for client in ["worker", "login"] {
                let client = find(&network, client)?;
                for (address, expected) in [
                    ("192.0.2.1", true),
                    ("2001:db8::1", true),
                    (METADATA, expected),
                    ("fd00:ec2::254", expected),
                ] {
                    assert_eq!(network.lets_out(client, address, 80)?, expected, "{address}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_slurmdbd_elsewhere_is_reached_by_a_rule_and_not_forgotten_without_one() -> Result<()> {
    let accounting = json!({ "external": true, "externalConfig": { "host": "192.0.2.9" } });
    let rule = json!({ "to": [{ "ipBlock": { "cidr": "192.0.2.9/32" } }], "ports": [{ "port": 6819 }] });
    for network in networks(&json!({ "egress": { "rules": [rule] } }), &json!({}), &accounting)? {
        for client in ["worker", "login"] {
            assert!(
                network.lets_out(find(&network, client)?, "192.0.2.9", 6819)?,
                "{client}"
            );
        }
    }
    let refused = networks(&json!({}), &json!({}), &accounting).map(|_| ());
    let refused = refused.expect_err("sacct would hang").to_string();
    assert!(refused.contains("accounting.externalConfig"), "{refused}");
    Ok(())
}
