//! Sends requests to the API server and reads the warnings in the responses.

use anyhow::{Context, Result};
use http::{HeaderMap, Method, Request};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

use crate::rows::api_version;

/// The result of a request.
#[derive(Debug)]
pub struct Outcome {
    pub status: u16,
    pub body: Value,
    pub warnings: Vec<String>,
}

impl Outcome {
    /// Returns the error message, if the request was rejected.
    pub fn refusal(&self) -> Option<&str> {
        (self.status >= 400).then(|| self.body["message"].as_str().unwrap_or("no reason"))
    }
}

/// Returns the path of a custom resource, or of its kind in a namespace.
pub fn path(namespace: &str, kind: &str, name: Option<&str>) -> String {
    let kinds = format!(
        "/apis/{}/namespaces/{namespace}/{}s",
        api_version(kind),
        kind.to_lowercase()
    );
    name.map_or(kinds.clone(), |name| format!("{kinds}/{name}"))
}

/// Sends one request, with `dryRun=All` if `dry` is true.
pub async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
    dry: bool,
) -> Result<Outcome> {
    let content = if method == Method::PATCH {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let uri = if dry {
        format!("{path}?dryRun=All")
    } else {
        path.to_owned()
    };
    let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header("content-type", content)
        .body(Body::from(body))?;
    let response = client.send(request).await?;
    let (status, warnings) = (response.status().as_u16(), warnings(response.headers()));
    let bytes = response.into_body().collect_bytes().await?;
    Ok(Outcome {
        status,
        body: serde_json::from_slice(&bytes).context("the API server sent no JSON")?,
        warnings,
    })
}

/// Parses `299 - "text"` headers, in which quotes and backslashes are escaped.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all("warning")
        .iter()
        .filter_map(|value| {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            let (_, text) = text.split_once('"')?;
            Some(
                text.strip_suffix('"')?
                    .replace("\\\"", "\"")
                    .replace("\\\\", "\\"),
            )
        })
        .collect()
}
