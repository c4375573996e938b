//! The server requires no client certificate, so every pod can send it a review of any namespace. The response must not
//! contain the content of other objects.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that panics is a test that fails"
)]

mod support;

use std::sync::{Arc, Mutex};

use axum::{body::Body, http};
use serde_json::{Value, json};
use support::{Authority, NAMESPACE, Server, https, path_of, review, rows::api_version};

/// Content of a namespace that the client may not read.
const SECRET: &str = "hunter2";

/// Returns a fake cluster with the same content in every object, and the log of requested paths.
fn talkative() -> (kube::Client, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let paths = Arc::clone(&asked);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let path = request.uri().path().to_owned();
        let watch = request
            .uri()
            .query()
            .is_some_and(|query| query.contains("watch=true"));
        paths.lock().unwrap().push(path.clone());
        async move {
            if watch {
                std::future::pending::<()>().await;
            }
            let body = if path.contains("/namespaces/") {
                json!({ "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": { "name": "app", "namespace": NAMESPACE, "labels": { "password": SECRET } },
                    "data": { "settings.yaml": format!("password: {SECRET}\nuser=x {SECRET}\n"), "slurm.key": SECRET, SECRET: "" },
                    "spec": { "accessModes": [SECRET] } })
            } else {
                json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": [] })
            };
            Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(body.to_string())))
        }
    });
    (kube::Client::new(service, NAMESPACE), asked)
}

#[tokio::test]
async fn a_forged_review_is_answered_without_the_contents_of_other_objects() {
    let authority = Authority::new();
    let (cluster, asked) = talkative();
    let server = Server::start(cluster, &authority, |_| {}).await;
    let keys = json!({ "slurmKeyRef": { "name": "app", "key": "slurm.key" }, "jwtKeyRef": { "name": "app", "key": "j" },
        "slurmctld": { "image": "slurmctld" }, "logfile": { "image": "alpine" } });
    for (kind, fields) in [
        (
            "Controller",
            json!({ "configFileRefs": [{ "name": "app" }], "extraConf": "Include settings.yaml" }),
        ),
        ("Controller", json!({ "configFileRefs": [{ "name": "app" }] })),
        ("Controller", json!({ "prologScriptRefs": [{ "name": "app" }] })),
        (
            "Controller",
            json!({ "jwksKeyRef": { "name": "app", "key": "no" } }),
        ),
        (
            "Controller",
            json!({ "ha": { "enabled": true }, "persistence": { "enabled": true, "existingClaim": "app" } }),
        ),
        (
            "Accounting",
            json!({ "storageConfig": { "host": "h", "passwordKeyRef": { "name": "app", "key": "k" } },
                "extraConf": "Include settings.yaml" }),
        ),
        (
            "LoginSet",
            json!({ "controllerRef": { "name": "c" }, "sssdConfRef": { "name": "app", "key": "settings.yaml" } }),
        ),
        (
            "NodeSet",
            json!({ "controllerRef": { "name": "c" }, "extraConf": "Include settings.yaml" }),
        ),
        (
            "SlurmCluster",
            json!({ "controller": { "configFileRefs": [{ "name": "app" }], "extraConf": "Include settings.yaml" },
                "files": { "/etc/motd": { "configMapKeyRef": { "name": "app", "key": "settings.yaml" } } } }),
        ),
    ] {
        let mut spec = keys.clone();
        spec.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let object = json!({ "apiVersion": api_version(kind), "kind": kind,
            "metadata": { "name": "probe", "namespace": NAMESPACE }, "spec": spec });
        // Without certificate or token, like any client that reaches the port.
        let sent = https(&[&authority])
            .post(server.url(&path_of(kind)))
            .json(&review("CREATE", kind, None, Some(&object)))
            .send();
        let answer: Value = sent.await.unwrap().json().await.unwrap();
        assert!(answer["response"]["allowed"].is_boolean(), "{answer}");
        assert!(!answer.to_string().contains(SECRET), "{answer}");
    }
    let foreign: Vec<String> = asked
        .lock()
        .unwrap()
        .iter()
        .filter(|path| !path.contains("slinky"))
        .cloned()
        .collect();
    assert_eq!(foreign, Vec::<String>::new(), "only our own kinds are read");
}
