//! How fast and how dearly a NodeSet gets its workers, next to a bare client that creates the same pods.
//!
//! Run by `cargo xtask bench nodeset`, which makes the cluster: a real API server and a real slurmctld; the machines are
//! simulated by kwok, and Slurm knows the workers as EXTERNAL nodes, which have states and drains but run no jobs.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a benchmark prints, and fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::process::Command;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{
    Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

const NAMESPACE: &str = "bench";
const NODESET: &str = "slurm-worker-cpu";
const WORKERS: &str = "app.kubernetes.io/name=slurmd";
const FLOOR: &str = "bench=floor";
const OPERATOR: &str = "system:serviceaccount:slurm-operator:slurm-operator";
/// Calls at the same time, as many as the operator makes.
const AT_ONCE: usize = 32;
const CONTROLLER: &[&str] = &["exec", "slurm-controller-0", "--container=slurmctld", "--"];

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let check = words.iter().any(|word| word == "--check");
    let sizes = words.iter().find(|word| !word.starts_with("--")).unwrap();
    let sizes: Vec<usize> = sizes.split(',').map(|word| word.parse().unwrap()).collect();
    let bench = Bench {
        client: Client::try_default().await.unwrap(),
    };
    println!(
        "workers  bare s  floor s  ready s  ratio  writes/pod  slurm reads  slurm writes  cpu s  rss MiB  cordon→drained s  writes"
    );
    for size in sizes {
        let broken = bench.measure(size).await;
        assert!(!check || broken.is_empty(), "over budget: {}", broken.join(", "));
    }
}

struct Bench {
    client: Client,
}

/// What the pods of the bare client carry. With the labels of workers Kubernetes counts them in the workers' Service and
/// disruption budget, as it has to for workers.
#[derive(Clone, Copy)]
enum Labels {
    None,
    OfWorkers,
}

/// What the operator has used and done so far.
struct Used {
    cpu: f64,
    rss: f64,
    reads: f64,
    writes: f64,
    audit: u64,
}

impl Bench {
    /// Prints one line, and returns what is over its budget.
    async fn measure(&self, size: usize) -> Vec<&'static str> {
        scale(1);
        self.wait_ready(WORKERS, 1).await;
        let template = self.pods(WORKERS).await.remove(0);
        slurm(&[
            "scontrol",
            "create",
            &format!("NodeName=cpu-[0-{}]", size - 1),
            "CPUs=1",
            "State=EXTERNAL",
        ]);
        let bare = self.floor(&template, size, Labels::None).await;
        let floor = self.floor(&template, size, Labels::OfWorkers).await;

        let before = self.used().await;
        let begun = Instant::now();
        scale(size);
        self.wait_ready(WORKERS, size).await;
        let ready = begun.elapsed();
        // What follows the last Ready belongs to it.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let after = self.used().await;
        let pod_writes = audited_writes(before.audit) as f64 / (size - 1) as f64;

