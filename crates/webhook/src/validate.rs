//! Validates a request: the field rules of `keelson_api`, and the rules that involve other objects. Pure.

use std::collections::BTreeMap;

use keelson_api::{
    Accounting, Controller, LoginSet, NodeSet, RestApi, SlurmCluster, Token,
    validate::{Path, Report, Validate, Violation, Warning, validate, validate_annotations, validate_update},
    well_known::annotation,
};
use kube::api::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    children,
    namespace_snapshot::NamespaceSnapshot,
    review::{Operation, Request, Verdict},
};

/// The webhook's rules for one kind, in addition to the field rules.
pub trait Rules: Validate + DeserializeOwned + Clone + Send + Sync + 'static {
    /// The kind, as written in paths and metrics.
    const KIND: &'static str;
    /// Maximum length of the name, so that the names of its children are valid. `None` if no child is named after it.
    const NAME_MAX: Option<usize>;

    /// Services that the operator creates for this object only.
    fn services(&self) -> Vec<String>;

    /// Whether this existing object becomes a child of the reviewed one, which is being created.
    fn adopts(&self, _kind: &str, _object: &ObjectMeta) -> bool {
        false
    }

    /// Rules that involve other objects, and rules on text that Slurm or sshd parses.
    fn beside(&self, snapshot: &NamespaceSnapshot, report: &mut Report);

    /// Warnings about the effects of an update.
    fn on_update(_old: &Self, _new: &Self, _report: &mut Report) {}

    /// Warnings about the effects of a deletion. Deletions are never rejected.
    fn on_delete(&self, snapshot: &NamespaceSnapshot) -> Vec<String>;
}

/// A request, decoded as its kind.
#[derive(Debug)]
pub enum Case<K> {
    /// Nothing to validate: the request is allowed.
    Pass,
    /// The object cannot be decoded as its kind.
    Unreadable(Report),
    Create(Box<K>),
    Update {
        old: Box<K>,
        new: Box<K>,
    },
    /// Only our own annotations change.
    Annotate {
        old: Box<K>,
        new: Box<K>,
    },
    Delete(Box<K>),
}

impl<K: Rules> Case<K> {
    /// Decodes the objects of a request. Skips requests that need no validation: subresources, updates that change neither
    /// the spec nor our annotations, and objects that are being deleted.
    pub fn of(request: &Request) -> Self {
        let Request {
            operation,
            object,
            old_object,
            sub_resource,
            ..
        } = request;
        if !sub_resource.is_empty() {
            return Self::Pass;
        }
        match (operation, object, old_object) {
            (Operation::Create, Some(new), _) => match decode(new) {
                Ok(new) => Self::Create(new),
                Err(report) => Self::Unreadable(report),
            },
            (Operation::Update, Some(new), Some(old)) => {
                let leaving = new
                    .pointer("/metadata/deletionTimestamp")
                    .is_some_and(|at| !at.is_null());
                let same_spec = new.get("spec") == old.get("spec");
                if leaving || same_spec && own_annotations(new) == own_annotations(old) {
                    return Self::Pass;
                }
                match (decode(new), decode(old)) {
                    (Ok(new), Ok(old)) if same_spec => Self::Annotate { old, new },
                    // The stored object cannot be decoded either, and this update does not change that.
                    _ if same_spec => Self::Pass,
                    (Ok(new), Ok(old)) => Self::Update { old, new },
                    // The stored object is older than these rules; validate the new one as if it were created.
                    (Ok(new), Err(_)) => Self::Create(new),
                    (Err(after), Err(before)) if after == before => Self::Pass,
                    (Err(report), _) => Self::Unreadable(report),
                }
            }
            (Operation::Delete, _, Some(old)) => decode(old).map_or(Self::Pass, Self::Delete),
            _ => Self::Pass,
        }
    }

    /// Validates the request.
    pub fn validate(&self, snapshot: &NamespaceSnapshot) -> Verdict {
        match self {
            Self::Pass => Verdict::default(),
            Self::Unreadable(report) => report.clone().into(),
            Self::Create(new) => {
                let mut report = validate(new.as_ref());
                report.extend(validate_annotations(None, new.as_ref()));
                children::check(new.as_ref(), snapshot, &mut report);
                new.beside(snapshot, &mut report);
                report.into()
            }
            Self::Update { old, new } => {
                let mut report = validate_update(old.as_ref(), new.as_ref());
                report.extend(validate_annotations(Some(old.as_ref()), new.as_ref()));
                report.extend(ratchet(old.as_ref(), new.as_ref(), snapshot));
                K::on_update(old, new, &mut report);
                report.into()
            }
            Self::Annotate { old, new } => validate_annotations(Some(old.as_ref()), new.as_ref()).into(),
            Self::Delete(old) => Verdict {
                notes: old.on_delete(snapshot),
                ..Verdict::default()
            },
        }
    }
}

