//! What the benchmark does in the cluster as a user: pods and nodes by the API server, slurmctld by kubectl.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use keelson_api::well_known::condition::SLURM_NODE_STATE_PREFIX;
use kube::api::{
    Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, timeout};

pub const NAMESPACE: &str = "bench";
pub const NODESET: &str = "slurm-worker-cpu";
pub const WORKERS: &str = "app.kubernetes.io/name=slurmd";
/// The pods of the bare client.
pub const FLOOR: &str = "bench=floor";
pub const CONTROLLER: &[&str] = &["exec", "slurm-controller-0", "--container=slurmctld", "--"];
/// Number of concurrent calls, the same as the operator makes.
const AT_ONCE: usize = 32;
/// How long pods may take to become ready or to go.
const LIMIT: Duration = Duration::from_mins(30);
const RETRY: Duration = Duration::from_millis(200);

#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

impl Cluster {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    pub fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub async fn version(&self) -> String {
        self.client.apiserver_version().await.unwrap().git_version
    }

    pub async fn text(&self, path: &str) -> kube::Result<String> {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        self.client.request_text(request).await
    }

    pub async fn json(&self, path: &str) -> kube::Result<Value> {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        self.client.request(request).await
    }

    /// Returns the identifiers of pods in the namespace of the workers.
    pub async fn uids(&self, selector: &str) -> Vec<String> {
        let selected = ListParams::default().labels(selector);
        let pods = self.pods(NAMESPACE).list_metadata(&selected).await.unwrap();
        pods.items.iter().filter_map(kube::ResourceExt::uid).collect()
    }

    /// Returns one worker, from which the bare client makes its pods.
    pub async fn worker(&self) -> Pod {
        let one = ListParams::default().labels(WORKERS);
        self.pods(NAMESPACE).list(&one).await.unwrap().items.remove(0)
    }

