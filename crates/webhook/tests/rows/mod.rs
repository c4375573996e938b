//! Reads the rows, see `README.md` in this directory. Shared with the end-to-end tests.

#![allow(dead_code, reason = "not every test looks at every column")]

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The rows of one kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub kind: String,
    base: Value,
    pub rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub name: String,
    #[serde(default)]
    metadata: Option<Value>,
    #[serde(default)]
    spec: Option<Value>,
    #[serde(default)]
    pub then: Option<Value>,
    #[serde(default)]
    pub stored: bool,
    #[serde(default)]
    pub existing: Option<String>,
    #[serde(default)]
    pub refused: Vec<String>,
    #[serde(default)]
    pub by: Judge,
    #[serde(default)]
    pub warns: Vec<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Judge {
    #[default]
    Webhook,
    Cel,
    Schema,
}

#[derive(Debug, Deserialize)]
struct Context {
    objects: Vec<Value>,
}

pub fn tables() -> Vec<Table> {
    [
        include_str!("accounting.yaml"),
        include_str!("controller.yaml"),
        include_str!("loginset.yaml"),
        include_str!("nodeset.yaml"),
        include_str!("restapi.yaml"),
        include_str!("slurmcluster.yaml"),
        include_str!("token.yaml"),
    ]
    .map(|text| serde_saphyr::from_str(text).unwrap())
    .into()
}

/// A spec as it is written, and as it is stored after defaulting.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaulted {
    pub kind: String,
    pub written: Value,
    pub stored: Value,
}

pub fn defaults() -> Vec<Defaulted> {
    serde_saphyr::from_str(include_str!("defaults.yaml")).unwrap()
}

/// Returns the existing objects.
pub fn context() -> Vec<Value> {
    let context: Context = serde_saphyr::from_str(include_str!("context.yaml")).unwrap();
    context.objects
}

/// Returns the API version of a kind of ours.
pub fn api_version(kind: &str) -> &'static str {
    match kind {
        "SlurmCluster" => "keelson.dev/v1alpha1",
        _ => "slinky.slurm.net/v1beta1",
    }
}

impl Table {
    /// Returns the object of a row before `then`. Unless the row has a name, it is made of the kind and the row's number: a
    /// SlurmCluster must not have the name of another kind's stored row.
    pub fn object(&self, number: usize, row: &Row, namespace: &str) -> Value {
        if let Some(name) = &row.existing {
            let mut object = context()
                .into_iter()
                .find(|object| object["kind"] == self.kind && object["metadata"]["name"] == *name)
                .unwrap();
            object["metadata"]["namespace"] = json!(namespace);
            return object;
        }
        let mut object = json!({
            "apiVersion": api_version(&self.kind), "kind": self.kind,
            "metadata": { "name": format!("{}-{number}", self.kind.to_lowercase()), "namespace": namespace },
            "spec": self.base,
        });
        let patches: BTreeMap<&str, &Option<Value>> =
            [("metadata", &row.metadata), ("spec", &row.spec)].into();
        for (field, patch) in patches {
            if let Some(patch) = patch {
                merge(&mut object[field], patch);
            }
        }
        object
    }
}

/// Applies a JSON merge patch.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key.as_str()], value);
        }
    }
}
