//! Tests that any object that the CRDs accept is read and written without loss, and that reading fills in the same
//! defaults as the API server. Objects are generated from the CRD schemas, so that no field is missed.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the helpers of a test may fail it"
)]

use keelson_api::{Accounting, Controller, LoginSet, NodeSet, RestApi, Token};
use proptest::prelude::*;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

fn schema(kind: &str) -> Value {
    let crd = keelson_api::crds()
        .unwrap()
        .into_iter()
        .find(|crd| crd.spec.names.kind == kind)
        .unwrap();
    let version = serde_json::to_value(&crd.spec.versions[0]).unwrap();
    version["schema"]["openAPIV3Schema"]["properties"].clone()
}

fn any_json() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(".{0,4}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
    .boxed()
}

/// Generates a text that matches the pattern; the few patterns in our CRDs are listed.
fn text(pattern: &str) -> BoxedStrategy<String> {
    let examples: &[&str] = match pattern {
        p if p.starts_with("^([a-z0-9]([-a-z0-9]") => &["Ready", "a.b/C"],
        "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$" => &["AsSpecified", "A"],
        other => panic!("no example for the pattern {other}"),
    };
    prop::sample::select(
        examples
            .iter()
            .map(|&example| example.to_owned())
            .collect::<Vec<_>>(),
    )
    .boxed()
}

fn any_text(schema: &Value) -> BoxedStrategy<Value> {
    let text = match (schema["pattern"].as_str(), schema["format"].as_str()) {
        (Some(pattern), _) => text(pattern),
        (None, Some("date-time")) => prop::sample::select(vec![
            "2026-11-15T22:00:00Z".to_owned(),
            "2026-11-15T22:00:00.123456789+05:30".to_owned(),
        ])
        .boxed(),
        (None, _) => ".{0,8}".boxed(),
    };
    text.prop_map(Value::from).boxed()
}

/// Generates any value that the API server accepts for the schema.
fn accepted(schema: &Value) -> BoxedStrategy<Value> {
    let value = if schema["x-kubernetes-int-or-string"] == json!(true) {
        prop_oneof![any_text(schema), any::<i64>().prop_map(Value::from)].boxed()
    } else if let Some(values) = schema["enum"].as_array() {
        prop::sample::select(values.clone()).boxed()
    } else {
        match schema["type"].as_str().unwrap() {
            "boolean" => any::<bool>().prop_map(Value::from).boxed(),
            "integer" if schema["format"] == "int64" => any::<i64>().prop_map(Value::from).boxed(),
            "integer" => any::<i32>().prop_map(Value::from).boxed(),
            "string" => any_text(schema),
            "array" => prop::collection::vec(accepted(&schema["items"]), 0..3)
                .prop_map(Value::from)
                .boxed(),
            "object" => object(schema),
            other => panic!("no values of type {other}"),
        }
    };
    if schema["nullable"] == json!(true) {
        prop_oneof![4 => value, 1 => Just(Value::Null)].boxed()
    } else {
        value
    }
}

fn object(schema: &Value) -> BoxedStrategy<Value> {
    if schema["x-kubernetes-preserve-unknown-fields"] == json!(true) {
        return prop::collection::btree_map(".{0,4}", any_json(), 0..4)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
            .boxed();
    }
    if schema.get("additionalProperties").is_some() {
        return prop::collection::btree_map(".{0,4}", accepted(&schema["additionalProperties"]), 0..3)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
            .boxed();
    }
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut fields: BoxedStrategy<Map<String, Value>> = Just(Map::new()).boxed();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let value = accepted(property);
        let value = if required.contains(&name.as_str()) {
            value.prop_map(Some).boxed()
        } else {
            prop::option::weighted(0.4, value).boxed()
        };
        let name = name.clone();
        fields = (fields, value)
            .prop_map(move |(mut fields, value)| {
                fields.extend(value.map(|value| (name.clone(), value)));
                fields
            })
            .boxed();
    }
    fields.prop_map(Value::Object).boxed()
}

/// Returns an object as the API server stores it: with defaults where the parent exists. The only difference is `null`
/// in a nullable field, which we omit.
fn stored(schema: &Value, value: &Value) -> Value {
    if schema["x-kubernetes-preserve-unknown-fields"] == json!(true) {
        return value.clone();
    }
    match value {
        Value::Array(list) => list.iter().map(|item| stored(&schema["items"], item)).collect(),
        Value::Object(map) if schema.get("properties").is_some() => {
            let mut filled = Map::new();
            for (name, property) in schema["properties"].as_object().unwrap() {
                match map.get(name).or_else(|| property.get("default")) {
                    None | Some(Value::Null) => {}
                    Some(value) => {
                        filled.insert(name.clone(), stored(property, value));
                    }
                }
            }
            Value::Object(filled)
        }
        other => other.clone(),
    }
}

/// Removes empty lists and texts from a status, because they are not written.
fn without_empties(mut status: Value) -> Value {
    if let Value::Object(fields) = &mut status {
        let emptiable = ["conditions", "endpoints", "selector", "nodeSetHash"];
        fields.retain(|name, value| {
            !emptiable.contains(&name.as_str()) || (*value != json!([]) && *value != json!(""))
        });
    }
    status
}

fn check<K: DeserializeOwned + Serialize>(
    kind: &str,
    spec: &Value,
    status: &Value,
) -> Result<(), TestCaseError> {
    let schema = schema(kind);
    let object = json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "metadata": { "name": "n" },
                         "spec": spec, "status": status });
    let read: K =
        serde_json::from_value(object.clone()).map_err(|e| TestCaseError::fail(format!("{e}: {object}")))?;
    let written = serde_json::to_value(&read).unwrap();
    prop_assert_eq!(&written["spec"], &stored(&schema["spec"], spec));
    prop_assert_eq!(
        normal_times(&written["status"]),
        normal_times(&without_empties(stored(&schema["status"], status)))
    );
    Ok(())
}

/// Converts condition times to seconds, because only the time is kept, not its format.
fn normal_times(status: &Value) -> Value {
    let mut status = status.clone();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        let time: jiff::Timestamp = condition["lastTransitionTime"].as_str().unwrap().parse().unwrap();
        condition["lastTransitionTime"] = json!(time.as_second());
    }
    status
}

fn object_of(kind: &str) -> impl Strategy<Value = (Value, Value)> + use<> {
    let schema = schema(kind);
    (accepted(&schema["spec"]), accepted(&schema["status"]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn accounting((spec, status) in object_of("Accounting")) {
        check::<Accounting>("Accounting", &spec, &status)?;
    }

    #[test]
    fn controller((spec, status) in object_of("Controller")) {
        check::<Controller>("Controller", &spec, &status)?;
    }

    #[test]
    fn loginset((spec, status) in object_of("LoginSet")) {
        check::<LoginSet>("LoginSet", &spec, &status)?;
    }

    #[test]
    fn nodeset((spec, status) in object_of("NodeSet")) {
        check::<NodeSet>("NodeSet", &spec, &status)?;
    }

    #[test]
    fn restapi((spec, status) in object_of("RestApi")) {
        check::<RestApi>("RestApi", &spec, &status)?;
    }

    #[test]
    fn token((spec, status) in object_of("Token")) {
        check::<Token>("Token", &spec, &status)?;
    }
}
