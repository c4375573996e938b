//! Generates the values.schema.json of charts whose values have the fields of a custom resource.
//!
//! The fields come from the CRD, so that a chart accepts each of them and refuses misspelt ones. `schema/<chart>.json` has the
//! values that the chart adds. Fields of Kubernetes' own types are checked as in the chart `slurm`.
#![allow(
    clippy::indexing_slicing,
    reason = "an index into JSON that is not there gives null"
)]

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::repository;

/// A chart, and where the fields of a custom resource are in its values.
#[derive(Debug)]
pub struct Chart<'a> {
    pub name: &'a str,
    /// File of the CRD.
    pub crd: &'a str,
    /// Fields of the spec that the chart sets itself.
    pub without: &'a [&'a str],
    /// JSON pointer to the `properties` that the fields are added to.
    pub place: &'a str,
    /// Whether required fields are required in the values too, or may come from another part of the values.
    pub required: bool,
}

/// Chart `slurm-cluster`: one SlurmCluster.
pub const SLURM_CLUSTER: Chart<'_> = Chart {
    name: "slurm-cluster",
    crd: "keelson.dev_slurmclusters.yaml",
    without: &[],
    place: "/properties",
    required: true,
};

/// Chart `nodesets`: NodeSets of one cluster.
pub const NODESETS: Chart<'_> = Chart {
    name: "nodesets",
    crd: "slinky.slurm.net_nodesets.yaml",
    without: &["controllerRef"],
    place: "/definitions/nodeset/properties",
    required: false,
};

/// Returns the schema of the spec of a CRD.
pub fn spec(crd: &str) -> Result<Value> {
    let path = repository()
        .join("charts/slurm-operator-crds/templates")
        .join(crd);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let crd: Value = serde_saphyr::from_str(&text)?;
    let pointer = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    crd.pointer(pointer).cloned().context("the CRD has no spec")
}

/// Generates the schema of a chart's values.
pub fn values_schema(chart: &Chart<'_>) -> Result<String> {
    let read = |path: &str| -> Result<Value> {
        let path = repository().join(path);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))
    };
    let mut schema = read(&format!("tests/charts/schema/{}.json", chart.name))?;
    let shared = read("charts/slurm/values.schema.json")?;
    let fields = spec(chart.crd)?;
    let fields = fields["properties"]
        .as_object()
        .context("a spec without fields")?;
    let place = schema
        .pointer_mut(chart.place)
        .and_then(Value::as_object_mut)
        .with_context(|| format!("no {} in the chart's own values", chart.place))?;
    for (name, field) in fields {
        if !chart.without.contains(&name.as_str()) {
            place.insert(name.clone(), closed(field, chart.required));
        }
    }
    add_definitions(&mut schema, &shared);
    Ok(format!("{}\n", serde_json::to_string_pretty(&schema)?))
}

/// The values of a field: no other properties, and null everywhere, because null removes a value.
fn closed(field: &Value, required: bool) -> Value {
    if field["x-kubernetes-int-or-string"] == json!(true) {
        return json!({ "type": ["integer", "string", "null"] });
    }
    if field["x-kubernetes-preserve-unknown-fields"] == json!(true) {
        return of_kubernetes(field["description"].as_str().unwrap_or_default());
    }
    let mut out = Map::from_iter([("type".to_owned(), json!([field["type"], "null"]))]);
    if let Some(properties) = field["properties"].as_object() {
        let properties: Map<String, Value> = properties
            .iter()
            .map(|(name, property)| (name.clone(), closed(property, required)))
            .collect();
        out.insert("properties".to_owned(), Value::Object(properties));
        out.insert("additionalProperties".to_owned(), json!(false));
    }
    for keyword in ["additionalProperties", "items"] {
        if field[keyword].is_object() {
            out.insert(keyword.to_owned(), closed(&field[keyword], required));
        }
    }
    if let Some(values) = field["enum"].as_array() {
        let mut values = values.clone();
        values.push(Value::Null);
        out.insert("enum".to_owned(), Value::Array(values));
    }
    for keyword in ["minimum", "maximum"] {
        if let Some(number) = field[keyword].as_f64() {
            #[expect(clippy::cast_possible_truncation, reason = "limits of whole numbers")]
            out.insert(keyword.to_owned(), json!(number as i64));
        }
    }
    for keyword in ["pattern", "minLength", "maxLength", "minItems", "maxItems"] {
        if let Some(limit) = field.get(keyword) {
            out.insert(keyword.to_owned(), limit.clone());
        }
    }
    if let (true, Some(names)) = (required, field.get("required")) {
        out.insert("required".to_owned(), names.clone());
    }
    Value::Object(out)
}

