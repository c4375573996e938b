//! Rules for our annotations that users set. They control the operator as fields do, and are validated like fields: an
//! invalid value is rejected, and an update is rejected only for annotations that it changes.

use std::collections::BTreeMap;

use kube_core::Resource;

use crate::validate::path::Path;
use crate::validate::report::Report;
use crate::validate::text;
use crate::well_known::annotation;

const OURS: &str = annotation::PREFIX;
/// Prefixes that identify the operator's own Secrets.
const RESERVED: [&str; 2] = [OURS, "slinky.slurm.net/"];
/// Prefixes that are reserved for Kubernetes. The operator sets these annotations anyway: they may be meant for a cloud
/// provider's or the cluster's own controllers.
const OF_KUBERNETES: [&str; 2] = ["kubernetes.io/", "k8s.io/"];

/// Our annotations that an update changes, or all of ours for a new object.
pub fn changed_annotations<'a, K: Resource>(
    old: Option<&K>,
    new: &'a K,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let none = BTreeMap::new();
    let before = old.and_then(|old| old.meta().annotations.clone()).unwrap_or(none);
    new.meta()
        .annotations
        .iter()
        .flatten()
        .filter(move |(key, value)| key.starts_with(OURS) && before.get(*key) != Some(*value))
        .map(|(key, value)| (key.as_str(), value.as_str()))
}

/// Validates our annotations that a create or an update sets.
pub fn validate_annotations<K: Resource<DynamicType = ()>>(old: Option<&K>, new: &K) -> Report {
    let mut report = Report::default();
    let kind = K::kind(&());
    let at = Path::default().field("metadata").field("annotations");
    for (key, value) in changed_annotations(old, new) {
        let path = at.field(key);
        match (key, kind.as_ref()) {
            (annotation::FORCE_DELETE, _) | (annotation::PAUSED, "NodeSet") => {
                yes_or_no(&path, value, &mut report);
            }
            (annotation::GENERATE, "Controller") => generate(&path, value, &mut report),
            (annotation::GENERATE_ANNOTATIONS, "Controller") => generated(&path, value, &mut report),
            // Set by the operator; users may remove it.
            (annotation::QUIESCED_FOR | annotation::REFUSED_CHANGE, "Controller") => {}
            (annotation::PAUSED | annotation::GENERATE | annotation::GENERATE_ANNOTATIONS, kind) => {
                report.warn(&path, format!("has no effect on a {kind} and is not used"));
            }
            (unknown, _) => report.warn(&path, format!("unknown annotation {unknown}; check the spelling")),
        }
    }
    report
}

fn yes_or_no(path: &Path, value: &str, report: &mut Report) {
    if !matches!(value, "true" | "false") {
        report.refuse(
            path,
            format!("{value:?} is neither \"true\" nor \"false\""),
            "set it to \"true\", or remove the annotation",
        );
    }
}

fn generate(path: &Path, value: &str, report: &mut Report) {
    if matches!(value, "true" | "false") {
        return;
    }
    for word in value.split(',').map(str::trim) {
        if !annotation::GENERATE_KEYS.contains(&word) {
            report.refuse(
                path,
                format!("the operator cannot generate a key {word:?}"),
                "write \"true\", or slurmKey and jwtKey separated by a comma",
            );
        }
    }
}

fn generated(path: &Path, value: &str, report: &mut Report) {
    let remedy = r#"write JSON such as {"slurmKey": {"example.org/owner": "hpc"}}"#;
    let read = serde_json::from_str::<BTreeMap<String, BTreeMap<String, String>>>(value);
    let Ok(read) = read else {
        report.refuse(path, "is not a JSON object with annotations for each key", remedy);
        return;
    };
    for (word, annotations) in read {
        if !annotation::GENERATE_KEYS.contains(&word.as_str()) {
            report.refuse(
                path,
                format!("the operator cannot generate a key {word:?}"),
                remedy,
            );
        }
        for key in annotations.keys() {
            if !text::is_label_key(key) {
                report.refuse(path, format!("{key:?} is not a valid annotation key"), remedy);
            } else if is_under(&RESERVED, key) {
                report.refuse(
                    path,
                    format!("{key:?} is reserved for the operator"),
                    "leave it out",
                );
            } else if is_under(&OF_KUBERNETES, key) {
                report.warn(
                    path,
                    format!("{key:?} is reserved for Kubernetes; the operator sets it on the Secret anyway"),
                );
            }
        }
    }
}

