//! Rules for the user's overrides of pods, containers and Services: raw JSON that must match the Kubernetes type.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::merge::without_deletions;
use crate::overrides::{Metadata, PodTemplate, RawObject};
use crate::scalars::Amount;
use crate::validate::path::Path;
use crate::validate::report::Report;
use crate::validate::text;
use crate::well_known::label;

/// Labels that the operator always sets on pods.
const OPERATOR_LABELS: [&str; 5] = [
    label::APP,
    label::INSTANCE,
    label::COMPONENT,
    label::CLUSTER,
    label::REVISION_HASH,
];

/// Parses raw JSON as a Kubernetes type, or reports where it does not match. Deletions are skipped.
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
    // A newer Kubernetes may support the field, so this is only a warning.
    let typed = serde_ignored::deserialize(reader, |unknown| {
        let text = format!("unknown field of a {kind}; check the spelling");
        report.warn(&path.join_ignored(&unknown), text);
    });
    typed
        .map_err(|error: serde_json::Error| {
            report.refuse(
                &path.join_serde(&track.path()),
                format!("is not valid for a {kind}: {error}"),
                "check the Kubernetes API reference",
            );
        })
        .ok()
}

/// Rejects patch directives other than `$patch: delete` and `$patch: replace`.
fn directives(path: &Path, map: &serde_json::Map<String, Value>, report: &mut Report) {
    for (field, value) in map {
        let at = path.field(field);
        if field.starts_with('$') {
            let known = field == "$patch" && (value == "delete" || value == "replace");
            if !known {
                report.refuse(
                    &at,
                    format!("directive {field}: {value} is not supported"),
                    "remove it",
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

/// One of the operator's containers. The spec field with its overrides has the same name.
pub(crate) struct Own<'a> {
    name: &'a str,
    written: Option<&'a RawObject>,
    /// Whether the pods have this container.
    runs: bool,
}

/// The user's overrides of a pod: of each of the operator's containers, and of the whole pod.
pub(crate) struct Pod<'a> {
    pub(crate) containers: &'a [Own<'a>],
    pub(crate) init_containers: &'a [Own<'a>],
    pub(crate) template: Option<&'a PodTemplate>,
}

impl Pod<'_> {
    pub(crate) fn check(&self, report: &mut Report) {
        let spec = self.template.and_then(|written| template(written, report));
        if let Some(spec) = &spec {
            self.containers(spec, report);
        }
        let (main, init): (&[Container], &[Container]) = match &spec {
            Some(spec) => (
                &spec.containers,
                spec.init_containers.as_deref().unwrap_or_default(),
            ),
            None => (&[], &[]),
        };
        for (own, list) in [(self.containers, main), (self.init_containers, init)] {
            for own in own {
                own.check(list, report);
            }
        }
    }

    /// Checks the containers of the user's pod template: overrides of the operator's, and the user's own.
    fn containers(&self, spec: &PodSpec, report: &mut Report) {
        let path = Path::spec().field("template").field("spec");
        let init = spec.init_containers.as_deref().unwrap_or_default();
        let mut seen: Vec<&str> = Vec::new();
        for (field, list, own, (elsewhere, others)) in [
            (
                "containers",
                spec.containers.as_slice(),
                self.containers,
                ("initContainers", self.init_containers),
            ),
            (
                "initContainers",
                init,
                self.init_containers,
                ("containers", self.containers),
            ),
        ] {
            for (index, container) in list.iter().enumerate() {
                let at = path.field(field).index(index);
                let name = container.name.as_str();
                container_name(&at.field("name"), name, report);
                container_fields(&at, container, report);
                if seen.contains(&name) {
                    report.refuse(
                        &at.field("name"),
                        format!("duplicate name {name:?}"),
                        "use a unique name for each container",
                    );
                }
                seen.push(name);
                if others.iter().any(|other| other.name == name) {
                    report.refuse(
                        &at.field("name"),
                        format!("the operator already has a container {name:?} in {elsewhere}"),
                        format!("move it to {elsewhere} to change that container, or use another name"),
                    );
                } else if own.iter().all(|own| own.name != name)
                    && container.image.as_ref().is_none_or(String::is_empty)
                {
                    report.refuse(
                        &at.field("image"),
                        "is missing",
                        format!("set the image of {name}"),
                    );
                }
            }
        }
    }
}

impl<'a> Own<'a> {
    pub(crate) fn new(name: &'a str, written: Option<&'a RawObject>, runs: bool) -> Self {
        Self { name, written, runs }
    }

    /// `template` holds the containers of the user's pod template, which may override this container too.
    fn check(&self, template: &[Container], report: &mut Report) {
        let path = Path::spec().field(self.name);
        let mut typed = None;
        if let Some(raw) = self.written {
            let Some(read) = read::<Container>(&path, raw, "container", report) else {
                return;
            };
            if raw.0.contains_key("name") {
                container_name(&path.field("name"), &read.name, report);
            }
            container_fields(&path, &read, report);
            typed = Some(read);
        }
        let has_image =
            |container: &Container| container.image.as_ref().is_some_and(|image| !image.is_empty());
        let in_template = template
            .iter()
            .any(|container| container.name == self.name && has_image(container));
        if self.runs && !in_template && !typed.as_ref().is_some_and(has_image) {
            report.refuse(
                &path.field("image"),
                "is missing and has no default",
                format!("set the image of {}", self.name),
            );
        }
    }
}

