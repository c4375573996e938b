//! Merges the user's overrides into the pods, containers and Services that the operator builds.
//!
//! Follows the rules of Kubernetes' strategic merge on the pod schema, on raw JSON, so that unknown fields are kept and an
//! explicit `false`, `0` or `""` is used:
//! - an absent field keeps ours, `null` or `$patch: delete` deletes ours, maps merge key by key, scalars replace ours;
//! - keyed lists (`env`, `volumes`, …) merge element by element, ours first, then the user's; `[]` adds nothing;
//! - all other lists are replaced, also by `[]`; only a container's `args` are appended to ours;
//! - of mutually exclusive fields (probe handlers, volume sources, `value`/`valueFrom`) only the user's remains.
//!
//! Pure: values in, values out. No user input makes a merge fail, except a Service of type ExternalName; the API server
//! validates the result.

use k8s_openapi::api::core::v1::ServiceSpec;
use serde_json::{Map, Value};

use crate::overrides::{RawObject, ServiceOverride};

/// Why a merge failed.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A bug in the operator, independent of the user's values.
    #[error("failed to serialize the operator's Service as JSON")]
    Service(#[source] serde_json::Error),
    /// The Service would be an alias of an external host, to which daemons and the operator would send their tokens.
    #[error("service.spec.type must not be ExternalName: use ClusterIP, NodePort or LoadBalancer")]
    ExternalName,
}

/// Merges the user's overrides into the operator's container.
pub fn merge_container(mut ours: Value, user: Option<&RawObject>) -> Value {
    if let Some(user) = user {
        merge_value(Shape::Container, &mut ours, &user.0);
    }
    ours
}

/// Merges the user's overrides into the operator's pod spec. The containers in `ours` may be results of [`merge_container`].
pub fn merge_pod_spec(mut ours: Value, user: Option<&RawObject>) -> Value {
    if let Some(user) = user {
        merge_value(Shape::PodSpec, &mut ours, &user.0);
    }
    ours
}

/// Merges the user's overrides into the operator's Service. Our selector entries are kept; a port with the name or number of
/// our port changes ours; `externalIPs` is dropped because it lets a namespace intercept other traffic (CVE-2020-8554).
pub fn merge_service_spec(ours: &ServiceSpec, user: Option<&ServiceOverride>) -> Result<Value, MergeError> {
    let mut merged = serde_json::to_value(ours).map_err(MergeError::Service)?;
    let Some(written) = user.and_then(|service| service.spec.as_ref()) else {
        return Ok(merged);
    };
    if written.is_external_name() {
        return Err(MergeError::ExternalName);
    }
    let selector = merged.get("selector").cloned();
    let mut written = written.0.clone();
    written.remove("externalIPs");
    merge_value(Shape::ServiceSpec, &mut merged, &written);
    if let (Value::Object(fields), Some(Value::Object(selector))) = (&mut merged, selector) {
        let slot = fields
            .entry("selector")
            .or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(slot) = slot {
            slot.extend(selector);
        }
    }
    Ok(merged)
}

/// The type of a JSON object in the pod or Service schema, which determines how its lists and exclusive fields merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    PodSpec,
    Container,
    Volume,
    EnvVar,
    EnvSource,
    Probe,
    Lifecycle,
    LifecycleHandler,
    ServiceSpec,
    Other,
}

enum List {
    /// Replaced as a whole.
    Atomic,
    /// The user's elements are appended to ours.
    Appended,
    /// Elements merge if one of these fields is equal.
    Keyed {
        keys: &'static [&'static str],
        element: Shape,
    },
}

impl Shape {
    /// Patch merge keys of the Kubernetes types.
    fn list(self, field: &str) -> List {
        let keyed = |keys, element| List::Keyed { keys, element };
        match (self, field) {
            (Self::PodSpec, "containers" | "initContainers" | "ephemeralContainers") => {
                keyed(&["name"], Self::Container)
            }
            (Self::PodSpec, "volumes") => keyed(&["name"], Self::Volume),
            (Self::PodSpec, "imagePullSecrets" | "resourceClaims" | "schedulingGates") => {
                keyed(&["name"], Self::Other)
            }
            (Self::PodSpec, "hostAliases") => keyed(&["ip"], Self::Other),
            (Self::PodSpec, "topologySpreadConstraints") => keyed(&["topologyKey"], Self::Other),
            (Self::Container, "args") => List::Appended,
            (Self::Container, "env") => keyed(&["name"], Self::EnvVar),
            (Self::Container, "ports") => keyed(&["containerPort"], Self::Other),
            (Self::Container, "volumeMounts") => keyed(&["mountPath"], Self::Other),
            (Self::Container, "volumeDevices") => keyed(&["devicePath"], Self::Other),
            (Self::ServiceSpec, "ports") => keyed(&["name", "port"], Self::Other),
            _ => List::Atomic,
        }
    }

