use std::{collections::BTreeSet, convert::Infallible};

use keelson_runtime::metrics::Metrics;
use kube::client::{Body, Client};
use parking_lot::Mutex;
use pretty_assertions::assert_eq;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::slurmcluster::{
    build,
    tests::{cluster, observed},
};

/// What the API server says about one path.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Refuses,
    HasSomebodyElses,
}

/// A fake API server that stores everything, except for paths with this end.
fn server(broken: &'static str, fault: Fault) -> (Client, Arc<Mutex<BTreeSet<String>>>) {
    let written: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let log = Arc::clone(&written);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let log = Arc::clone(&log);
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path();
            let (status, answer) = match (parts.method == http::Method::GET, path.ends_with(broken), fault) {
                (true, true, Fault::HasSomebodyElses) => {
                    let metadata = json!({ "name": "it", "namespace": "hpc", "uid": "another" });
                    (
                        200,
                        json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata }),
                    )
                }
                (true, ..) => (404, refusal(404)),
                (false, true, Fault::Refuses) => (500, refusal(500)),
                (false, ..) => {
                    let kind_and_name: Vec<&str> = path.rsplit('/').take(2).collect();
                    log.lock()
                        .insert(format!("{}/{}", kind_and_name[1], kind_and_name[0]));
                    let body = body.collect_bytes().await.unwrap();
                    (200, serde_json::from_slice::<Value>(&body).unwrap())
                }
            };
            let response = http::Response::builder()
                .status(status)
                .body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    (Client::new(service, "hpc"), written)
}

fn refusal(code: u16) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": if code == 404 { "NotFound" } else { "InternalError" }, "code": code })
}

/// Returns what was written, and the failures.
async fn applied(spec: &Value, broken: &'static str, fault: Fault) -> (BTreeSet<String>, Vec<String>) {
    let (client, written) = server(broken, fault);
    let writer = Writer::new(client, "test", Metrics::default());
    let writers = Writers {
        children: &writer,
        anchored: &writer,
    };
    let observed = observed(cluster(spec));
    let built = build::build(&observed).unwrap();
    let applied = apply(&Caches::default(), &writers, &built, &observed).await;
    let written = written.lock().clone();
    (
        written,
        applied.failures.iter().map(|error| chain(error)).collect(),
    )
}

fn with_everything() -> Value {
    json!({ "confineJobs": false, "accounting": {}, "login": { "users": {} }, "nodeSets": { "cpu": {} },
            "files": { "/etc/motd": { "content": "hello" } } })
}

#[rstest]
#[case::files("/configmaps/slurm-files", &["controllers/slurm", "restapis/slurm", "accountings/slurm"])]
#[case::config_files("/configmaps/slurm-config-extra", &["accountings/slurm"])]
#[case::database("/statefulsets/slurm-mariadb", &["controllers/slurm", "restapis/slurm"])]
#[case::controller("/controllers/slurm", &["accountings/slurm"])]
#[case::login("/loginsets/slurm-login-users", &["accountings/slurm", "controllers/slurm", "restapis/slurm", "nodesets/slurm-worker-cpu"])]
#[tokio::test]
async fn nothing_is_applied_before_what_its_pods_need(
    #[case] broken: &'static str,
    #[case] expected: &[&str],
    #[values(Fault::Refuses, Fault::HasSomebodyElses)] fault: Fault,
) {
    let (written, failures) = applied(&with_everything(), broken, fault).await;
    let of_ours = |name: &&String| !name.starts_with("configmaps") && !name.contains("mariadb");
    let written: BTreeSet<&str> = written.iter().filter(of_ours).map(String::as_str).collect();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!(written, expected.iter().copied().collect());
}

#[rstest]
#[case::its_own(json!({ "kind": "SlurmCluster", "name": "slurm", "uid": "uid-slurm" }), None)]
#[case::of_an_earlier_one(json!({ "kind": "SlurmCluster", "name": "slurm", "uid": "before" }), None)]
#[case::of_another_cluster(
    json!({ "kind": "SlurmCluster", "name": "slurm-worker-a", "uid": "b" }),
    Some("Controller hpc/slurm belongs to SlurmCluster slurm-worker-a: rename one of the objects that need this name")
)]
#[case::of_another_kind(
    json!({ "kind": "Site", "name": "slurm", "uid": "b" }),
    Some("Controller hpc/slurm belongs to Site slurm: rename one of the objects that need this name")
)]
#[case::orphaned(json!({ "kind": "ConfigMap", "name": "anchor", "uid": "c", "controller": false }), None)]
#[tokio::test]
async fn a_child_of_another_cluster_is_left_alone(#[case] mut owner: Value, #[case] expected: Option<&str>) {
    let (client, written) = server("/nothing", Fault::Refuses);
    let writer = Writer::new(client, "test", Metrics::default());
    let cluster = cluster(&json!({}));
    let mut step = Step::with(&writer, &cluster);
    let desired = build::build(&observed(Arc::clone(&cluster))).unwrap().controller;
    let mut live = desired.value.clone();
    owner["apiVersion"] = json!("keelson.dev/v1alpha1");
    if owner.get("controller").is_none() {
        owner["controller"] = json!(true);
    }
    live["metadata"]["ownerReferences"] = json!([owner]);
    live["metadata"]["annotations"] = json!({ "keelson.dev/applied-hash": "1" });
    let live = Arc::new(serde_json::from_value(live).unwrap());
    assert_eq!(step.apply(None, &desired, Some(&live)).await, expected.is_none());
    assert_eq!(
        step.applied.problem().map(|problem| problem.message).as_deref(),
        expected
    );
    assert_eq!(written.lock().is_empty(), expected.is_some());
}