    /// Creates the same pods as the operator would, with these labels.
    pub async fn create_pods(&self, template: &Pod, labels: &BTreeMap<String, String>, count: usize) {
        let pods = self.pods(NAMESPACE);
        stream::iter(1..=count)
            .map(|index| {
                let (pods, mut pod) = (pods.clone(), template.clone());
                pod.metadata = ObjectMeta {
                    name: Some(format!("floor-{index}")),
                    labels: Some(labels.clone()),
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
    }

    /// Deletes the pods that `create_pods` created, one call for each, as the operator must.
    pub async fn delete_pods(&self, count: usize) {
        let pods = self.pods(NAMESPACE);
        stream::iter(1..=count)
            .map(|index| {
                let pods = pods.clone();
                async move {
                    let name = format!("floor-{index}");
                    pods.delete(&name, &DeleteParams::default()).await.map(drop)
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await
            .unwrap();
    }

    /// Watches until `count` pods are ready: polling would slow down what is measured.
    pub async fn wait_ready(&self, selector: &str, count: usize) {
        let mut ready = BTreeSet::new();
        let all = self.watch(selector, |pod| {
            if has_condition(pod, |kind| kind == "Ready") {
                ready.insert(pod.name_any());
            }
            ready.len() >= count
        });
        let in_time = timeout(LIMIT, all).await.is_ok();
        assert!(in_time, "{selector}: {} of {count} pods are ready", ready.len());
    }

    /// Waits until no more than `count` workers are left. Returns false if they do not go in time.
    pub async fn wait_fewer(&self, count: usize, limit: Duration) -> bool {
        let pods = self.pods(NAMESPACE);
        let workers = ListParams::default().labels(WORKERS);
        let begun = Instant::now();
        while !matches!(pods.list_metadata(&workers).await, Ok(left) if left.items.len() <= count) {
            if begun.elapsed() > limit {
                return false;
            }
            // The list is long.
            sleep(10 * RETRY).await;
        }
        true
    }

    /// Waits until no pod is left. A list of one is cheap, whatever the number of pods.
    pub async fn wait_gone(&self, selector: &str) {
        let pods = self.pods(NAMESPACE);
        let one = ListParams::default().labels(selector).limit(1);
        let begun = Instant::now();
        while !matches!(pods.list_metadata(&one).await, Ok(left) if left.items.is_empty()) {
            assert!(begun.elapsed() < LIMIT, "{selector}: pods are not gone");
            sleep(RETRY).await;
        }
    }

    /// Sends the host name of each worker, and the time, when its pod first has a condition of its Slurm node with this
    /// name; any if the name is empty.
    pub async fn watch_states(self, state: &'static str, shown: UnboundedSender<(String, Instant)>) {
        let wanted = format!("{SLURM_NODE_STATE_PREFIX}{state}");
        let mut known = BTreeSet::new();
        self.watch(WORKERS, move |pod| {
            let host = pod.spec.as_ref().and_then(|spec| spec.hostname.clone());
            let host = host.unwrap_or_else(|| pod.name_any());
            let is_wanted = |kind: &str| kind == wanted || (state.is_empty() && kind.starts_with(&wanted));
            has_condition(pod, is_wanted)
                && known.insert(host.clone())
                && shown.send((host, Instant::now())).is_err()
        })
        .await;
    }

    /// Calls `done` with each pod that exists, is created or changes, until it returns true.
    async fn watch(&self, selector: &str, mut done: impl FnMut(&Pod) -> bool) {
        let pods = self.pods(NAMESPACE);
        let watch = WatchParams::default().labels(selector);
        loop {
            let Ok(events) = pods.watch(&watch, "0").await else {
                sleep(RETRY).await;
                continue;
            };
            let mut events = events.boxed();
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event
                    && done(&pod)
                {
                    return;
                }
            }
        }
    }

    pub async fn simulated(&self) -> Vec<Node> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let simulated = ListParams::default().labels("type=kwok");
        nodes.list(&simulated).await.unwrap().items
    }

    /// Cordons or uncordons all simulated nodes.
    pub async fn cordon(&self, nodes: &[Node], cordoned: bool) {
        let api: Api<Node> = Api::all(self.client.clone());
        stream::iter(nodes)
            .for_each_concurrent(AT_ONCE, |node| {
                let api = api.clone();
                async move {
                    let patch = json!({ "spec": { "unschedulable": cordoned } });
                    api.patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                        .await
                        .unwrap();
                }
            })
            .await;
    }
}

fn has_condition(pod: &Pod, wanted: impl Fn(&str) -> bool) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.status == "True" && wanted(&condition.type_))
}

pub fn scale(replicas: usize) {
    let nodeset = format!("nodeset.slinky.slurm.net/{NODESET}");
    kubectl(&["scale", &nodeset, &format!("--replicas={replicas}")]).unwrap();
}

/// Runs a program in slurmctld's container.
pub fn slurm(words: &[&str]) -> String {
    kubectl(&[CONTROLLER, words].concat()).unwrap()
}

/// Runs a program in slurmctld's container that may fail, for example because there is nothing to do.
pub fn try_slurm(words: &[&str]) {
    if let Err(error) = kubectl(&[CONTROLLER, words].concat()) {
        eprintln!("{error}");
    }
}

/// Runs a shell script in slurmctld's container until the condition holds. It runs there because the way through the
/// API server takes longer than the query. Returns false if it does not hold in time.
pub fn slurm_until(condition: &str, limit: Duration) -> bool {
    let script = format!(
        "until {condition}; do [ $SECONDS -lt {} ] || exit 1; sleep 0.1; done",
        limit.as_secs()
    );
    kubectl(&[CONTROLLER, &["bash", "-c", &script]].concat()).is_ok()
}

pub fn kubectl(words: &[&str]) -> Result<String, String> {
    let output = program().args(words).output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("kubectl {}: {said}", words.join(" ")))
    }
}

/// kubectl, in the namespace of the workers.
pub fn program() -> Command {
    let mut command = Command::new(std::env::var("KEELSON_BENCH_KUBECTL").unwrap());
    command.args(["--namespace", NAMESPACE]);
    command
}