    fn child(self, field: &str) -> Self {
        match (self, field) {
            (Self::Container, "livenessProbe" | "readinessProbe" | "startupProbe") => Self::Probe,
            (Self::Container, "lifecycle") => Self::Lifecycle,
            (Self::Lifecycle, "postStart" | "preStop") => Self::LifecycleHandler,
            (Self::EnvVar, "valueFrom") => Self::EnvSource,
            _ => Self::Other,
        }
    }

    /// Whether a field is mutually exclusive with others.
    fn is_exclusive(self, field: &str) -> bool {
        match self {
            Self::Volume => field != "name",
            Self::EnvVar => matches!(field, "value" | "valueFrom"),
            Self::EnvSource => true,
            Self::Probe => matches!(field, "exec" | "grpc" | "httpGet" | "tcpSocket"),
            Self::LifecycleHandler => matches!(field, "exec" | "httpGet" | "sleep" | "tcpSocket"),
            _ => false,
        }
    }

    /// A probe's handler is replaced as a whole: a mix of ours and the user's would be meaningless.
    fn is_replaced(self, field: &str) -> bool {
        self == Self::Probe && self.is_exclusive(field)
    }
}

fn merge_value(shape: Shape, ours: &mut Value, user: &Map<String, Value>) {
    if user.get("$patch").is_some_and(|directive| directive == "replace") {
        *ours = Value::Object(Map::new());
    }
    if !ours.is_object() {
        *ours = Value::Object(Map::new());
    }
    let Value::Object(ours) = ours else { return };
    if user
        .iter()
        .any(|(field, value)| shape.is_exclusive(field) && !is_deletion(value))
    {
        ours.retain(|field, _| !shape.is_exclusive(field) || user.contains_key(field));
    }
    for (field, value) in user {
        if is_directive(field) {
            continue;
        }
        match value {
            value if is_deletion(value) => {
                ours.remove(field);
            }
            Value::Object(map) if shape.is_replaced(field) => {
                ours.insert(field.clone(), without_deletions(&Value::Object(map.clone())));
            }
            Value::Object(map) => {
                let slot = ours.entry(field.clone()).or_insert(Value::Null);
                merge_value(shape.child(field), slot, map);
            }
            Value::Array(list) => {
                let slot = ours
                    .entry(field.clone())
                    .or_insert_with(|| Value::Array(Vec::new()));
                merge_list(&shape.list(field), slot, list);
            }
            scalar => {
                ours.insert(field.clone(), scalar.clone());
            }
        }
    }
}

fn merge_list(rule: &List, ours: &mut Value, user: &[Value]) {
    let wanted = user
        .iter()
        .filter(|item| !is_deletion(item))
        .map(without_deletions);
    let Value::Array(ours) = ours else {
        *ours = wanted.collect();
        return;
    };
    match rule {
        List::Atomic => *ours = wanted.collect(),
        List::Appended => ours.extend(wanted),
        List::Keyed { keys, element } => {
            // The user's elements do not merge with each other: 53/TCP and 53/UDP are two ports.
            let own = ours.len();
            for item in user {
                let position = ours
                    .iter()
                    .take(own)
                    .position(|candidate| same_key(keys, candidate, item));
                match (position.and_then(|at| ours.get_mut(at)), item) {
                    (Some(slot), item) if is_deletion(item) => *slot = Value::Null,
                    (None, item) if is_deletion(item) => {}
                    (Some(slot), Value::Object(map)) => merge_value(*element, slot, map),
                    (_, item) => ours.push(without_deletions(item)),
                }
            }
            ours.retain(|item| !item.is_null());
        }
    }
}

fn same_key(keys: &[&str], ours: &Value, user: &Value) -> bool {
    keys.iter()
        .any(|key| matches!((ours.get(key), user.get(key)), (Some(a), Some(b)) if a == b))
}

/// `null`, or `$patch: delete`, which tools that drop `null` (Helm, `kubectl apply`) keep.
fn is_deletion(value: &Value) -> bool {
    value.is_null() || value.get("$patch").is_some_and(|directive| directive == "delete")
}

/// Patch directives are not fields; the API server would reject them.
fn is_directive(field: &str) -> bool {
    field == "$patch"
        || field == "$retainKeys"
        || field.starts_with("$setElementOrder/")
        || field.starts_with("$deleteFromPrimitiveList/")
}

/// Removes deletions and directives from a value that has no counterpart of ours.
pub(crate) fn without_deletions(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(field, value)| !is_deletion(value) && !is_directive(field))
            .map(|(field, value)| (field.clone(), without_deletions(value)))
            .collect(),
        Value::Array(list) => list
            .iter()
            .filter(|item| !is_deletion(item))
            .map(without_deletions)
            .collect(),
        scalar => scalar.clone(),
    }
}