/// Our own annotations on an object.
fn own_annotations(object: &Value) -> BTreeMap<&str, &Value> {
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    annotations
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with(annotation::PREFIX))
        .map(|(key, value)| (key.as_str(), value))
        .collect()
}

/// Validates a request for any of our kinds.
pub fn validate_any(request: &Request, snapshot: &NamespaceSnapshot) -> Verdict {
    fn of<K: Rules>(request: &Request, snapshot: &NamespaceSnapshot) -> Verdict {
        Case::<K>::of(request).validate(snapshot)
    }
    let validate = match request.kind.kind.as_str() {
        "Accounting" => of::<Accounting>,
        "Controller" => of::<Controller>,
        "LoginSet" => of::<LoginSet>,
        "NodeSet" => of::<NodeSet>,
        "RestApi" => of::<RestApi>,
        "SlurmCluster" => of::<SlurmCluster>,
        "Token" => of::<Token>,
        _ => return Verdict::default(),
    };
    validate(request, snapshot)
}

/// Validates an update against other objects. Ignores errors that existed before in fields that the update does not change.
fn ratchet<K: Rules>(old: &K, new: &K, snapshot: &NamespaceSnapshot) -> Report {
    let (mut before, mut after) = (Report::default(), Report::default());
    new.beside(snapshot, &mut after);
    if after.violations.is_empty() {
        return after;
    }
    old.beside(snapshot, &mut before);
    let json = |object: &K| serde_json::to_value(object).unwrap_or(Value::Null);
    let (old, new) = (json(old), json(new));
    after.violations.retain(|violation| {
        !before.violations.contains(violation) || violation.path.find(&old) != violation.path.find(&new)
    });
    after
}

fn decode<K: DeserializeOwned>(value: &Value) -> Result<Box<K>, Report> {
    serde_path_to_error::deserialize(value)
        .map(Box::new)
        .map_err(|error| {
            let mut report = Report::default();
            let path = error
                .path()
                .iter()
                .fold(Path::default(), |at, segment| match segment {
                    serde_path_to_error::Segment::Seq { index } => at.index(*index),
                    serde_path_to_error::Segment::Map { key } => at.field(key),
                    serde_path_to_error::Segment::Enum { variant } => at.field(variant),
                    serde_path_to_error::Segment::Unknown => at,
                });
            refuse(
                &mut report,
                &path,
                format!("cannot be parsed: {}", error.inner()),
                "check the API reference; if the value is valid, the installed CRDs are from another version",
            );
            report
        })
}

/// Adds an error.
pub fn refuse(report: &mut Report, path: &Path, problem: impl Into<String>, remedy: impl Into<String>) {
    report.violations.push(Violation {
        path: path.clone(),
        problem: problem.into(),
        remedy: remedy.into(),
    });
}

