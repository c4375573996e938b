//! Judges a request: the field rules of `keelson_api`, and the rules that look beyond the object. Pure.

use keelson_api::validate::{Path, Report, Validate, Violation, Warning, validate, validate_update};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    around::{Around, Needs},
    children,
    review::{Operation, Request, Verdict},
};

/// What this server knows of one kind, on top of the field rules.
pub trait Rules: Validate + DeserializeOwned + Clone + Send + Sync + 'static {
    /// The kind as paths and metrics have it.
    const KIND: &'static str;
    /// Longest name that leaves room for those of its children; `None` when it has none that are named after it.
    const NAME_MAX: Option<usize>;

    /// Services that the operator makes for it alone.
    fn services(&self) -> Vec<String>;

    /// What must be read before [`Rules::beside`] can judge.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Rules on the object beside others, and on texts that Slurm or sshd will read.
    fn beside(&self, around: &Around, report: &mut Report);

    /// What a person should know who deletes the object. Deletion is never refused.
    fn on_delete(&self, around: &Around) -> Vec<String>;
}

/// A request that was read as its kind.
#[derive(Debug)]
pub enum Case<K> {
    /// There is nothing to judge: it goes on.
    Pass,
    /// It cannot be read as its kind.
    Unreadable(Report),
    Create(Box<K>),
    Update {
        old: Box<K>,
        new: Box<K>,
    },
    Delete(Box<K>),
}

impl<K: Rules> Case<K> {
    /// Reads the objects of a request. What cannot make a difference is not read: a subresource, a change that leaves
    /// the spec alone, an object on its way out.
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
                if leaving || new.get("spec") == old.get("spec") {
                    return Self::Pass;
                }
                match (decode(new), decode(old)) {
                    (Ok(new), Ok(old)) => Self::Update { old, new },
                    // What is stored is older than these rules; the new one is judged by itself.
                    (Ok(new), Err(_)) => Self::Create(new),
                    (Err(after), Err(before)) if after == before => Self::Pass,
                    (Err(report), _) => Self::Unreadable(report),
                }
            }
            (Operation::Delete, _, Some(old)) => decode(old).map_or(Self::Pass, Self::Delete),
            _ => Self::Pass,
        }
    }

    /// What must be read to judge it.
    pub fn needs(&self) -> Needs {
        match self {
            Self::Pass | Self::Unreadable(_) | Self::Delete(_) => Needs::default(),
            Self::Create(new) => new.needs(),
            Self::Update { old, new } => {
                let mut needs = new.needs();
                needs.extend(old.needs());
                needs
            }
        }
    }

    /// Judges it.
    pub fn judge(&self, around: &Around) -> Verdict {
        match self {
            Self::Pass => Verdict::default(),
            Self::Unreadable(report) => report.clone().into(),
            Self::Create(new) => {
                let mut report = validate(new.as_ref());
                children::check(new.as_ref(), around, &mut report);
                new.beside(around, &mut report);
                report.into()
            }
            Self::Update { old, new } => {
                let mut report = validate_update(old.as_ref(), new.as_ref());
                report.extend(ratchet(old.as_ref(), new.as_ref(), around));
                report.into()
            }
            Self::Delete(old) => Verdict {
                notes: old.on_delete(around),
                ..Verdict::default()
            },
        }
    }
}

/// What the change makes wrong beside other objects: a fault that was there before and was not touched is none of its.
fn ratchet<K: Rules>(old: &K, new: &K, around: &Around) -> Report {
    let (mut before, mut after) = (Report::default(), Report::default());
    old.beside(around, &mut before);
    new.beside(around, &mut after);
    if after.violations.is_empty() {
        return after;
    }
    let json = |object: &K| serde_json::to_value(object).unwrap_or(Value::Null);
    let (old, new) = (json(old), json(new));
    after.violations.retain(|violation| {
        !before.violations.contains(violation) || violation.path.find(&old) != violation.path.find(&new)
    });
    after
}

fn decode<K: DeserializeOwned>(value: &Value) -> Result<Box<K>, Report> {
    serde_path_to_error::deserialize(value).map(Box::new).map_err(|error| {
        let mut report = Report::default();
        let path = error.path().iter().fold(Path::default(), |at, segment| match segment {
            serde_path_to_error::Segment::Seq { index } => at.index(*index),
            serde_path_to_error::Segment::Map { key } => at.field(key),
            serde_path_to_error::Segment::Enum { variant } => at.field(variant),
            serde_path_to_error::Segment::Unknown => at,
        });
        refuse(
            &mut report,
            &path,
            format!("cannot be read: {}", error.inner()),
            "write it as the API reference has it; if it is right, the installed CRDs are of another version",
        );
        report
    })
}

/// Adds a reason to refuse.
pub fn refuse(report: &mut Report, path: &Path, problem: impl Into<String>, remedy: impl Into<String>) {
    report.violations.push(Violation {
        path: path.clone(),
        problem: problem.into(),
        remedy: remedy.into(),
    });
}

/// Adds something to tell.
pub fn warn(report: &mut Report, path: &Path, text: impl Into<String>) {
    report.warnings.push(Warning {
        path: path.clone(),
        text: text.into(),
    });
}
