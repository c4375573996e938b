//! Converts the schemas that schemars derives into structural schemas, which the API server requires.
//!
//! The rules are those of Slinky's CRDs: only an absent value means unset (`null` is pruned and then defaulted), except for
//! fields with `#[schemars(extend("nullable" = true))]`, where `null` is stored.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::{Map, Value, json};

/// Structural schema of `T`, with all subschemas inlined.
pub(crate) fn structural<T: JsonSchema>() -> Result<JSONSchemaProps, serde_json::Error> {
    let settings = SchemaSettings::draft07().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    make_structural(&mut schema);
    serde_json::from_value(schema)
}

fn make_structural(node: &mut Value) {
    let Value::Object(schema) = node else { return };
    unwrap_option(schema);
    flatten_unit_enum(schema);
    for noise in ["title", "$schema", "definitions"] {
        schema.remove(noise);
    }
    let is_object = schema.get("type").is_some_and(|t| t == "object");
    for (keyword, child) in schema.iter_mut() {
        match keyword.as_str() {
            "properties" => {
                for property in child.as_object_mut().into_iter().flat_map(Map::values_mut) {
                    make_structural(property);
                }
            }
            "items" | "additionalProperties" => make_structural(child),
            _ => {}
        }
    }
    // The API server prunes unknown fields.
    if is_object && schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        schema.remove("additionalProperties");
    }
    // Rust docs are wrapped; descriptions are not.
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = one_paragraph_each(text);
    }
}

/// schemars derives `Option<T>` as `type: [T, "null"]`, as `anyOf: [T, null]` or as an enum with `null`.
fn unwrap_option(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|t| t != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|v| !v.is_null());
    }
    if let Some(Value::Array(branches)) = schema.get("anyOf") {
        let mut meant: Vec<Value> = branches
            .iter()
            .filter(|b| b.get("type") != Some(&json!("null")))
            .cloned()
            .collect();
        if meant.len() < branches.len()
            && meant.len() == 1
            && let Some(Value::Object(inner)) = meant.pop()
        {
            schema.remove("anyOf");
            for (key, value) in inner {
                // The field's own description takes precedence over that of its type.
                schema.entry(key).or_insert(value);
            }
        }
    }
}

/// schemars derives an enum with documented variants as `oneOf` of constants; the API server requires one `enum`.
fn flatten_unit_enum(schema: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = schema.get("oneOf") else {
        return;
    };
    let mut values = Vec::new();
    let mut lines = Vec::new();
    for variant in variants {
        if let Some(constant) = variant.get("const") {
            if let (Some(name), Some(text)) = (
                constant.as_str(),
                variant.get("description").and_then(Value::as_str),
            ) {
                lines.push(format!("`{name}`: {}", one_paragraph_each(text)));
            }
            values.push(constant.clone());
        } else if let Some(Value::Array(group)) = variant.get("enum") {
            values.extend(group.iter().cloned());
        }
    }
    schema.remove("oneOf");
    schema.insert("type".into(), json!("string"));
    schema.insert("enum".into(), Value::Array(values));
    if !lines.is_empty() {
        let head = schema
            .get("description")
            .and_then(Value::as_str)
            .map(|d| format!("{}\n\n", one_paragraph_each(d)));
        let text = format!("{}{}", head.unwrap_or_default(), lines.join("\n\n"));
        schema.insert("description".into(), text.into());
    }
}

fn one_paragraph_each(text: &str) -> String {
    text.split("\n\n")
        .map(|paragraph| paragraph.lines().map(str::trim).collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join("\n\n")
}

/// A JSON object with unknown fields that must be preserved.
pub(crate) fn raw_object() -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// Conditions like `metav1.Condition`: a map keyed by `type`.
pub(crate) fn conditions(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": { "type": "string", "format": "date-time",
                    "description": "When the status last changed." },
                "message": { "type": "string", "maxLength": 32768,
                    "description": "The current state, what the operator is waiting for, and what the user can do." },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0,
                    "description": "Generation of the object that the condition was computed from." },
                "reason": { "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "Machine-readable reason, one word." },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"],
                    "description": "Status of the condition." },
                "type": { "type": "string", "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                    "description": "Type of the condition." }
            }
        }
    })
}

/// A label selector, without the long upstream descriptions.
pub(crate) fn label_selector(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": { "type": "object", "additionalProperties": { "type": "string" } },
            "matchExpressions": {
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "type": "string" },
                        "operator": { "type": "string" },
                        "values": { "type": "array", "x-kubernetes-list-type": "atomic", "items": { "type": "string" } }
                    }
                }
            }
        }
    })
}
