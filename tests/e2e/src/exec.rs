//! Runs commands in containers like `kubectl exec`, without starting a process: see [`crate::api`].
#![allow(
    clippy::indexing_slicing,
    reason = "an index into JSON that is not there gives null"
)]

use anyhow::{Context, Result, ensure};
use http::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use url::form_urlencoded::Serializer;

use crate::{api, get};

/// Runs a command in a container of a pod, or of a ready pod of a `deployment/…`, and returns its standard output.
/// Without a container name, it uses the same default as kubectl.
pub fn exec(namespace: &str, target: &str, container: Option<&str>, words: &[&str]) -> Result<String> {
    let what = format!("exec {target} -- {}", words.join(" "));
    let pod = pod(namespace, target).context(what.clone())?;
    let container = match container {
        Some(name) => name.to_owned(),
        None => default_container(namespace, &pod).context(what.clone())?,
    };
    let mut query = Serializer::new(String::new());
    query.extend_pairs([
        ("container", container.as_str()),
        ("stdout", "true"),
        ("stderr", "true"),
    ]);
    query.extend_pairs(words.iter().map(|word| ("command", word)));
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods/{pod}/exec?{}",
        query.finish()
    );
    api::with(&what, |client| start(client, path))
}

fn pod(namespace: &str, target: &str) -> Result<String> {
    if !target.starts_with("deployment/") {
        return Ok(target.to_owned());
    }
    let deployment = get(&["--namespace", namespace, target])?;
    let labels = deployment
        .pointer("/spec/selector/matchLabels")
        .and_then(Value::as_object)
        .context("it selects no pods by labels")?;
    let labels: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let selector = format!("--selector={}", labels.join(","));
    let pods = get(&["--namespace", namespace, "pods", &selector])?;
    let pods = pods.get("items").and_then(Value::as_array).into_iter().flatten();
    // Prefers a pod that is not being deleted, then a ready one.
    pods.filter(|pod| pod.pointer("/status/phase") == Some(&Value::from("Running")))
        .max_by_key(|pod| {
            let ready = crate::slurm::condition(pod, "Ready").is_ok_and(|ready| ready["status"] == "True");
            (pod.pointer("/metadata/deletionTimestamp").is_none(), ready)
        })
        .and_then(|pod| pod.pointer("/metadata/name")?.as_str())
        .map(str::to_owned)
        .context("none of its pods runs")
}

fn default_container(namespace: &str, pod: &str) -> Result<String> {
    let pod = get(&["--namespace", namespace, "pod", pod])?;
    pod.pointer("/metadata/annotations/kubectl.kubernetes.io~1default-container")
        .or_else(|| pod.pointer("/spec/containers/0/name"))
        .and_then(Value::as_str)
        .map(str::to_owned)
        .context("a pod without containers")
}

async fn start(client: Client, path: String) -> Result<String> {
    let request = Request::get(path)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        // Protects against caching proxies, of which there are none here, so a constant is enough.
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("sec-websocket-protocol", "v4.channel.k8s.io")
        .body(Body::from(Vec::new()))?;
    let response = tokio::time::timeout(api::LIMIT, client.send(request))
        .await
        .context("no answer")??;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let body = response.into_body().collect_bytes().await?;
        anyhow::bail!("{}", api::refusal(&String::from_utf8_lossy(&body)));
    }
    let said = Said::hear(TokioIo::new(hyper::upgrade::on(response).await?)).await?;
    let status: Value = serde_json::from_slice(&said.status).context("the command's end was not told")?;
    ensure!(
        status["status"] == "Success",
        "{}{}",
        String::from_utf8_lossy(&said.stderr),
        status["message"].as_str().unwrap_or("it failed")
    );
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

/// The output of a command, by stream.
#[derive(Default)]
struct Said {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// The result, as a `Status`.
    status: Vec<u8>,
}

impl Said {
    /// Reads WebSocket messages (RFC 6455) until the command has ended. The first byte of each is the stream number.
    /// Nothing is sent: the command gets no input, and the API server sends no pings.
    async fn hear(mut connection: impl AsyncRead + Unpin) -> Result<Self> {
        const CONTINUED: u8 = 0;
        const TEXT: u8 = 1;
        const BINARY: u8 = 2;
        let mut said = Self::default();
        let mut stream = 0;
        while said.status.is_empty() {
            let kind = connection.read_u8().await.context("the connection has ended")?;
            let length = match connection.read_u8().await? {
                126 => u64::from(connection.read_u16().await?),
                127 => connection.read_u64().await?,
                short => u64::from(short),
            };
            let mut payload = vec![0; usize::try_from(length)?];
            connection.read_exact(&mut payload).await?;
            let data = match (kind & 0x0f, payload.split_first()) {
                (TEXT | BINARY, Some((&first, rest))) => {
                    stream = first;
                    rest
                }
                (CONTINUED, _) => &payload,
                _ => continue,
            };
            match stream {
                1 => said.stdout.extend(data),
                2 => said.stderr.extend(data),
                3 => said.status.extend(data),
                _ => {}
            }
        }
        Ok(said)
    }
}