        let cordon = self.used().await;
        let begun = Instant::now();
        self.cordon(true).await;
        // Asked where slurmctld runs: the way there through the API server takes longer than the question.
        let all_drained = format!(
            "until [ $(sinfo --noheader --Node --format=%T | grep --count drain) -ge {size} ]; do sleep 0.1; done"
        );
        slurm(&["bash", "-c", &all_drained]);
        let drained = begun.elapsed();
        let cordoned = self.used().await;
        self.cordon(false).await;
        println!(
            "{size:7}  {:6.1}  {:7.1}  {:7.1}  {:5.2}  {pod_writes:10.2}  {:11}  {:12}  {:5.1}  {:7.0}  {:16.1}  {:6}",
            bare.as_secs_f64(),
            floor.as_secs_f64(),
            ready.as_secs_f64(),
            ready.as_secs_f64() / floor.as_secs_f64(),
            after.reads - before.reads,
            after.writes - before.writes,
            after.cpu - before.cpu,
            after.rss,
            drained.as_secs_f64(),
            cordoned.writes - cordon.writes,
        );
        scale(0);
        self.wait_gone(WORKERS).await;
        let budgets = [
            ("time to ready", ready.as_secs_f64() / floor.as_secs_f64(), 1.3),
            ("writes a pod", pod_writes, 2.0),
            (
                "Slurm calls",
                after.reads - before.reads + after.writes - before.writes,
                50.0,
            ),
            ("processor seconds", after.cpu - before.cpu, 10.0),
            ("memory", after.rss, 48.0),
            ("calls to drain all", cordoned.writes - cordon.writes, 5.0),
        ];
        let over = budgets.iter().filter(|(_, found, budget)| found > budget);
        over.map(|(what, ..)| *what).collect()
    }

    /// The same pods, created by nobody but this program.
    async fn floor(&self, template: &Pod, size: usize, labels: Labels) -> Duration {
        let mut worn = match labels {
            Labels::None => BTreeMap::new(),
            Labels::OfWorkers => template.labels().clone(),
        };
        worn.insert("bench".to_owned(), "floor".to_owned());
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let begun = Instant::now();
        stream::iter(1..size)
            .map(|index| {
                let (pods, mut pod) = (pods.clone(), template.clone());
                pod.metadata = ObjectMeta {
                    name: Some(format!("floor-{index}")),
                    labels: Some(worn.clone()),
                    ..ObjectMeta::default()
                };
                pod.status = None;
                if let Some(spec) = &mut pod.spec {
                    spec.node_name = None;
                    spec.hostname = None;
                }
                async move { pods.create(&PostParams::default(), &pod).await.map(drop) }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await
            .unwrap();
        self.wait_ready(FLOOR, size - 1).await;
        let took = begun.elapsed();
        pods.delete_collection(
            &DeleteParams::default().grace_period(0),
            &ListParams::default().labels(FLOOR),
        )
        .await
        .unwrap();
        self.wait_gone(FLOOR).await;
        took
    }

    async fn pods(&self, selector: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        pods.list(&ListParams::default().labels(selector))
            .await
            .unwrap()
            .items
    }

    /// Watches until so many pods are ready: asking again and again would slow down what is measured.
    async fn wait_ready(&self, selector: &str, count: usize) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let mut ready = BTreeSet::new();
        loop {
            let watch = WatchParams::default().labels(selector);
            let mut events = pods.watch(&watch, "0").await.unwrap().boxed();
            while let Some(Ok(event)) = events.next().await {
                match event {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) if is_ready(&pod) => {
                        ready.insert(pod.name_any());
                    }
                    _ => {}
                }
                if ready.len() >= count {
                    return;
                }
            }
        }
    }

    async fn wait_gone(&self, selector: &str) {
        while !self.pods(selector).await.is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn cordon(&self, cordoned: bool) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let simulated = nodes
            .list(&ListParams::default().labels("type=kwok"))
            .await
            .unwrap();
        stream::iter(simulated.items)
            .for_each_concurrent(AT_ONCE, |node| {
                let nodes = nodes.clone();
                async move {
                    let patch = json!({ "spec": { "unschedulable": cordoned } });
                    nodes
                        .patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                        .await
                        .unwrap();
                }
            })
            .await;
    }

    async fn used(&self) -> Used {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "slurm-operator");
        let operator = pods
            .list(&ListParams::default().labels("app.kubernetes.io/name=slurm-operator"))
            .await
            .unwrap()
            .items
            .remove(0);
        let machine = operator.spec.as_ref().unwrap().node_name.clone().unwrap();
        let summary: Value = self
            .raw(&format!("/api/v1/nodes/{machine}/proxy/stats/summary"))
            .await;
        let container = summary["pods"]
            .as_array()
            .unwrap()
            .iter()
            .find(|pod| pod["podRef"]["name"] == operator.name_any().as_str())
            .unwrap()["containers"][0]
            .clone();
        let path = format!(
            "/api/v1/namespaces/slurm-operator/pods/{}:8080/proxy/metrics",
            operator.name_any()
        );
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        let metrics = self.client.request_text(request).await.unwrap();
        Used {
            cpu: container["cpu"]["usageCoreNanoSeconds"].as_f64().unwrap() / 1e9,
            rss: container["memory"]["rssBytes"].as_f64().unwrap() / f64::from(1 << 20),
            reads: metric(&metrics, r#"keelson_slurm_calls_total{kind="read"}"#),
            writes: metric(&metrics, r#"keelson_slurm_calls_total{kind="write"}"#),
            audit: std::fs::metadata(audit_log()).unwrap().len(),
        }
    }

    async fn raw(&self, path: &str) -> Value {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        self.client.request(request).await.unwrap()
    }
}

fn metric(text: &str, name: &str) -> f64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0.0)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn audit_log() -> String {
    std::env::var("KEELSON_BENCH_AUDIT").unwrap()
}

/// The operator's writes to worker pods since the log had this length.
fn audited_writes(since: u64) -> usize {
    let mut log = std::fs::File::open(audit_log()).unwrap();
    log.seek(SeekFrom::Start(since)).unwrap();
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|event| {
            event["user"]["username"] == OPERATOR
                && event["objectRef"]["resource"] == "pods"
                && event["objectRef"]["namespace"] == NAMESPACE
                && ["create", "patch", "update", "delete"]
                    .iter()
                    .any(|verb| event["verb"] == *verb)
        })
        .count()
}

fn scale(replicas: usize) {
    kubectl(&[
        "scale",
        &format!("nodeset.slinky.slurm.net/{NODESET}"),
        &format!("--replicas={replicas}"),
    ]);
}

fn slurm(words: &[&str]) -> String {
    kubectl(&[CONTROLLER, words].concat())
}

fn kubectl(words: &[&str]) -> String {
    let output = Command::new(std::env::var("KEELSON_BENCH_KUBECTL").unwrap())
        .args(["--namespace", NAMESPACE])
        .args(words)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "kubectl {words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
