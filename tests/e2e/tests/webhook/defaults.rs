//! Tests every default of the CRDs by creating an object and reading it back.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use axum::http::Method;
use serde_json::{Value, json};

use crate::api::{path, send};
use crate::place::Place;
use crate::rows::{Defaulted, api_version, defaults};

/// Compares each stored object with the expected one, and the fields added to all objects of a kind with the defaults that
/// its CRD declares.
pub async fn every_default(place: &Place, namespace: &str) -> Result<()> {
    let mut added: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (number, expected) in defaults().into_iter().enumerate() {
        let Defaulted {
            kind,
            written,
            stored,
        } = expected;
        let name = format!("d-{number}");
        let object = json!({
            "apiVersion": api_version(&kind), "kind": kind, "metadata": { "name": name }, "spec": written,
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
            &path(namespace, &kind, Some(&name)),
            None,
            false,
        )
        .await?;
        ensure!(read.body["spec"] == stored, "{kind}: {:#}", read.body["spec"]);

        let of_kind = added.entry(kind).or_default();
        of_kind.extend(leaves(&stored).difference(&leaves(&written)).cloned());
    }
    for (kind, added) in added {
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

/// Returns the paths in the spec for which the kind's CRD declares a default. The keys of a map are written as `*`.
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
        if let Some(values) = schema.get("additionalProperties") {
            walk(values, &format!("{at}.*"), found);
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
