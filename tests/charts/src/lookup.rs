//! Renders a chart as an upgrade does, over objects that are installed already.
//!
//! helm asks an API server for them. None runs beside these tests, so a stand-in answers: it knows the kinds and objects that it is
//! given, is asked for nothing but discovery and single objects, and says "not found" to the rest.

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
const GROUP: &str = "slinky.slurm.net";
const VERSION: &str = "v1beta1";
/// The kinds of the chart's objects, with the names by which they are asked for.
const KINDS: [(&str, &str); 5] = [
    ("Accounting", "accountings"),
    ("Controller", "controllers"),
    ("LoginSet", "loginsets"),
    ("NodeSet", "nodesets"),
    ("RestApi", "restapis"),
];
const CORE: [(&str, &str); 3] = [
    ("ConfigMap", "configmaps"),
    ("Pod", "pods"),
    ("Secret", "secrets"),
];

/// The objects that `helm upgrade` would send, by `Kind/name`, where the installed ones are these.
pub fn upgraded(
    helm: &Path,
    chart: &str,
    values: &Value,
    installed: &[Value],
) -> Result<BTreeMap<String, Value>> {
    let server = serve(answers(installed)?)?;
    let values = values_file(values)?;
    let rendered = run(Command::new(helm)
        .current_dir(repository())
        // A cluster that somebody has at hand is not asked.
        .env("KUBECONFIG", "/dev/null")
        .args(["template", chart])
        .arg(Path::new("charts").join(chart))
        .args([
            "--namespace",
            NAMESPACE,
            "--is-upgrade",
            "--dry-run=server",
            "--disable-openapi-validation",
        ])
        .args(["--kube-version", KUBERNETES])
        .args(["--kube-apiserver", &format!("http://{server}")])
        .arg("--values")
        .arg(values.path()))?;
    by_name(documents(&rendered)?)
}

/// What is answered, by path.
fn answers(installed: &[Value]) -> Result<BTreeMap<String, Value>> {
    let kinds = |kinds: &[(&str, &str)]| -> Vec<Value> {
        let verbs = json!(["get"]);
        let entry = |(kind, name): &(&str, &str)| json!({ "name": name, "kind": kind, "namespaced": true, "verbs": verbs });
        kinds.iter().map(entry).collect()
    };
    let list = |version: &str, resources: Vec<Value>| json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources });
    let ours = format!("{GROUP}/{VERSION}");
    let version = json!({ "groupVersion": ours, "version": VERSION });
    let group = json!({ "name": GROUP, "versions": [version], "preferredVersion": version });
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
        (
            "/apis".to_owned(),
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group] }),
        ),
        (format!("/apis/{ours}"), list(&ours, kinds(&KINDS))),
    ]);
    for object in installed {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let known = KINDS.iter().find(|(kind, _)| *kind == text("/kind"));
        let (_, plural) = known.with_context(|| format!("nothing is known of the kind {}", text("/kind")))?;
        let name = text("/metadata/name");
        answers.insert(
            format!("/apis/{ours}/namespaces/{NAMESPACE}/{plural}/{name}"),
            object.clone(),
        );
    }
    Ok(answers)
}

/// Answers until the test's process ends.
fn serve(answers: BTreeMap<String, Value>) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // A broken connection is helm's to report.
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
