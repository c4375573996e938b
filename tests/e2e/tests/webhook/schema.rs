//! Tests the CRDs without webhooks: they accept what Slinky's CRDs accept, with the same defaults, and reject what
//! those reject.

use anyhow::{Result, ensure};
use axum::http::Method;
use serde_json::{Value, json};

use crate::api::{Outcome, path, send};
use crate::defaults;
use crate::facts::{Expected, Facts, Probe, at, holds};
use crate::place::Place;

/// Returns a spec of each kind that satisfies the rules across fields even if any single field is changed.
fn bases() -> [(&'static str, Value); 6] {
    let key = json!({ "name": "n", "key": "k" });
    let external = json!({ "host": "h", "port": 6817 });
    [
        (
            "Accounting",
            json!({ "slurmKeyRef": key, "jwtKeyRef": key, "jwtHs256KeyRef": key, "externalConfig": external,
                    "storageConfig": { "host": "h", "passwordKeyRef": key } }),
        ),
        (
            "Controller",
            json!({ "slurmKeyRef": key, "jwtKeyRef": key, "jwtHs256KeyRef": key, "externalConfig": external,
                    "persistence": { "existingClaim": "c" } }),
        ),
        (
            "LoginSet",
            json!({ "controllerRef": { "name": "c" }, "sssdConfRef": key }),
        ),
        (
            "NodeSet",
            json!({ "controllerRef": { "name": "c" },
                    "updateStrategy": { "scheduledUpdate": { "startTime": "2027-01-01T00:00:00Z" } } }),
        ),
        ("RestApi", json!({ "controllerRef": { "name": "c" } })),
        (
            "Token",
            json!({ "jwtKeyRef": key, "jwtHs256KeyRef": key, "username": "u" }),
        ),
    ]
}

/// Fields that are optional in the schema but required by a CEL rule, so a spec without them is rejected.
const ASKED_FOR_BY_A_RULE: [(&str, &str); 2] = [("Accounting", "slurmKeyRef"), ("Controller", "slurmKeyRef")];

#[tokio::test(flavor = "multi_thread")]
async fn what_slinky_takes_is_taken_and_stored_as_slinky_does() -> Result<()> {
    let place = Place::prepare("schema", 0).await?;
    let namespace = place.namespace("schema").await?;
    let (mut count, mut complaints) = (0, Vec::new());
    for (kind, base) in bases() {
        for mut probe in Facts::of(kind).probes(&base) {
            let by_rule =
                |&(of, field): &(&str, &str)| of == kind && at(&probe.spec, field).is_none_or(Value::is_null);
            if ASKED_FOR_BY_A_RULE.iter().any(by_rule) {
                probe.expected = Expected::Refused;
            }
            count += 1;
            let complaint = complaint(&probe, &create(&place, &namespace, kind, &probe.spec).await?);
            complaints.extend(complaint.map(|complaint| format!("{kind} {}: {complaint}", probe.what)));
        }
    }
    ensure!(
        complaints.is_empty(),
        "{} of {count}:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
    ensure!(count >= 800, "only {count} objects");
    println!("{count} objects");
    defaults::every_default(&place, &namespace).await
}

/// Creates, reads and deletes an object. Returns the response to the read, or the rejection of the create.
async fn create(place: &Place, namespace: &str, kind: &str, spec: &Value) -> Result<Outcome> {
    let object = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "metadata": { "name": "probe" }, "spec": spec,
    });
    let kinds = path(namespace, kind, None);
    let created = send(&place.client, Method::POST, &kinds, Some(&object), false).await?;
    if created.refusal().is_some() {
        return Ok(created);
    }
    let own = path(namespace, kind, Some("probe"));
    let read = send(&place.client, Method::GET, &own, None, false).await?;
    send(&place.client, Method::DELETE, &own, None, false).await?;
    Ok(read)
}

fn complaint(probe: &Probe, outcome: &Outcome) -> Option<String> {
    let spec = &outcome.body["spec"];
    match (&probe.expected, outcome.refusal()) {
        (Expected::Refused, Some(_)) if outcome.status == 422 => None,
        (Expected::Refused, Some(refusal)) => Some(format!("refused with {}: {refusal}", outcome.status)),
        (Expected::Refused, None) => Some("was taken".to_owned()),
        (_, Some(refusal)) => Some(format!("was refused: {refusal}")),
        (Expected::Stored(path, value), None) => match at(spec, path) {
            Some(stored) if holds(stored, value) => None,
            stored => Some(format!("is stored as {stored:?} instead of {value}")),
        },
        (Expected::Absent(path), None) => at(spec, path).map(|stored| format!("is stored as {stored}")),
    }
}
