//! `AdmissionReview`: what the API server asks, and our answer. Both versions of it have the same shape; the answer goes
//! out in the one that the question came in.

use k8s_openapi::ByteString;
use keelson_api::validate::{Report, Warning};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const GROUP: &str = "admission.k8s.io/";
const KIND: &str = "AdmissionReview";
/// The API server cuts longer warnings, and drops all beyond 4096 bytes in sum.
const WARNING_CHARS: usize = 256;
const WARNINGS: usize = 15;

/// Why a body is not a review that can be answered.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Not the JSON of a review.
    #[error("not an AdmissionReview: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON of something else.
    #[error("not an AdmissionReview: kind is {kind:?} of {api_version:?}")]
    Kind {
        /// What it says it is.
        kind: String,
        /// And of which group and version.
        api_version: String,
    },
    /// An answer, or an empty review.
    #[error("the AdmissionReview has no request")]
    NoRequest,
}

/// A question.
#[derive(Debug)]
pub struct Review {
    api_version: String,
    /// What is asked.
    pub request: Request,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

/// What somebody wants to do to an object.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Names the question; the answer repeats it.
    pub uid: String,
    /// What is to be done.
    pub operation: Operation,
    /// Kind of the object.
    pub kind: Kind,
    /// Name of the object; absent when the API server makes one.
    #[serde(default)]
    pub name: String,
    /// Namespace of the object.
    #[serde(default)]
    pub namespace: String,
    /// `status`, `scale` and so on when that is what is to be changed.
    #[serde(default)]
    pub sub_resource: String,
    /// The object as it is to be; absent on deletion.
    pub object: Option<Value>,
    /// The object as it is; absent on creation.
    pub old_object: Option<Value>,
}

/// Group, version and kind; only the kind matters to us, paths tell the rest.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Kind {
    /// API group.
    #[serde(default)]
    pub group: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
}

/// What is to be done to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// A new object.
    Create,
    /// A change.
    Update,
    /// The end of an object.
    Delete,
    /// A connection, or whatever else Kubernetes comes up with.
    #[serde(other)]
    Other,
}

impl Operation {
    /// For metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Other => "other",
        }
    }
}

/// Reads a review.
pub fn read(body: &[u8]) -> Result<Review, ReadError> {
    let Envelope {
        api_version,
        kind,
        request,
    } = serde_json::from_slice(body)?;
    if kind != KIND || !api_version.starts_with(GROUP) {
        return Err(ReadError::Kind { kind, api_version });
    }
    Ok(Review {
        api_version,
        request: request.ok_or(ReadError::NoRequest)?,
    })
}

/// What becomes of the request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Reasons to refuse; none means that it may go on.
    pub report: Report,
    /// What to say besides; never a reason to refuse.
    pub notes: Vec<String>,
    /// Changes to the object.
    pub patch: Option<json_patch::Patch>,
}

impl From<Report> for Verdict {
    /// Of a field that is refused nothing else is told: it will be written anew, and is asked about again.
    fn from(mut report: Report) -> Self {
        let Report { violations, warnings } = &mut report;
        let refused = |warning: &Warning| violations.iter().any(|v| warning.path.is_within(&v.path));
        warnings.retain(|warning| !refused(warning));
        Self {
            report,
            ..Self::default()
        }
    }
}

impl Verdict {
    /// For metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self { report, .. } if !report.is_valid() => "denied",
            Self { patch: Some(_), .. } => "patched",
            Self { report, notes, .. } if !report.warnings.is_empty() || !notes.is_empty() => "warned",
            Self { .. } => "allowed",
        }
    }
}

/// The answer, as it goes over the wire.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    api_version: String,
    kind: &'static str,
    response: Response,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
}

/// The same that Kubernetes gives for its own kinds, so that kubectl prints a line for each field.
#[derive(Debug, Serialize)]
struct Status {
    #[serde(rename = "status")]
    outcome: &'static str,
    code: u16,
    reason: &'static str,
    message: String,
    details: Details,
}

#[derive(Debug, Serialize)]
struct Details {
    name: String,
    group: String,
    kind: String,
    causes: Vec<Cause>,
}

#[derive(Debug, Serialize)]
struct Cause {
    reason: &'static str,
    field: String,
    message: String,
}

impl Review {
    /// The answer to this question.
    pub fn answer(self, verdict: Verdict) -> Answer {
        let Verdict { report, notes, patch } = verdict;
        let Self { api_version, request } = self;
        let allowed = report.is_valid();
        let warnings = report
            .warnings
            .iter()
            .map(ToString::to_string)
            .chain(notes)
            .map(|warning| shortened(&warning))
            .take(WARNINGS)
            .collect();
        let status = (!allowed).then(|| refusal(&request, &report));
        let patch = patch
            .filter(|_| allowed)
            .and_then(|patch| serde_json::to_vec(&patch).ok());
        Answer {
            api_version,
            kind: KIND,
            response: Response {
                uid: request.uid,
                allowed,
                status,
                warnings,
                patch_type: patch.is_some().then_some("JSONPatch"),
                patch: patch.map(ByteString),
            },
        }
    }
}

fn refusal(request: &Request, report: &Report) -> Status {
    Status {
        outcome: "Failure",
        code: 422,
        reason: "Invalid",
        message: report.to_string(),
        details: Details {
            name: request.name.clone(),
            group: request.kind.group.clone(),
            kind: request.kind.kind.clone(),
            causes: report
                .violations
                .iter()
                .map(|violation| Cause {
                    reason: "FieldValueInvalid",
                    field: violation.path.to_string(),
                    message: format!("{}; {}", violation.problem, violation.remedy),
                })
                .collect(),
        },
    }
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= WARNING_CHARS {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(WARNING_CHARS - 1).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests;
