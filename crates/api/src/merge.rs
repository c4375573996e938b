//! What users write, over what the operator builds: pods, containers, Services.
//!
//! The rules are those of Kubernetes' strategic merge on the pod schema, on raw JSON, so that unknown fields pass and a
//! written `false`, `0` or `""` counts:
//! - absent keeps ours, `null` or `$patch: delete` deletes ours, maps merge key by key, scalars are taken as written;
//! - keyed lists (`env`, `volumes`, …) merge element by element, ours first, then what the user adds; `[]` adds nothing;
//! - all other lists are replaced, by `[]` too; only a container's `args` are put behind ours;
//! - of fields that exclude each other (probe handlers, volume sources, `value`/`valueFrom`) the user's stays alone.
//!
//! Pure: values in, values out. Nothing here can fail on what a user wrote; the API server judges the result.

use k8s_openapi::api::core::v1::ServiceSpec;
use serde_json::{Map, Value};

use crate::overrides::{RawObject, ServiceOverride};

/// Why a merge gave no result.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A bug on our side: no user's value comes into it.
    #[error("the Service that the operator built cannot be written as JSON")]
    Service(#[source] serde_json::Error),
    /// The Service would be a name for a host elsewhere, where daemons and the operator would then send their tokens.
    #[error("service.spec.type must not be ExternalName: write ClusterIP, NodePort or LoadBalancer")]
    ExternalName,
}

/// The operator's container with the user's changes.
pub fn merge_container(mut ours: Value, user: Option<&RawObject>) -> Value {
    if let Some(user) = user {
        merge_value(Shape::Container, &mut ours, &user.0);
    }
    ours
}

/// The operator's pod spec with the user's changes. The containers in `ours` may be results of [`merge_container`].
pub fn merge_pod_spec(mut ours: Value, user: Option<&RawObject>) -> Value {
    if let Some(user) = user {
        merge_value(Shape::PodSpec, &mut ours, &user.0);
    }
    ours
}

/// The operator's Service with the user's changes. Selector entries of ours stand; a port with our port's name or number
/// changes ours; `externalIPs` is dropped because it lets a namespace take over foreign traffic (CVE-2020-8554).
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

/// Which part of the pod or Service schema a JSON object is: what its lists and exclusive fields mean depends on it.
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
    /// The user's elements are put behind ours.
    Appended,
    /// Elements merge when one of these fields is equal.
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

    /// Whether a field is one of a group of which only one may be set.
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

    /// A probe's handler is taken whole: half of ours and half of theirs checks neither daemon.
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
            // Elements that the user repeats do not merge with each other: 53/TCP and 53/UDP are two ports.
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

/// `null`, or the directive that survives tools which drop `null`s (Helm, `kubectl apply`).
fn is_deletion(value: &Value) -> bool {
    value.is_null() || value.get("$patch").is_some_and(|directive| directive == "delete")
}

/// Directives of patches are no fields; the API server would refuse them.
fn is_directive(field: &str) -> bool {
    field == "$patch"
        || field == "$retainKeys"
        || field.starts_with("$setElementOrder/")
        || field.starts_with("$deleteFromPrimitiveList/")
}

/// Where there is nothing of ours to delete, a deletion has done its work.
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
