//! Interaction between replicas, call by call. The e2e tests show that a real API server trusts the certificate.

use std::sync::Arc;

use axum::{body::Body, http};
use http::Method;
use jiff::SignedDuration;
use k8s_openapi::ByteString;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::metrics::Metrics;

const NOW: i64 = 1_800_000_000;

/// The Secret and one webhook configuration, with another replica that may write first.
#[derive(Default)]
struct Cluster {
    secret: Option<Value>,
    version: u64,
    /// What another replica stores just before our next write.
    quicker: Option<Material>,
    bundle: Option<String>,
    calls: Vec<String>,
}

impl Cluster {
    fn store(&mut self, material: &Material) {
        self.version += 1;
        self.secret = Some(json!({
            "metadata": { "name": "s", "resourceVersion": self.version.to_string() }, "data": material.to_data(),
        }));
    }

    fn stored(&self) -> Material {
        let secret: Secret = serde_json::from_value(self.secret.clone().unwrap()).unwrap();
        Material::from_data(&secret.data.unwrap()).unwrap()
    }

    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        self.calls.push(format!(
            "{method} {}",
            path.rsplit('/').find(|part| *part != "s").unwrap()
        ));
        if path.contains("mutatingwebhookconfigurations") {
            return failure(404);
        }
        if path.contains("validatingwebhookconfigurations") {
            if *method == Method::PATCH {
                self.bundle = Some(
                    body["webhooks"][0]["clientConfig"]["caBundle"]
                        .as_str()
                        .unwrap()
                        .to_owned(),
                );
            }
            let hook = json!({
                "name": "h", "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": { "caBundle": self.bundle },
            });
            return (
                200,
                json!({ "metadata": { "name": "c", "resourceVersion": "1" }, "webhooks": [hook] }),
            );
        }
        if *method == Method::GET {
            return self
                .secret
                .clone()
                .map_or_else(|| failure(404), |secret| (200, secret));
        }
        if let Some(quicker) = self.quicker.take() {
            self.store(&quicker);
        }
        let expected = body["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let current = self.secret.as_ref().map(|_| self.version.to_string());
        if expected != current {
            return failure(409);
        }
        self.version += 1;
        self.secret = Some(json!({
            "metadata": { "name": "s", "resourceVersion": self.version.to_string() }, "data": body["data"],
        }));
        (200, self.secret.clone().unwrap())
    }
}

fn failure(code: u16) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Conflict" };
    let status =
        json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason });
    (code, status)
}

fn client(cluster: &Arc<Mutex<Cluster>>) -> Client {
    let cluster = Arc::clone(cluster);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let cluster = Arc::clone(&cluster);
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            let (status, answer) = cluster.lock().answer(&parts.method, parts.uri.path(), &body);
            let response = http::Response::builder()
                .status(status)
                .body(Body::from(answer.to_string()));
            Ok::<_, std::convert::Infallible>(response.unwrap())
        }
    });
    Client::new(service, "ns")
}