fn container_name(path: &Path, name: &str, report: &mut Report) {
    if !text::is_dns_label(name) {
        report.refuse(
            path,
            format!("{name:?} is not a valid container name"),
            "use at most 63 lower-case letters, digits and '-'",
        );
    }
}

fn container_fields(path: &Path, container: &Container, report: &mut Report) {
    if let Some(image) = container.image.as_deref().filter(|image| !image.is_empty())
        && !is_image(image)
    {
        report.refuse(
            &path.field("image"),
            format!("{image:?} is not a valid image name"),
            "use [registry/]name[:tag][@digest], such as registry.example.org/slurm/slurmd:26.05",
        );
    }
    if let Some(resources) = &container.resources {
        let path = path.field("resources");
        quantities(&path.field("limits"), resources.limits.as_ref(), report);
        quantities(&path.field("requests"), resources.requests.as_ref(), report);
    }
    for (index, env) in container.env.iter().flatten().enumerate() {
        if env.name.is_empty() || env.name.contains('=') {
            report.refuse(
                &path.field("env").index(index).field("name"),
                format!("{:?} is not a valid variable name", env.name),
                "use a name without '='",
            );
        }
    }
}

/// `[registry[:port]/]name[:tag][@algorithm:digest]`, as container runtimes parse it.
pub(crate) fn is_image(text: &str) -> bool {
    let word = |part: &str, also: &[char]| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || also.contains(&c))
    };
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    let has_digest = digest.is_none_or(|digest| {
        digest.split_once(':').is_some_and(|(algorithm, hash)| {
            word(algorithm, &['+', '.', '_', '-'])
                && hash.len() >= 32
                && hash.chars().all(|c| c.is_ascii_hexdigit())
        })
    });
    // A colon before the last slash belongs to the registry's port.
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    let has_tag = tag.is_none_or(|tag| tag.len() <= 128 && word(tag, &['_', '.', '-']));
    let (registry, path) = match name.split_once('/') {
        Some((first, path)) if first.contains(['.', ':', '[']) || first == "localhost" => (Some(first), path),
        _ => (None, name),
    };
    let has_registry = registry.is_none_or(|host| {
        host.chars()
            .all(|c| c.is_ascii_alphanumeric() || ".-:[]".contains(c))
    });
    let component = |part: &str| {
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        part.starts_with(edge)
            && part.ends_with(edge)
            && part.chars().all(|c| edge(c) || matches!(c, '.' | '_' | '-'))
    };
    has_digest && has_tag && has_registry && path.split('/').all(component)
}

pub(crate) fn quantities(path: &Path, map: Option<&BTreeMap<String, Quantity>>, report: &mut Report) {
    for (name, quantity) in map.into_iter().flatten() {
        quantity_text(&path.field(name), &quantity.0, report);
    }
}

pub(crate) fn quantity_text(path: &Path, text: &str, report: &mut Report) {
    match Amount::parse(text) {
        Err(_) => report.refuse(
            path,
            format!("{text:?} is not a valid quantity"),
            "use a number with a unit, such as 500m, 2 or 10Gi",
        ),
        Ok(amount) if amount < Amount::ZERO => {
            report.refuse(path, format!("{text} is negative"), "use 0 or more");
        }
        Ok(_) => {}
    }
}

/// Checks the overrides of the whole pod; returns those of its spec.
fn template(template: &PodTemplate, report: &mut Report) -> Option<PodSpec> {
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
    let spec = template
        .spec
        .as_ref()
        .and_then(|raw| read::<PodSpec>(&path, raw, "pod", report))?;
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = path.field("volumes").index(index);
        if !text::is_dns_label(&volume.name) {
            report.refuse(
                &path.field("name"),
                format!("{:?} is not a valid volume name", volume.name),
                "use at most 63 lower-case letters, digits and '-'",
            );
        }
        if let Some(size) = volume.empty_dir.as_ref().and_then(|dir| dir.size_limit.as_ref()) {
            quantity_text(&path.field("emptyDir").field("sizeLimit"), &size.0, report);
        }
    }
    if spec.node_name.as_ref().is_some_and(|name| !name.is_empty()) {
        report.warn(
            &path.field("nodeName"),
            "pods would bypass the scheduler; use nodeSelector or affinity",
        );
    }
    if spec
        .restart_policy
        .as_ref()
        .is_some_and(|policy| policy != "Always")
    {
        report.refuse(
            &path.field("restartPolicy"),
            "the daemons must be restarted when they exit",
            "set it to Always, or leave it out",
        );
    }
    Some(spec)
}

/// Checks labels and annotations of child objects.
pub(crate) fn metadata(path: &Path, metadata: &Metadata, report: &mut Report) {
    for (field, map) in [
        ("labels", &metadata.labels),
        ("annotations", &metadata.annotations),
    ] {
        for (key, value) in map.iter().flatten() {
            let at = path.field(field).field(key);
            if !text::is_label_key(key) {
                report.refuse(
                    &at,
                    format!("{key:?} is not a valid key"),
                    "use [prefix/]name with letters, digits, '-', '_' and '.'",
                );
            }
            if field == "labels" && !text::is_label_value(value) {
                report.refuse(
                    &at,
                    format!("{value:?} is not a valid label value"),
                    "use at most 63 letters, digits, '-', '_' and '.'",
                );
            }
        }
    }
}
