//! `AdmissionReview`: the request of the API server and the response. Both versions have the same shape; the response uses
//! the version of the request.

use k8s_openapi::ByteString;
use keelson_api::validate::{Report, Warning};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const GROUP: &str = "admission.k8s.io/";
const KIND: &str = "AdmissionReview";
/// The API server truncates longer warnings, and drops those beyond a total of 4096 bytes.
const WARNING_CHARS: usize = 256;
const WARNINGS: usize = 15;

/// Why a body is not a valid review.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The body is not the JSON of a review.
    #[error("not an AdmissionReview: {0}")]
    Json(#[from] serde_json::Error),
    /// The body is an object of another kind.
    #[error("not an AdmissionReview: kind {kind:?}, apiVersion {api_version:?}")]
    Kind {
        /// Its kind.
        kind: String,
        /// Its group and version.
        api_version: String,
    },
    /// A response, or an empty review.
    #[error("the AdmissionReview has no request")]
    NoRequest,
}

/// A review that contains a request.
#[derive(Debug)]
pub struct Review {
    api_version: String,
    /// The request.
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

/// A request to create, change or delete an object.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Identifies the request; the response repeats it.
    pub uid: String,
    /// The requested operation.
    pub operation: Operation,
    /// Kind of the object.
    pub kind: Kind,
    /// Name of the object. Empty if the API server generates it.
    #[serde(default)]
    pub name: String,
    /// Namespace of the object.
    #[serde(default)]
    pub namespace: String,
    /// The subresource, such as `status` or `scale`. Empty for the object itself.
    #[serde(default)]
    pub sub_resource: String,
    /// The new object. Absent on deletion.
    pub object: Option<Value>,
    /// The existing object. Absent on creation.
    pub old_object: Option<Value>,
}

/// Group and kind of an object.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Kind {
    /// API group.
    #[serde(default)]
    pub group: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
}

/// An operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// An object is created.
    Create,
    /// An object is updated.
    Update,
    /// An object is deleted.
    Delete,
    /// A connection, or any other operation.
    #[serde(other)]
    Other,
}

impl Operation {
    /// Label for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Other => "other",
        }
    }
}

/// Parses a review.
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

/// The result of a review.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Errors and warnings. The request is allowed if it has no errors.
    pub report: Report,
    /// Further warnings.
    pub notes: Vec<String>,
    /// Changes to the object.
    pub patch: Option<json_patch::Patch>,
}

impl From<Report> for Verdict {
    /// Drops the warnings of rejected fields: the user must change these fields anyway, and they are then reviewed again.
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
    /// Label for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self { report, .. } if !report.is_valid() => "denied",
            Self { patch: Some(_), .. } => "patched",
            Self { report, notes, .. } if !report.warnings.is_empty() || !notes.is_empty() => "warned",
            Self { .. } => "allowed",
        }
    }
}

/// The response, as sent to the API server.
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

/// The same as Kubernetes returns for its own kinds, so that kubectl prints a line for each field.
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
    /// Builds the response.
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