fn is_under(prefixes: &[&str], key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    prefixes
        .iter()
        .filter_map(|prefix| prefix.strip_suffix('/'))
        .any(|reserved| {
            domain == reserved
                || domain
                    .strip_suffix(reserved)
                    .is_some_and(|rest| rest.ends_with('.'))
        })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{Controller, LoginSet, NodeSet};

    fn annotated<K: Resource + Default>(annotations: &[(&str, &str)]) -> K {
        let mut object = K::default();
        let annotations = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        object.meta_mut().annotations = Some(annotations.collect());
        object
    }

    #[rstest]
    #[case("keelson.dev/generate", "true", true)]
    #[case("keelson.dev/generate", "slurmKey, jwtKey", true)]
    #[case("keelson.dev/generate", "yes", false)]
    #[case("keelson.dev/generate", "slurmkey", false)]
    #[case(
        "keelson.dev/generate-annotations",
        r#"{"jwtKey":{"helm.sh/resource-policy":"keep"}}"#,
        true
    )]
    #[case(
        "keelson.dev/generate-annotations",
        r#"{"jwtKey":{"helm.sh/resource-policy":true}}"#,
        false
    )]
    #[case("keelson.dev/generate-annotations", r#"{"otherKey":{}}"#, false)]
    #[case("keelson.dev/generate-annotations", r#"{"jwtKey":{"two words":""}}"#, false)]
    #[case(
        "keelson.dev/generate-annotations",
        r#"{"jwtKey":{"keelson.dev/generated-key":"false"}}"#,
        false
    )]
    #[case("keelson.dev/generate-annotations", "nothing", false)]
    #[case("keelson.dev/force-delete", "true", true)]
    #[case("keelson.dev/force-delete", "True", false)]
    #[case("example.org/generate", "anything", true)]
    fn an_annotation_of_ours_is_understood_or_refused(
        #[case] key: &str,
        #[case] value: &str,
        #[case] accepted: bool,
    ) {
        let controller: Controller = annotated(&[(key, value)]);
        let report = validate_annotations(None, &controller);
        assert_eq!(report.is_valid(), accepted, "{report}");
        assert_eq!(report.warnings, []);
        assert_eq!(
            validate_annotations(Some(&controller), &controller),
            Report::default()
        );
    }

    // Earlier versions set them on the Secret, and so does Slinky's chart.
    #[test]
    fn annotations_of_kubernetes_are_passed_on_with_a_warning() {
        let value = r#"{"jwtKey":{"auth.kubernetes.io/x":"","example.org/x":""}}"#;
        let controller: Controller = annotated(&[("keelson.dev/generate-annotations", value)]);
        let report = validate_annotations(None, &controller);
        assert!(report.is_valid(), "{report}");
        assert_eq!(report.warnings.len(), 1);
    }

    #[test]
    fn what_means_nothing_on_a_kind_is_a_warning() {
        let nodeset: NodeSet = annotated(&[("keelson.dev/paused", "true")]);
        assert_eq!(validate_annotations(None, &nodeset), Report::default());
        let loginset: LoginSet = annotated(&[("keelson.dev/paused", "true"), ("keelson.dev/pausd", "true")]);
        let report = validate_annotations(None, &loginset);
        assert!(report.is_valid());
        assert_eq!(report.warnings.len(), 2);
    }
}