/// The fields of a type of Kubernetes, which the description of our field names.
fn of_kubernetes(description: &str) -> Value {
    let types = [
        ("core/v1 Container", "container"),
        ("core/v1 PodSpec", "podSpec"),
        ("core/v1 ServiceSpec", "serviceSpec"),
    ];
    types
        .iter()
        .find(|(name, _)| description.contains(name))
        .map_or_else(
            || json!({ "type": ["object", "null"] }),
            |(_, definition)| json!({ "$ref": format!("#/definitions/{definition}") }),
        )
}

/// Adds the definitions of chart `slurm` that the schema refers to.
fn add_definitions(schema: &mut Value, shared: &Value) {
    loop {
        let mut wanted = BTreeSet::new();
        references(schema, &mut wanted);
        let known = &mut schema["definitions"];
        wanted.retain(|name| known.get(name).is_none());
        if wanted.is_empty() {
            return;
        }
        for name in wanted {
            let mut definition = match name.as_str() {
                "image" => json!({ "type": ["string", "null"], "minLength": 1 }),
                "serviceSpec" => shared["definitions"]["service"]["properties"]["spec"].clone(),
                _ => shared["definitions"][&name].clone(),
            };
            // Users and groups are not merged by Kubernetes' rules.
            if !["user", "group"].contains(&name.as_str()) {
                allow_patch(&mut definition);
            }
            known[&name] = definition;
        }
    }
}

fn references(node: &Value, found: &mut BTreeSet<String>) {
    match node {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str);
            found.extend(
                name.and_then(|name| name.strip_prefix("#/definitions/"))
                    .map(str::to_owned),
            );
            fields.values().for_each(|inner| references(inner, found));
        }
        Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
        _ => {}
    }
}

/// Allows the directives of strategic merge patches, such as `$patch: delete`.
fn allow_patch(node: &mut Value) {
    match node {
        Value::Object(fields) => {
            fields.values_mut().for_each(allow_patch);
            if fields.get("additionalProperties") == Some(&json!(false)) {
                fields.insert("patternProperties".to_owned(), json!({ "^\\$": true }));
            }
            if let Some(required) = fields.remove("required") {
                let either = json!([{ "required": required }, { "required": ["$patch"] }]);
                fields.insert("anyOf".to_owned(), either);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(allow_patch),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_closed_and_may_be_null() {
        let field = json!({
            "type": "object", "required": ["count"], "description": "GPUs.",
            "properties": {
                "count": { "type": "integer", "format": "int32", "minimum": 1.0 },
                "mode": { "type": "string", "enum": ["a"] },
                "size": { "anyOf": [], "x-kubernetes-int-or-string": true },
                "labels": { "type": "object", "additionalProperties": { "type": "string" } },
            },
        });
        let expected = json!({
            "type": ["object", "null"], "required": ["count"], "additionalProperties": false,
            "properties": {
                "count": { "type": ["integer", "null"], "minimum": 1 },
                "mode": { "type": ["string", "null"], "enum": ["a", null] },
                "size": { "type": ["integer", "string", "null"] },
                "labels": { "type": ["object", "null"], "additionalProperties": { "type": ["string", "null"] } },
            },
        });
        assert_eq!(closed(&field, true), expected);
        assert_eq!(closed(&field, false).get("required"), None);
    }

    #[test]
    fn fields_of_kubernetes_are_those_that_the_description_names() {
        let of = |text: &str| {
            closed(
                &json!({ "description": text, "x-kubernetes-preserve-unknown-fields": true }),
                true,
            )
        };
        assert_eq!(
            of("Fields of a core/v1 PodSpec, merged."),
            json!({ "$ref": "#/definitions/podSpec" })
        );
        assert_eq!(of("Any fields."), json!({ "type": ["object", "null"] }));
    }

    #[test]
    fn what_has_to_have_a_name_may_be_removed_by_it() {
        let mut definition =
            json!({ "required": ["name"], "properties": { "name": {} }, "additionalProperties": false });
        allow_patch(&mut definition);
        assert_eq!(
            definition["anyOf"],
            json!([{ "required": ["name"] }, { "required": ["$patch"] }])
        );
        assert_eq!(definition["patternProperties"], json!({ "^\\$": true }));
    }
}
