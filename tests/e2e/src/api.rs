//! Queries the API server without starting kubectl. Tests send thousands of queries concurrently, and a process for
//! each would use more of the machine than the code under test. The functions take kubectl's arguments, so that tests
//! read like kubectl commands.
#![allow(
    clippy::indexing_slicing,
    reason = "an index into JSON that is not there gives null"
)]

use std::fmt::Display;
use std::future::Future;
use std::sync::{LazyLock, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use http::{Method, Request};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use testbed::layout::Layout;
use tokio::runtime::Runtime;
use url::form_urlencoded::Serializer;

/// The client, and the runtime that drives its connections.
static SHARED: LazyLock<Result<(Runtime, Client), String>> =
    LazyLock::new(|| connect().map_err(|error| format!("{error:#}")));

fn connect() -> Result<(Runtime, Client)> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    // Uses only the cluster's files, because a test may have stopped parts of the cluster.
    let kubeconfig = Kubeconfig::read_from(Layout::of(crate::cluster_name()?)?.kubeconfig())?;
    let client = wait(&runtime, async {
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    })?;
    Ok((runtime, client))
}

/// Waits for a future. Works on a thread that belongs to another runtime, because some tests are asynchronous.
fn wait<T: Send + 'static>(
    runtime: &Runtime,
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = mpsc::channel();
    runtime.spawn(async move { sender.send(future.await) });
    receiver
        .recv()
        .context("asking the API server ended in a panic")?
}

/// Runs `act` with the client. Errors start with `what`.
pub(crate) fn with<T, F>(what: &impl Display, act: impl FnOnce(Client) -> F) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let (runtime, client) = SHARED.as_ref().map_err(|error| anyhow!("{error}"))?;
    // One line with all causes, because tests search it for messages of the API server.
    wait(runtime, act(client.clone())).map_err(|error| anyhow!("{what}: {error:#}"))
}

/// Returns the response to a `GET` of this path.
pub fn raw(path: &str) -> Result<String> {
    let path = path.to_owned();
    with(&format!("get --raw {path}"), |client| {
        send(client, Method::GET, path, "", Vec::new())
    })
}

/// Returns the output of `kubectl get --output=json`: one object, or a list.
pub fn get(words: &[&str]) -> Result<Value> {
    let Wanted { paths, listed } = Wanted::read(words)?;
    let answers = with(&format!("get {}", words.join(" ")), |client| async move {
        let mut answers = Vec::new();
        for path in paths {
            let answer = send(client.clone(), Method::GET, path, "", Vec::new()).await?;
            answers.push(serde_json::from_str(&answer).context("the API server sent no JSON")?);
        }
        Ok(answers)
    })?;
    Ok(if listed {
        json!({ "kind": "List", "items": answers.into_iter().flat_map(items).collect::<Vec<_>>() })
    } else {
        answers.into_iter().next().unwrap_or_default()
    })
}

/// Returns the objects that [`get`] finds, as kind and name: `pod/slurm-controller-0`.
pub fn names(words: &[&str]) -> Result<Vec<String>> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(items(get(words)?)
        .iter()
        .map(|object| {
            let kind = text(object.get("kind")).to_lowercase();
            format!("{kind}/{}", text(object.pointer("/metadata/name")))
        })
        .collect())
}

/// Changes an object (`kind/name`) by a merge patch.
pub fn patch(namespace: &str, object: &str, change: &Value) -> Result<()> {
    let wanted = Wanted::read(&["--namespace", namespace, object])?;
    let path = wanted.paths.into_iter().next().context("nothing to patch")?;
    let body = change.to_string().into_bytes();
    with(&format!("patch {object}"), |client| {
        send(client, Method::PATCH, path, "application/merge-patch+json", body)
    })
    .map(drop)
}

/// The timeout of a request to the API server.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

async fn send(
    client: Client,
    method: Method,
    path: String,
    content: &'static str,
    body: Vec<u8>,
) -> Result<String> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("content-type", content).body(Body::from(body))?;
    let response = tokio::time::timeout(LIMIT, client.send(request))
        .await
        .context("no answer")??;
    let status = response.status();
    let body = response.into_body().collect_bytes().await?;
    let body = String::from_utf8_lossy(&body).into_owned();
    ensure!(status.is_success(), "{}", refusal(&body));
    Ok(body)
}

/// Formats an error response of the API server like kubectl.
pub(crate) fn refusal(body: &str) -> String {
    let status: Value = serde_json::from_str(body).unwrap_or_default();
    match (&status["reason"], &status["message"]) {
        (Value::String(reason), Value::String(message)) => {
            format!("Error from server ({reason}): {message}")
        }
        _ => body.trim().to_owned(),
    }
}

