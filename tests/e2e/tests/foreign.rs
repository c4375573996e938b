//! Tests that the operator does not modify or delete an unrelated object that has the name of a child object.

use anyhow::{Result, ensure};
use e2e::slurm::condition;
use e2e::{Namespace, eventually};
use serde_json::Value;

const GRAFANA: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "grafana", "labels": {"app.kubernetes.io/name": "grafana"}},
    "spec": {"selector": {"app.kubernetes.io/name": "grafana"}, "ports": [{"name": "http", "port": 3000}]}}"#;
const CLUSTER: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"slurm.key": "0123456789abcdef0123456789abcdef", "jwt.key": "0123456789abcdef0123456789abcdef"}},
    {"apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": {"name": "slurm"},
        "spec": {"external": true, "externalConfig": {"host": "ctl.example.com", "port": 6817},
            "slurmKeyRef": {"name": "keys", "key": "slurm.key"}, "jwtKeyRef": {"name": "keys", "key": "jwt.key"}}},
    {"apiVersion": "slinky.slurm.net/v1beta1", "kind": "LoginSet", "metadata": {"name": "grafana"},
        "spec": {"controllerRef": {"name": "slurm"}, "replicas": 0, "sssd": {"enabled": false}, "login": {"image": "login"}, "initconf": {"image": "login"}}}]}"#;

/// Returns the identity, owners, ports and selector of the Service.
fn state(space: &Namespace) -> Result<[Value; 4]> {
    let service = space.get(&["service", "grafana"])?;
    Ok([
        "/metadata/uid",
        "/metadata/ownerReferences",
        "/spec/ports",
        "/spec/selector",
    ]
    .map(|pointer| service.pointer(pointer).cloned().unwrap_or_default()))
}

#[test]
fn a_service_that_is_not_ours_is_left_alone_and_outlives_ours() -> Result<()> {
    let space = Namespace::create("foreign")?;
    space.apply(GRAFANA)?;
    let before = state(&space)?;
    space.apply(CLUSTER)?;
    eventually("the condition that names the Service", || {
        let loginset = space.get(&["loginset.slinky.slurm.net", "grafana"])?;
        let degraded = condition(&loginset, "Degraded")?;
        ensure!(degraded["reason"] == "ApplyFailed", "{degraded}");
        let message = degraded["message"].to_string();
        ensure!(
            message.contains("/grafana already exists and is not managed by this operator")
                && message.contains("Service"),
            "{message}"
        );
        Ok(())
    })?;
    ensure!(state(&space)? == before, "{:?} was {before:?}", state(&space)?);

    space.kubectl(&["delete", "loginset.slinky.slurm.net/grafana", "--timeout=60s"])?;
    // The LoginSet owns the Secret with the host keys, so its deletion shows that the garbage collector has run.
    eventually("the end of the LoginSet's own Secret", || {
        ensure!(
            space.get(&["secret", "grafana-ssh-host-keys"]).is_err(),
            "it is still there"
        );
        Ok(())
    })?;
    ensure!(state(&space)? == before, "{:?} was {before:?}", state(&space)?);
    Ok(())
}
