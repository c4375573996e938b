//! Requests to the API server whose warnings we see too.

use anyhow::{Context, Result};
use http::{HeaderMap, Method, Request};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// What came of a request.
#[derive(Debug)]
pub struct Outcome {
    pub status: u16,
    pub body: Value,
    pub warnings: Vec<String>,
}

impl Outcome {
    /// The reason of a refusal.
    pub fn refusal(&self) -> Option<&str> {
        (self.status >= 400).then(|| self.body["message"].as_str().unwrap_or("no reason"))
    }
}

/// Path of a custom object, or of all of its kind in a namespace.
pub fn path(namespace: &str, kind: &str, name: Option<&str>) -> String {
    let kinds = format!(
        "/apis/slinky.slurm.net/v1beta1/namespaces/{namespace}/{}s",
        kind.to_lowercase()
    );
    name.map_or(kinds.clone(), |name| format!("{kinds}/{name}"))
}

/// Sends one request. With `dry` everything happens but the storing.
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

/// `299 - "text"`, with quotes and backslashes escaped.
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
