//! Rules on what users write over pods, containers and Services: raw JSON that must read as the Kubernetes type.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ServiceSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::merge::without_deletions;
use crate::overrides::{Metadata, PodTemplate, RawObject, ServiceOverride};
use crate::scalars::Amount;
use crate::validate::path::Path;
use crate::validate::report::Report;
use crate::validate::text;
use crate::well_known::label;

/// Labels that the operator sets on pods whatever the user writes.
const OPERATOR_LABELS: [&str; 5] = [
    label::APP,
    label::INSTANCE,
    label::COMPONENT,
    label::CLUSTER,
    label::REVISION_HASH,
];

/// Reads raw JSON as a Kubernetes type, or says where it is not one. Deletions are no values.
pub(crate) fn read<T: DeserializeOwned>(
    path: &Path,
    raw: &RawObject,
    kind: &str,
    report: &mut Report,
) -> Option<T> {
    directives(path, &raw.0, report);
    let value = without_deletions(&Value::Object(raw.0.clone()));
    let mut track = serde_path_to_error::Track::new();
    let reader = serde_path_to_error::Deserializer::new(value, &mut track);
    // A newer Kubernetes may know the field, so this is no reason to refuse.
    let typed = serde_ignored::deserialize(reader, |unknown| {
        let text = format!("is no field of a {kind} that is known here: check its spelling");
        report.warn(&path.join_ignored(&unknown), text);
    });
    typed
        .map_err(|error: serde_json::Error| {
            report.refuse(
                &path.join_serde(&track.path()),
                format!("does not fit a {kind}: {error}"),
                "write it as Kubernetes has it",
            );
        })
        .ok()
}

