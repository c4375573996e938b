//! Fields of a child's spec in the spec of its `SlurmCluster`.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// Some fields of the spec `S`, kept as written. An absent field stays absent in the child, so that its default applies and
/// others, such as an autoscaler, can set it.
pub struct Fields<S> {
    /// The fields, by name.
    pub values: Map<String, Value>,
    of: PhantomData<fn() -> S>,
}

impl<S> Fields<S> {
    /// Whether this field is written, also if it is `null`.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }
}

impl<S> From<Map<String, Value>> for Fields<S> {
    fn from(values: Map<String, Value>) -> Self {
        Self {
            values,
            of: PhantomData,
        }
    }
}

// Derives would require the same of `S`.

impl<S> Clone for Fields<S> {
    fn clone(&self) -> Self {
        self.values.clone().into()
    }
}

impl<S> Default for Fields<S> {
    fn default() -> Self {
        Map::new().into()
    }
}

impl<S> PartialEq for Fields<S> {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl<S> fmt::Debug for Fields<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values.fmt(f)
    }
}

impl<S> Serialize for Fields<S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        self.values.serialize(serializer)
    }
}

impl<'de, S> Deserialize<'de> for Fields<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(Self::from)
    }
}

impl<S: JsonSchema> JsonSchema for Fields<S> {
    fn schema_name() -> Cow<'static, str> {
        format!("FieldsOf{}", S::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = S::json_schema(generator).to_value();
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("required");
            // This is the cluster itself.
            if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
                properties.remove(CONTROLLER_REF);
            }
        }
        relax(&mut schema);
        Schema::try_from(schema).unwrap_or_default()
    }
}

/// The field of a child that refers to the cluster's Controller.
pub(super) const CONTROLLER_REF: &str = "controllerRef";

/// Removes defaults and rules: both apply to the child, which has fields that the user left out.
fn relax(node: &mut Value) {
    match node {
        Value::Object(schema) => {
            schema.remove("default");
            schema.remove("x-kubernetes-validations");
            for (keyword, inner) in schema.iter_mut() {
                match (keyword.as_str(), inner) {
                    // A property may have any name.
                    ("properties", Value::Object(properties)) => properties.values_mut().for_each(relax),
                    (_, inner) => relax(inner),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(relax),
        _ => {}
    }
}