/// Returns the objects of a list and sets their kind, which a response contains only for the list itself.
fn items(mut list: Value) -> Vec<Value> {
    let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) else {
        return vec![list];
    };
    let version = list["apiVersion"].clone();
    let kind = list["kind"].as_str().and_then(|kind| kind.strip_suffix("List"));
    let kind = Value::from(kind.unwrap_or_default());
    items
        .into_iter()
        .map(|mut item| {
            for (field, value) in [("apiVersion", &version), ("kind", &kind)] {
                if item[field].is_null() {
                    item[field] = value.clone();
                }
            }
            item
        })
        .collect()
}

/// The API paths of the objects that the arguments of a `kubectl get` select.
struct Wanted {
    paths: Vec<String>,
    /// Whether the result is a list, even if it contains only one object.
    listed: bool,
}

impl Wanted {
    fn read(words: &[&str]) -> Result<Self> {
        let (mut namespace, mut plain) = (Some("default"), Vec::new());
        let mut query = Serializer::new(String::from("?"));
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word.split_once('=') {
                Some(("--namespace", name)) => namespace = Some(name),
                Some(("--selector", selector)) => drop(query.append_pair("labelSelector", selector)),
                Some(("--field-selector", selector)) => drop(query.append_pair("fieldSelector", selector)),
                _ if word == "--namespace" => namespace = words.next().copied(),
                _ if word == "--all-namespaces" => namespace = None,
                _ if word.starts_with('-') => bail!("get knows no {word}"),
                _ => plain.push(word),
            }
        }
        let (&kinds, mut names) = plain.split_first().context("get what?")?;
        let (kinds, name) = kinds
            .split_once('/')
            .map_or((kinds, None), |(kind, name)| (kind, Some(name)));
        if let Some(name) = &name {
            ensure!(names.is_empty(), "{name} or {names:?}?");
            names = std::slice::from_ref(name);
        }
        let query = query.finish();
        let mut paths = Vec::new();
        for kind in kinds.split(',') {
            let all = path(namespace, kind)?;
            if names.is_empty() {
                paths.push(format!("{all}{query}"));
            }
            paths.extend(names.iter().map(|name| format!("{all}/{name}")));
        }
        let listed = names.len() != 1 || paths.len() != 1;
        Ok(Self { paths, listed })
    }
}

/// Returns the API path of a kind, given by its singular, plural or short name.
fn path(namespace: Option<&str>, kind: &str) -> Result<String> {
    let word = kind.strip_suffix(".slinky.slurm.net").unwrap_or(kind);
    let word = word.strip_suffix(".keelson.dev").unwrap_or(word);
    let (group, stem) = match word.strip_suffix('s').unwrap_or(word) {
        kind @ ("node" | "namespace") => return Ok(format!("/api/v1/{kind}s")),
        kind @ ("validatingwebhookconfiguration" | "mutatingwebhookconfiguration") => {
            return Ok(format!("/apis/admissionregistration.k8s.io/v1/{kind}s"));
        }
        kind @ ("configmap" | "event" | "persistentvolumeclaim" | "pod" | "secret" | "service") => {
            ("api/v1", kind)
        }
        "pvc" => ("api/v1", "persistentvolumeclaim"),
        kind @ ("controllerrevision" | "deployment" | "statefulset") => ("apis/apps/v1", kind),
        kind @ ("cronjob" | "job") => ("apis/batch/v1", kind),
        "pdb" | "poddisruptionbudget" => ("apis/policy/v1", "poddisruptionbudget"),
        "hpa" | "horizontalpodautoscaler" => ("apis/autoscaling/v2", "horizontalpodautoscaler"),
        "certificate" => ("apis/cert-manager.io/v1", "certificate"),
        "servicemonitor" => ("apis/monitoring.coreos.com/v1", "servicemonitor"),
        "lease" => ("apis/coordination.k8s.io/v1", "lease"),
        "networkpolicy" | "networkpolicie" => ("apis/networking.k8s.io/v1", "networkpolicie"),
        kind @ ("accounting" | "controller" | "loginset" | "nodeset" | "restapi" | "token") => {
            ("apis/slinky.slurm.net/v1beta1", kind)
        }
        "slurmcluster" => ("apis/keelson.dev/v1alpha1", "slurmcluster"),
        _ => bail!("where are objects of the kind {kind:?}? Add it in tests/e2e/src/api.rs"),
    };
    let space = namespace.map_or_else(String::new, |name| format!("namespaces/{name}/"));
    Ok(format!("/{group}/{space}{stem}s"))
}
