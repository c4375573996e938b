//! Tests every default of the CRDs by creating an object and reading it back.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use axum::http::Method;
use serde_json::{Value, json};

use crate::api::{path, send};
use crate::place::Place;
use crate::rows::{Defaulted, defaults};

/// Compares each stored object with the expected one, and the added fields with the defaults that the CRD declares.
pub async fn every_default(place: &Place, namespace: &str) -> Result<()> {
    for Defaulted {
        kind,
        written,
        stored,
    } in defaults()
    {
        let object = json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "metadata": { "name": "d" }, "spec": written,
        });
        let created = send(
            &place.client,
            Method::POST,
            &path(namespace, &kind, None),
            Some(&object),
            false,
        )
        .await?;
        ensure!(created.refusal().is_none(), "{kind}: {:?}", created.refusal());
        let read = send(
            &place.client,
            Method::GET,
            &path(namespace, &kind, Some("d")),
            None,
            false,
        )
        .await?;
        ensure!(read.body["spec"] == stored, "{kind}: {:#}", read.body["spec"]);

        let added: BTreeSet<String> = leaves(&stored).difference(&leaves(&written)).cloned().collect();
        let declared = declared(&kind)?;
        ensure!(
            added == declared,
            "{kind}: {:?}",
            added.symmetric_difference(&declared).collect::<Vec<_>>()
        );
    }
    Ok(())
}

/// Returns the paths of all values in an object, without the indexes of list items.
fn leaves(value: &Value) -> BTreeSet<String> {
    fn walk(value: &Value, at: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields
                .iter()
                .for_each(|(name, value)| walk(value, &format!("{at}.{name}"), found)),
            Value::Array(items) => items.iter().for_each(|item| walk(item, at, found)),
            _ => drop(found.insert(at.to_owned())),
        }
    }
    let mut found = BTreeSet::new();
    walk(value, "", &mut found);
    found
}

/// Returns the paths in the spec for which the kind's CRD declares a default.
fn declared(kind: &str) -> Result<BTreeSet<String>> {
    fn walk(schema: &Value, at: &str, found: &mut BTreeSet<String>) {
        if schema.get("default").is_some() {
            found.insert(at.to_owned());
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            walk(property, &format!("{at}.{name}"), found);
        }
        if let Some(items) = schema.get("items") {
            walk(items, at, found);
        }
    }
    let crds = keelson_api::crds()?;
    let crd = crds
        .iter()
        .find(|crd| crd.spec.names.kind == kind)
        .context("no such kind")?;
    let schema =
        serde_json::to_value(&crd.spec.versions)?[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
            .clone();
    let mut found = BTreeSet::new();
    walk(&schema, "", &mut found);
    Ok(found)
}
