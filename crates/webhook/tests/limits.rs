//! Tests what the server accepts, limits and counts.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that panics is a test that fails"
)]

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Authority, Server, ask, cluster, https, nodeset, path_of, review};

#[tokio::test]
async fn what_is_no_review_is_told_so() {
    let authority = Authority::new();
    let server = Server::start(cluster(vec![]), &authority, |options| {
        options.limits.body = 10_000;
    })
    .await;
    let client = https(&[&authority]);
    let url = server.url(&path_of("NodeSet"));
    let send = async |body: String| client.post(&url).body(body).send().await.unwrap();
    assert_eq!(send("{}".into()).await.status(), 400);
    assert_eq!(send("nonsense".into()).await.status(), 400);
    assert_eq!(send(" ".repeat(20_000)).await.status(), 413);
    assert_eq!(client.get(&url).send().await.unwrap().status(), 405);
    assert_eq!(
        client.post(server.url("/else")).send().await.unwrap().status(),
        404
    );
    ask(&client, &url).await.unwrap();
}

/// Returns a fake cluster that never responds to reads of pods.
fn silent_about_pods() -> kube::Client {
    use axum::{body::Body, http};
    kube::Client::new(
        tower::service_fn(async |request: http::Request<kube::client::Body>| {
            if request.uri().path().contains("pods")
                || request.uri().query().is_some_and(|q| q.contains("watch=true"))
            {
                std::future::pending::<()>().await;
            }
            let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": [] });
            Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(list.to_string())))
        }),
        support::NAMESPACE,
    )
}

fn binding(pod: &str, node: &str) -> Value {
    let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod }, "target": { "name": node } });
    review("CREATE", "Binding", None, Some(&binding))
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_keeps_no_pod_from_its_node() {
    let authority = Authority::new();
    let server = Server::start(silent_about_pods(), &authority, |_| {}).await;
    let sent = https(&[&authority])
        .post(server.url(keelson_webhook::BINDING_PATH))
        .json(&binding("worker", "node-1"))
        .send();
    let answer: Value = sent.await.unwrap().json().await.unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    assert!(answer["response"]["patch"].is_null(), "{answer}");
}

#[tokio::test]
async fn what_takes_too_long_ends_and_others_wait_for_their_turn() {
    let authority = Authority::new();
    let server = Server::start(silent_about_pods(), &authority, |options| {
        options.limits.concurrent = 1;
        options.limits.time = Duration::from_millis(1500);
    })
    .await;
    let client = https(&[&authority]);
    let slow = binding("worker", "node-1");
    let begun = Instant::now();
    let slow = client
        .post(server.url(keelson_webhook::BINDING_PATH))
        .json(&slow)
        .send();
    let quick = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let quick = review("CREATE", "NodeSet", None, Some(&nodeset()));
        let answer = client
            .post(server.url(&path_of("NodeSet")))
            .json(&quick)
            .send()
            .await
            .unwrap();
        (answer.status(), begun.elapsed())
    };
    let (slow, (quick, waited)) = tokio::join!(slow, quick);
    assert_eq!(slow.unwrap().status(), 504);
    assert_eq!(quick, 200);
    assert!(
        waited >= Duration::from_millis(1400),
        "it did not wait for its turn: {waited:?}"
    );
}

#[tokio::test]
async fn the_hook_on_bindings_is_there_only_where_it_is_used() {
    let authority = Authority::new();
    let server = Server::start(cluster(vec![]), &authority, |options| {
        options.pods_binding = false;
    })
    .await;
    let sent = https(&[&authority])
        .post(server.url(keelson_webhook::BINDING_PATH))
        .json(&binding("worker", "node-1"))
        .send();
    assert_eq!(sent.await.unwrap().status(), 404);
}

#[tokio::test]
async fn reviews_are_counted() {
    let authority = Authority::new();
    let server = Server::start(cluster(vec![]), &authority, |_| {}).await;
    let client = https(&[&authority]);
    ask(&client, &server.url(&path_of("NodeSet"))).await.unwrap();
    let mut wrong = nodeset();
    wrong["spec"]["replicas"] = json!(-1);
    let question = review("CREATE", "NodeSet", None, Some(&wrong));
    client
        .post(server.url(&path_of("NodeSet")))
        .json(&question)
        .send()
        .await
        .unwrap();
    let text = reqwest::get(format!("http://{}/metrics", server.metrics))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    for expected in [
        r#"keelson_admission_reviews_total{kind="nodeset",operation="create",verdict="warned"} 1"#,
        r#"keelson_admission_reviews_total{kind="nodeset",operation="create",verdict="denied"} 1"#,
        r#"keelson_admission_seconds_count{kind="nodeset"} 2"#,
        "keelson_admission_in_flight 0",
        "keelson_certificate_expiry_timestamp_seconds",
    ] {
        assert!(text.contains(expected), "no {expected} in\n{text}");
    }
}

#[tokio::test]
async fn a_worker_gets_the_topology_of_its_node_and_others_are_left_alone() {
    let authority = Authority::new();
    let topology = "topology.slinky.slurm.net/spec";
    let server = Server::start(
        cluster(vec![
            json!({ "kind": "Pod", "metadata": { "name": "worker", "labels": { "app.kubernetes.io/name": "slurmd" } } }),
            json!({ "kind": "Pod", "metadata": { "name": "other" } }),
            json!({ "kind": "Node", "metadata": { "name": "node-1", "annotations": { topology: "t:s1" } } }),
        ]),
        &authority,
        |_| {},
    )
    .await;
    let client = https(&[&authority]);
    for (pod, node, patched) in [
        ("worker", "node-1", true),
        ("other", "node-1", false),
        ("nobody", "node-1", false),
        ("worker", "gone", false),
    ] {
        let sent = client
            .post(server.url(keelson_webhook::BINDING_PATH))
            .json(&binding(pod, node))
            .send();
        let answer: Value = sent.await.unwrap().json().await.unwrap();
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(
            answer["response"]["patch"].is_string(),
            patched,
            "{pod} on {node}: {answer}"
        );
    }
}
