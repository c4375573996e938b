//! A server on the loopback interface, with a fake cluster that contains the test's objects.
//!
//! The cluster is not an API server: it responds only to the few reads of the webhook server, from a fixed set of
//! objects. `tests/e2e` tests the webhook's responses with a real API server.

#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../rows/mod.rs"]
pub mod rows;

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
    time::Duration,
};

use axum::{body::Body, http};
use keelson_webhook::{CertificateSource, Limits, Options};
use kube::Client;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rows::api_version;
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub const NAMESPACE: &str = "ns";

/// Returns a client of a fake cluster with these objects, all in one namespace.
pub fn cluster(objects: Vec<Value>) -> Client {
    let objects = Arc::new(objects);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let objects = Arc::clone(&objects);
        async move {
            let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
            if query.contains("watch=true") {
                // The objects never change.
                std::future::pending::<()>().await;
            }
            let (status, body) = answer(&objects, path);
            let response = http::Response::builder()
                .status(status)
                .body(Body::from(body.to_string()));
            Ok::<_, std::convert::Infallible>(response.unwrap())
        }
    });
    Client::new(service, NAMESPACE)
}

/// Responds to a read. The plural of every kind used here is its lower case name and an `s`.
fn answer(objects: &[Value], path: &str) -> (u16, Value) {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let plural_of =
        |object: &Value| format!("{}s", object["kind"].as_str().unwrap_or_default().to_lowercase());
    let of_kind = |plural: &str| -> Vec<Value> {
        objects
            .iter()
            .filter(|object| plural_of(object) == plural)
            .cloned()
            .collect()
    };
    match parts.as_slice() {
        ["apis", group, version, plural] => {
            let items = of_kind(plural);
            let list = json!({ "apiVersion": format!("{group}/{version}"), "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items });
            (200, list)
        }
        [.., plural, name] => {
            let found = of_kind(plural)
                .into_iter()
                .find(|object| object["metadata"]["name"] == *name);
            let missing = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found" });
            found.map_or((404, missing), |found| (200, found))
        }
        _ => (400, json!({})),
    }
}

/// A certificate authority for the loopback interface.
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// Writes a new certificate like the kubelet: both files at nearly the same time.
    pub fn write_certificate(&self, directory: &Path) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])
            .unwrap()
            .signed_by(&key, &self.issuer)
            .unwrap();
        std::fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
        std::fs::write(directory.join("tls.crt"), certificate.pem()).unwrap();
    }
}

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    pub health: SocketAddr,
    pub metrics: SocketAddr,
    pub certificates: tempfile::TempDir,
    pub stop: CancellationToken,
    pub running: AbortOnDropHandle<Result<(), keelson_webhook::Error>>,
}

impl Server {
    /// Starts a server with a certificate of this authority, and waits until it is ready.
    pub async fn start(cluster: Client, authority: &Authority, change: impl FnOnce(&mut Options)) -> Self {
        let certificates = tempfile::tempdir().unwrap();
        authority.write_certificate(certificates.path());
        let [address, health, metrics] = free_addresses();
        let mut options = Options {
            server: address,
            health: Some(health),
            metrics: Some(metrics),
            metrics_secure: false,
            namespaces: vec![],
            strict_configuration: false,
            certificate: CertificateSource::Directory(certificates.path().to_owned()),
            drain: Duration::ZERO,
            limits: Limits::default(),
            pods_binding: true,
        };
        change(&mut options);
        let stop = CancellationToken::new();
        let running = AbortOnDropHandle::new(tokio::spawn(keelson_webhook::serve(
            cluster,
            options,
            stop.clone(),
        )));
        let server = Self {
            address,
            health,
            metrics,
            certificates,
            stop,
            running,
        };
        while !server.is_ready().await {
            assert!(!server.running.is_finished(), "the server ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server
    }

    pub async fn is_ready(&self) -> bool {
        let answer = reqwest::get(format!("http://{}/readyz", self.health)).await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }
}

fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    // All are open at the same time, so that the ports differ.
    [(); N]
        .map(|()| TcpListener::bind("127.0.0.1:0").unwrap())
        .map(|listener| listener.local_addr().unwrap())
}

/// Returns a client that trusts only these authorities.
pub fn https(authorities: &[&Authority]) -> reqwest::Client {
    let certificates = authorities
        .iter()
        .map(|authority| reqwest::Certificate::from_pem(authority.pem.as_bytes()).unwrap());
    reqwest::Client::builder()
        .tls_certs_only(certificates)
        .build()
        .unwrap()
}

/// Returns the path for reviews of a kind.
pub fn path_of(kind: &str) -> String {
    let version = api_version(kind).replace(['.', '/'], "-");
    format!("/validate-{version}-{}", kind.to_lowercase())
}

/// Returns a review as the API server sends it.
pub fn review(operation: &str, kind: &str, old: Option<&Value>, new: Option<&Value>) -> Value {
    let name = new.or(old).map(|object| object["metadata"]["name"].clone());
    let (group, version) = api_version(kind).split_once('/').unwrap();
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "operation": operation, "name": name, "namespace": NAMESPACE,
            "kind": { "group": group, "version": version, "kind": kind },
            "object": new, "oldObject": old, "dryRun": false,
        },
    })
}

/// Returns a valid `NodeSet`.
pub fn nodeset() -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
        "metadata": { "name": "workers", "namespace": NAMESPACE },
        "spec": { "controllerRef": { "name": "slurm" }, "replicas": 3, "slurmd": { "image": "slurmd" }, "logfile": { "image": "alpine" } },
    })
}

/// Sends a review of a valid `NodeSet`; returns an error unless it is allowed.
pub async fn ask(client: &reqwest::Client, url: &str) -> Result<(), String> {
    let sent = client
        .post(url)
        .json(&review("CREATE", "NodeSet", None, Some(&nodeset())))
        .send();
    let answer = sent.await.map_err(|error| format!("{error:?}"))?;
    let status = answer.status();
    let body: Value = answer
        .json()
        .await
        .map_err(|error| format!("{status}: {error:?}"))?;
    if body["response"]["allowed"] == true {
        Ok(())
    } else {
        Err(body.to_string())
    }
}
