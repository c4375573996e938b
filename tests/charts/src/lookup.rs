//! Renders a chart as `helm install` and `helm upgrade` do, with access to objects that are already installed.
//!
//! Helm reads them from an API server. These tests run without one, so a fake API server answers: it serves discovery
//! and the given objects, which is all that Helm requests, and responds "not found" to everything else.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{KUBERNETES, by_name, documents, repository, run, values_file};

const NAMESPACE: &str = "slurm";
/// Kinds with their plural names.
type Kinds = &'static [(&'static str, &'static str)];
/// The groups of the charts' objects, with their version and kinds.
const GROUPS: [(&str, &str, Kinds); 2] = [
    (
        "slinky.slurm.net",
        "v1beta1",
        &[
            ("Accounting", "accountings"),
            ("Controller", "controllers"),
            ("LoginSet", "loginsets"),
            ("NodeSet", "nodesets"),
            ("RestApi", "restapis"),
        ],
    ),
    ("keelson.dev", "v1alpha1", &[("SlurmCluster", "slurmclusters")]),
];
const CORE: [(&str, &str); 3] = [
    ("ConfigMap", "configmaps"),
    ("Pod", "pods"),
    ("Secret", "secrets"),
];

/// Returns the objects that `helm upgrade` would apply, by `Kind/name`, given the installed objects.
pub fn upgraded(
    helm: &Path,
    chart: &str,
    values: &Value,
    installed: &[Value],
) -> Result<BTreeMap<String, Value>> {
    render(helm, chart, values, installed, &["--is-upgrade"])
}

/// Returns the objects that `helm install` would create, by `Kind/name`, given objects that exist already.
pub fn installed(
    helm: &Path,
    chart: &str,
    values: &Value,
    existing: &[Value],
) -> Result<BTreeMap<String, Value>> {
    render(helm, chart, values, existing, &[])
}

fn render(
    helm: &Path,
    chart: &str,
    values: &Value,
    objects: &[Value],
    flags: &[&str],
) -> Result<BTreeMap<String, Value>> {
    let server = serve(answers(objects)?)?;
    let values = values_file(values)?;
    // Helm 3 asks a server about its kinds only when it installs.
    let kinds = GROUPS.iter().flat_map(|(group, version, kinds)| {
        let of = move |(kind, _): &(&str, &str)| format!("--api-versions={group}/{version}/{kind}");
        kinds.iter().map(of)
    });
    let rendered = run(Command::new(helm)
        .current_dir(repository())
        // Never contacts a cluster in the user's kubeconfig.
        .env("KUBECONFIG", "/dev/null")
        .args(["template", chart])
        .arg(Path::new("charts").join(chart))
        .args([
            "--namespace",
            NAMESPACE,
            "--dry-run=server",
            "--disable-openapi-validation",
        ])
        .args(flags)
        .args(kinds)
        .args(["--kube-version", KUBERNETES])
        .args(["--kube-apiserver", &format!("http://{server}")])
        .arg("--values")
        .arg(values.path()))?;
    by_name(documents(&rendered)?)
}

/// Returns the responses, by path.
fn answers(installed: &[Value]) -> Result<BTreeMap<String, Value>> {
    let kinds = |kinds: &[(&str, &str)]| -> Vec<Value> {
        let verbs = json!(["get"]);
        let entry = |(kind, name): &(&str, &str)| json!({ "name": name, "kind": kind, "namespaced": true, "verbs": verbs });
        kinds.iter().map(entry).collect()
    };
    let list = |version: &str, resources: Vec<Value>| json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources });
    let mut groups = Vec::new();
    let mut answers = BTreeMap::from([
        (
            "/version".to_owned(),
            json!({ "major": "1", "minor": "37", "gitVersion": format!("v{KUBERNETES}") }),
        ),
        (
            "/api".to_owned(),
            json!({ "kind": "APIVersions", "versions": ["v1"] }),
        ),
        ("/api/v1".to_owned(), list("v1", kinds(&CORE))),
    ]);
    for (group, version, of_group) in GROUPS {
        let ours = format!("{group}/{version}");
        let preferred = json!({ "groupVersion": ours, "version": version });
        groups.push(json!({ "name": group, "versions": [preferred], "preferredVersion": preferred }));
        answers.insert(format!("/apis/{ours}"), list(&ours, kinds(of_group)));
    }
    answers.insert(
        "/apis".to_owned(),
        json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }),
    );
    for object in installed {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let known = GROUPS.iter().find_map(|(group, version, kinds)| {
            let (_, plural) = kinds.iter().find(|(kind, _)| *kind == text("/kind"))?;
            Some(format!("{group}/{version}/namespaces/{NAMESPACE}/{plural}"))
        });
        let place = known.with_context(|| format!("nothing is known of the kind {}", text("/kind")))?;
        answers.insert(
            format!("/apis/{place}/{}", text("/metadata/name")),
            object.clone(),
        );
    }
    Ok(answers)
}

/// Serves the responses until the test process exits.
fn serve(answers: BTreeMap<String, Value>) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // Helm reports a broken connection.
            let _ = answer(connection, &answers);
        }
    });
    Ok(address)
}

fn answer(mut connection: TcpStream, answers: &BTreeMap<String, Value>) -> Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
    }
    let target = request.split(' ').nth(1).unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default();
    let missing = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404 });
    let (status, body) = answers
        .get(path)
        .map_or(("404 Not Found", &missing), |found| ("200 OK", found));
    let body = body.to_string();
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    Ok(())
}