/// Of the patch directives only `$patch: delete` and `$patch: replace` have a meaning here.
fn directives(path: &Path, map: &serde_json::Map<String, Value>, report: &mut Report) {
    for (field, value) in map {
        let at = path.field(field);
        if field.starts_with('$') {
            let known = field == "$patch" && (value == "delete" || value == "replace");
            if !known {
                report.refuse(
                    &at,
                    format!("the directive {field}: {value} is not supported"),
                    "leave it out",
                );
            }
        }
        match value {
            Value::Object(inner) => directives(&at, inner, report),
            Value::Array(list) => {
                for (index, item) in list.iter().enumerate() {
                    if let Value::Object(inner) = item {
                        directives(&at.index(index), inner, report);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The override of one of the operator's containers.
pub(crate) fn container(path: &Path, raw: Option<&RawObject>, report: &mut Report) {
    let Some(raw) = raw else { return };
    let Some(typed) = read::<Container>(path, raw, "container", report) else {
        return;
    };
    if raw.0.contains_key("name") {
        container_name(&path.field("name"), &typed.name, report);
    }
    container_fields(path, &typed, report);
}

fn container_name(path: &Path, name: &str, report: &mut Report) {
    if !text::is_dns_label(name) {
        report.refuse(
            path,
            format!("{name:?} cannot be the name of a container"),
            "write lower-case letters, digits and '-', at most 63",
        );
    }
}

fn container_fields(path: &Path, container: &Container, report: &mut Report) {
    if let Some(resources) = &container.resources {
        let path = path.field("resources");
        quantities(&path.field("limits"), resources.limits.as_ref(), report);
        quantities(&path.field("requests"), resources.requests.as_ref(), report);
    }
    for (index, env) in container.env.iter().flatten().enumerate() {
        if env.name.is_empty() || env.name.contains('=') {
            report.refuse(
                &path.field("env").index(index).field("name"),
                format!("{:?} cannot be the name of a variable", env.name),
                "write a name without '='",
            );
        }
    }
}

pub(crate) fn quantities(path: &Path, map: Option<&BTreeMap<String, Quantity>>, report: &mut Report) {
    for (name, quantity) in map.into_iter().flatten() {
        quantity_text(&path.field(name), &quantity.0, report);
    }
}

fn quantity_text(path: &Path, text: &str, report: &mut Report) {
    match Amount::parse(text) {
        Err(_) => report.refuse(
            path,
            format!("{text:?} is not a quantity"),
            "write a number with a unit, such as 500m, 2 or 10Gi",
        ),
        Ok(amount) if amount < Amount::ZERO => {
            report.refuse(path, format!("{text} is negative"), "write 0 or more");
        }
        Ok(_) => {}
    }
}

/// The changes to a pod. `ours` are the names of the operator's containers and of its init containers.
pub(crate) fn template(template: Option<&PodTemplate>, ours: (&[&str], &[&str]), report: &mut Report) {
    let Some(template) = template else { return };
    let path = Path::spec().field("template");
    if let Some(written) = &template.metadata {
        metadata(&path.field("metadata"), written, report);
        for (key, value) in written.labels.iter().flatten() {
            if OPERATOR_LABELS.contains(&key.as_str()) {
                let at = path.field("metadata").field("labels").field(key);
                report.warn(
                    &at,
                    format!("{value:?} is not used: the operator sets this label"),
                );
            }
        }
    }
    let path = path.field("spec");
    let Some(spec) = template
        .spec
        .as_ref()
        .and_then(|raw| read::<PodSpec>(&path, raw, "pod", report))
    else {
        return;
    };
    containers(&path, &spec, ours, report);
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = path.field("volumes").index(index);
        if !text::is_dns_label(&volume.name) {
            report.refuse(
                &path.field("name"),
                format!("{:?} cannot be the name of a volume", volume.name),
                "write lower-case letters, digits and '-', at most 63",
            );
        }
        if let Some(size) = volume.empty_dir.as_ref().and_then(|dir| dir.size_limit.as_ref()) {
            quantity_text(&path.field("emptyDir").field("sizeLimit"), &size.0, report);
        }
    }
    if spec.node_name.is_some_and(|name| !name.is_empty()) {
        report.warn(
            &path.field("nodeName"),
            "pods would pass by the scheduler; use nodeSelector or affinity",
        );
    }
    if spec.restart_policy.is_some_and(|policy| policy != "Always") {
        report.refuse(
            &path.field("restartPolicy"),
            "the daemons must be restarted",
            "write Always, or leave it out",
        );
    }
}

fn containers(path: &Path, spec: &PodSpec, ours: (&[&str], &[&str]), report: &mut Report) {
    let main: Vec<&Container> = spec.containers.iter().collect();
    let init: Vec<&Container> = spec.init_containers.iter().flatten().collect();
    let mut seen: Vec<&str> = Vec::new();
    for (field, list, other_lists_names) in [("containers", main, ours.1), ("initContainers", init, ours.0)] {
        for (index, container) in list.into_iter().enumerate() {
            let at = path.field(field).index(index);
            container_name(&at.field("name"), &container.name, report);
            container_fields(&at, container, report);
            if seen.contains(&container.name.as_str()) {
                report.refuse(
                    &at.field("name"),
                    format!("{:?} is there twice", container.name),
                    "give each its own name",
                );
            }
            if other_lists_names.contains(&container.name.as_str()) {
                let other = if field == "containers" {
                    "initContainers"
                } else {
                    "containers"
                };
                report.refuse(
                    &at.field("name"),
                    format!("the operator has a container {:?} in {other}", container.name),
                    format!("write it under {other} to change that one, or give it another name"),
                );
            }
            seen.push(&container.name);
        }
    }
}

/// Labels and annotations of children.
fn metadata(path: &Path, metadata: &Metadata, report: &mut Report) {
    for (field, map) in [
        ("labels", &metadata.labels),
        ("annotations", &metadata.annotations),
    ] {
        for (key, value) in map.iter().flatten() {
            let at = path.field(field).field(key);
            if !text::is_label_key(key) {
                report.refuse(
                    &at,
                    format!("{key:?} cannot be a key"),
                    "write [prefix/]name with letters, digits, '-', '_' and '.'",
                );
            }
            if field == "labels" && !text::is_label_value(value) {
                report.refuse(
                    &at,
                    format!("{value:?} cannot be the value of a label"),
                    "write at most 63 letters, digits, '-', '_' and '.'",
                );
            }
        }
    }
}

/// The changes to a Service.
pub(crate) fn service(service: Option<&ServiceOverride>, report: &mut Report) {
    let Some(service) = service else { return };
    let path = Path::spec().field("service");
    if let Some(written) = &service.metadata {
        metadata(&path.field("metadata"), written, report);
    }
    for (field, port) in [("port", service.port), ("nodePort", service.node_port)] {
        // 0 means "not set", as it does for the peer.
        if let Some(port) = port.filter(|port| *port != 0) {
            text::port(&path.field(field), port, report);
        }
    }
    let path = path.field("spec");
    let Some(raw) = &service.spec else { return };
    read::<ServiceSpec>(&path, raw, "Service", report);
    if raw.0.get("externalIPs").is_some_and(|ips| !ips.is_null()) {
        report.warn(
            &path.field("externalIPs"),
            "is not passed on: it lets a Service take over foreign traffic (CVE-2020-8554)",
        );
    }
}
