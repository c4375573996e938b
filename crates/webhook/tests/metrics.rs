//! Tests that only authorized users can read protected metrics.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that panics is a test that fails"
)]

mod support;

use axum::{body::Body, http};
use rstest::rstest;
use serde_json::{Value, json};
use support::{Authority, Server, https};

/// Returns a fake cluster with two users, one of whom may read metrics.
fn cluster() -> kube::Client {
    let service = tower::service_fn(async |request: http::Request<kube::client::Body>| {
        if request
            .uri()
            .query()
            .is_some_and(|query| query.contains("watch=true"))
        {
            std::future::pending::<()>().await;
        }
        let (parts, body) = request.into_parts();
        let asked: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
        let answer = if parts.uri.path().ends_with("tokenreviews") {
            let user = asked["spec"]["token"]
                .as_str()
                .and_then(|token| token.strip_prefix("token-of-"));
            json!({ "spec": {}, "status": { "authenticated": user.is_some(), "user": { "username": user } } })
        } else if parts.uri.path().ends_with("subjectaccessreviews") {
            let asks = &asked["spec"]["nonResourceAttributes"];
            let allowed =
                asked["spec"]["user"] == "reader" && *asks == json!({ "path": "/metrics", "verb": "get" });
            json!({ "spec": {}, "status": { "allowed": allowed } })
        } else {
            json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": [] })
        };
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(answer.to_string())))
    });
    kube::Client::new(service, support::NAMESPACE)
}

#[rstest]
#[case::nobody(None, 401)]
#[case::a_stranger(Some("nonsense"), 401)]
#[case::a_user_who_may_not(Some("token-of-somebody"), 403)]
#[case::a_user_who_may(Some("token-of-reader"), 200)]
#[tokio::test]
async fn metrics_go_to_those_who_may_read_them(#[case] token: Option<&str>, #[case] status: u16) {
    let authority = Authority::new();
    let server = Server::start(cluster(), &authority, |options| options.metrics_secure = true).await;
    let mut request = https(&[&authority]).get(format!("https://{}/metrics", server.metrics));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), status);
    assert_eq!(answer.text().await.unwrap().contains("keelson_"), status == 200);
}