/// Adds a warning.
pub fn warn(report: &mut Report, path: &Path, text: impl Into<String>) {
    report.warnings.push(Warning {
        path: path.clone(),
        text: text.into(),
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::review::Kind;

    /// Field names that rules read, so that random objects reach the rules.
    const FIELDS: [&str; 36] = [
        "spec",
        "metadata",
        "name",
        "controllerRef",
        "template",
        "hostname",
        "extraConf",
        "partition",
        "config",
        "enabled",
        "replicas",
        "ssh",
        "extraSshdConfig",
        "slurmKeyRef",
        "jwtKeyRef",
        "key",
        "persistence",
        "existingClaim",
        "configFileRefs",
        "storageConfig",
        "host",
        "username",
        "secretRef",
        "clusterName",
        "controller",
        "accounting",
        "database",
        "embedded",
        "login",
        "nodeSets",
        "gpu",
        "partitions",
        "storage",
        "shared",
        "files",
        "auth",
    ];

    fn anything() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-zA-Z0-9=\\[\\],\\-\n\"'#\\\\$ .]{0,40}".prop_map(Value::from),
            "\\PC{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 60, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((prop::sample::select(&FIELDS[..]), inner), 0..8).prop_map(|pairs| {
                    pairs
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect()
                }),
            ]
        })
    }

    fn request(kind: &str, operation: Operation, old: Option<Value>, new: Option<Value>) -> Request {
        Request {
            uid: "u".into(),
            operation,
            kind: Kind {
                group: "slinky.slurm.net".into(),
                kind: kind.into(),
            },
            name: "n".into(),
            namespace: "ns".into(),
            sub_resource: String::new(),
            object: new,
            old_object: old,
        }
    }

    fn kinds() -> impl Strategy<Value = &'static str> {
        prop::sample::select(
            &[
                "Accounting",
                "Controller",
                "LoginSet",
                "NodeSet",
                "RestApi",
                "SlurmCluster",
                "Token",
            ][..],
        )
    }

    proptest! {
        #[test]
        fn nothing_that_can_be_written_makes_it_panic(kind in kinds(), old in anything(), new in anything()) {
            for operation in [Operation::Create, Operation::Update, Operation::Delete, Operation::Other] {
                validate_any(&request(kind, operation, Some(old.clone()), Some(new.clone())), &NamespaceSnapshot::default());
            }
        }

        #[test]
        fn deletion_is_never_refused(kind in kinds(), old in anything()) {
            let verdict = validate_any(&request(kind, Operation::Delete, Some(old), None), &NamespaceSnapshot::default());
            prop_assert!(verdict.report.is_valid());
        }

        #[test]
        fn a_change_that_leaves_the_spec_alone_is_never_refused(kind in kinds(), spec in anything(), label in "\\PC*") {
            let old = json!({ "metadata": { "name": "n" }, "spec": spec });
            let mut new = old.clone();
            new["metadata"]["labels"] = json!({ "a": label });
            let verdict = validate_any(&request(kind, Operation::Update, Some(old), Some(new)), &NamespaceSnapshot::default());
            prop_assert!(verdict.report.is_valid());
        }
    }

    #[test]
    fn an_annotation_of_ours_is_judged_when_it_changes_alone() {
        let object = |annotations: Value| json!({ "metadata": { "name": "n", "annotations": annotations }, "spec": { "extraConf": "AuthType=auth/munge" } });
        let report_of = |old: Value, new: Value| {
            let request = request(
                "Controller",
                Operation::Update,
                Some(object(old)),
                Some(object(new)),
            );
            validate_any(&request, &NamespaceSnapshot::default()).report
        };
        let wrong = json!({ "keelson.dev/generate": "everything" });
        let report = report_of(json!({}), wrong.clone());
        assert_eq!(report.violations.len(), 1, "{report}");
        assert!(
            report
                .to_string()
                .starts_with("metadata.annotations[keelson.dev/generate]: "),
            "{report}"
        );
        assert!(report_of(wrong.clone(), wrong.clone()).is_valid());
        assert!(report_of(wrong.clone(), json!({})).is_valid());
        let mut other = wrong.clone();
        other["example.org/a"] = json!("b");
        assert!(report_of(wrong, other).is_valid(), "what was wrong before");
        assert!(report_of(json!({}), json!({ "keelson.dev/generate": "true" })).is_valid());
    }

    #[test]
    fn an_object_on_its_way_out_may_be_changed_in_any_way() {
        let old = json!({ "metadata": { "name": "n" }, "spec": { "controllerRef": { "name": "c" } } });
        let mut new = old.clone();
        new["spec"]["extraConf"] = json!("Comment=$(reboot)");
        let update = |new: Value| {
            validate_any(
                &request("NodeSet", Operation::Update, Some(old.clone()), Some(new)),
                &NamespaceSnapshot::default(),
            )
        };
        assert!(!update(new.clone()).report.is_valid());
        new["metadata"]["deletionTimestamp"] = json!("2026-11-15T00:00:00Z");
        assert!(update(new).report.is_valid());
    }

    #[test]
    fn that_a_neighbour_is_not_known_says_nothing_before_all_are() {
        let object = json!({ "metadata": { "name": "n" }, "spec": { "controllerRef": { "name": "c" } } });
        let request = request("NodeSet", Operation::Create, None, Some(object));
        let warnings = |known| {
            let snapshot = NamespaceSnapshot {
                known,
                ..NamespaceSnapshot::default()
            };
            validate_any(&request, &snapshot).report.warnings.len()
        };
        assert_eq!((warnings(false), warnings(true)), (0, 1));
    }

    #[test]
    fn subresources_are_none_of_ours() {
        let mut request = request(
            "NodeSet",
            Operation::Create,
            None,
            Some(json!({ "spec": { "replicas": -5 } })),
        );
        assert!(
            !validate_any(&request, &NamespaceSnapshot::default())
                .report
                .is_valid()
        );
        request.sub_resource = "status".into();
        assert!(
            validate_any(&request, &NamespaceSnapshot::default())
                .report
                .is_valid()
        );
    }

    #[test]
    fn what_does_not_fit_its_kind_is_refused_with_the_place() {
        let object =
            json!({ "metadata": {}, "spec": { "controllerRef": { "name": "c" }, "replicas": "many" } });
        let verdict = validate_any(
            &request("NodeSet", Operation::Create, None, Some(object)),
            &NamespaceSnapshot::default(),
        );
        assert!(
            verdict
                .report
                .to_string()
                .starts_with("spec.replicas: cannot be parsed"),
            "{}",
            verdict.report
        );
    }

    #[test]
    fn what_did_not_fit_before_is_not_held_against_another_change() {
        let old = json!({ "metadata": {}, "spec": { "controllerRef": { "name": "c" }, "replicas": "many" } });
        let mut new = old.clone();
        new["spec"]["paused"] = json!(true);
        let verdict = validate_any(
            &request("NodeSet", Operation::Update, Some(old), Some(new)),
            &NamespaceSnapshot::default(),
        );
        assert!(verdict.report.is_valid());
    }
}