fn names() -> Vec<String> {
    vec!["webhook.ns.svc".to_owned()]
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

fn material(seconds: i64) -> Material {
    Material::make(&names(), at(seconds), &Lifetimes::default()).unwrap()
}

fn keeper(cluster: &Arc<Mutex<Cluster>>, now: Timestamp) -> Keeper {
    let place = Place {
        namespace: "ns".into(),
        secret: "s".into(),
        names: names(),
        configuration: "c".into(),
        lifetimes: Lifetimes::default(),
    };
    Keeper::new(
        client(cluster),
        place,
        Tls::new(Metrics::new()),
        Clock::fixed(now),
        Readiness::default(),
    )
}

fn bundle_of(material: &Material) -> Value {
    serde_json::to_value(ByteString(material.bundle().into_bytes())).unwrap()
}

#[tokio::test]
async fn the_first_certificate_is_stored_trusted_and_served() {
    let cluster = Arc::new(Mutex::new(Cluster::default()));
    let mut keeper = keeper(&cluster, at(0));
    keeper.look().await.unwrap();
    let cluster = cluster.lock();
    let stored = cluster.stored();
    assert!(keeper.served == Some(stored.clone()));
    assert_eq!(json!(cluster.bundle), bundle_of(&stored));
    // Stored first, then trusted, then served: no replica serves a certificate that the others cannot find.
    assert_eq!(cluster.calls[..2], ["GET secrets", "POST secrets"]);
}

#[tokio::test]
async fn whoever_writes_first_wins() {
    let theirs = material(0);
    let cluster = Arc::new(Mutex::new(Cluster {
        quicker: Some(theirs.clone()),
        ..Cluster::default()
    }));
    let mut keeper = keeper(&cluster, at(0));
    keeper.look().await.unwrap();
    assert!(keeper.served.is_none(), "what was not stored is not served");
    keeper.look().await.unwrap();
    assert!(keeper.served == Some(theirs.clone()));
    assert!(cluster.lock().stored() == theirs);
}

#[tokio::test]
async fn a_quiet_look_writes_nothing() {
    let cluster = Arc::new(Mutex::new(Cluster::default()));
    let mut keeper = keeper(&cluster, at(0));
    keeper.look().await.unwrap();
    cluster.lock().calls.clear();
    let pause = keeper.look().await.unwrap();
    assert!(pause >= Duration::from_mins(5), "{pause:?}");
    assert!(
        cluster.lock().calls.iter().all(|call| call.starts_with("GET")),
        "{:?}",
        cluster.lock().calls
    );
}

#[tokio::test]
async fn a_deleted_secret_comes_back_as_it_was() {
    let cluster = Arc::new(Mutex::new(Cluster::default()));
    let mut keeper = keeper(&cluster, at(0));
    keeper.look().await.unwrap();
    let before = cluster.lock().stored();
    cluster.lock().secret = None;
    keeper.look().await.unwrap();
    assert!(cluster.lock().stored() == before);
}

#[tokio::test]
async fn what_another_replica_renewed_is_taken_over() {
    let cluster = Arc::new(Mutex::new(Cluster::default()));
    let mut keeper = keeper(&cluster, at(0));
    keeper.look().await.unwrap();
    let renewed = cluster
        .lock()
        .stored()
        .issue(&names(), at(10), &Lifetimes::default())
        .unwrap();
    cluster.lock().store(&renewed);
    keeper.look().await.unwrap();
    assert!(keeper.served == Some(renewed));
}

#[tokio::test]
async fn a_secret_that_is_not_ours_is_taken_over() {
    let cluster = Arc::new(Mutex::new(Cluster::default()));
    cluster.lock().store(&material(0));
    cluster.lock().secret.as_mut().unwrap()["data"]
        .as_object_mut()
        .unwrap()
        .remove("ca.key");
    let mut keeper = keeper(&cluster, at(0));
    keeper.look().await.unwrap();
    assert!(keeper.served == Some(cluster.lock().stored()));
}

#[tokio::test]
async fn a_new_authority_is_trusted_beside_the_old_one_before_it_signs() {
    let life = Lifetimes::default().authority.as_secs();
    let old = material(0);
    // Renewed recently, so that only the CA is due.
    let due = old
        .issue(&names(), at(life * 2 / 3), &Lifetimes::default())
        .unwrap();
    let cluster = Arc::new(Mutex::new(Cluster::default()));
    cluster.lock().store(&due);
    let now = at(life * 2 / 3 + 60);
    let mut keeper = keeper(&cluster, now);
    keeper.look().await.unwrap();
    let announced = cluster.lock().stored();
    assert!(
        announced.serving == due.serving,
        "the old certificate is still served"
    );
    assert!(announced.bundle().contains(old.newest()) && announced.newest() != old.newest());
    assert_eq!(json!(cluster.lock().bundle), bundle_of(&announced));
    // Not before every API server had time to load the new CA.
    keeper.look().await.unwrap();
    assert!(cluster.lock().stored() == announced);
    keeper.clock = Clock::fixed(now + SignedDuration::from_secs(31));
    keeper.look().await.unwrap();
    let issued = cluster.lock().stored();
    assert!(issued.facts(&names()).unwrap().signed_by_newest);
    assert!(
        issued.bundle().contains(old.newest()),
        "the old authority is still trusted"
    );
}
