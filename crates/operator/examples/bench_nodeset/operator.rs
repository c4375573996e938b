//! What the measured operator uses: processor time and memory by the kubelet, writes to Kubernetes by the audit log,
//! calls to Slurm by its own metrics.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::cluster::{Cluster, NAMESPACE};

const SELECTOR: &str = "slurm-operator/app.kubernetes.io/name=slurm-operator";
const USER: &str = "system:serviceaccount:slurm-operator:slurm-operator";
/// The name of this operator in the results.
const OURS: &str = "keelson";
const METRICS_PORT: u16 = 8080;
const MIB: f64 = 1_048_576.0;
/// The kubelet measures containers every 10 to 15 s.
const NEXT_SAMPLE: Duration = Duration::from_mins(1);
const SETTLED_WITHIN: Duration = Duration::from_mins(2);

#[derive(Clone)]
pub struct Operator {
    cluster: Cluster,
    namespace: String,
    selector: String,
    user: String,
    /// Whether this is Keelson, which is known not to resume EXTERNAL nodes.
    pub is_ours: bool,
}

/// A sample by the kubelet.
#[derive(Clone, Copy)]
pub struct Sample {
    pub at: Timestamp,
    /// Processor seconds since the start.
    pub cpu: f64,
    /// Memory in MiB.
    pub rss: f64,
}

/// A point in time, to count from or to.
#[derive(Clone, Copy)]
pub struct Mark {
    /// Reads and writes; `None` if the operator has no such metric.
    slurm: Option<(f64, f64)>,
    /// Length of the audit log.
    audit: u64,
}

/// Calls between two marks.
#[derive(Clone, Copy)]
pub struct Calls {
    pub slurm_reads: Option<f64>,
    pub slurm_writes: Option<f64>,
    /// Writes to worker pods.
    pub pod_writes: f64,
    /// All writes to Kubernetes except those to Leases.
    pub kubernetes_writes: f64,
}

impl Operator {
    pub fn from_environment(cluster: Cluster) -> Self {
        let or = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
        let place = or("KEELSON_BENCH_OPERATOR_SELECTOR", SELECTOR);
        let (namespace, selector) = place.split_once('/').unwrap();
        Self {
            cluster,
            namespace: namespace.to_owned(),
            selector: selector.to_owned(),
            user: or("KEELSON_BENCH_OPERATOR_USER", USER),
            is_ours: or("KEELSON_BENCH_OPERATOR", OURS) == OURS,
        }
    }

    pub async fn uid(&self) -> String {
        self.pod().await.uid().unwrap_or_default()
    }

    async fn pod(&self) -> Pod {
        let selected = ListParams::default().labels(&self.selector);
        let pods = self.cluster.pods(&self.namespace).list(&selected).await.unwrap();
        let running = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
        };
        let found = pods.items.into_iter().find(running);
        let Some(pod) = found else {
            panic!("no running pod {} in {}", self.selector, self.namespace)
        };
        pod
    }

    /// Returns the kubelet's latest sample, `None` before the first.
    async fn sample(&self, pod: &Pod) -> Option<Sample> {
        let machine = pod.spec.as_ref()?.node_name.as_ref()?;
        let path = format!("/api/v1/nodes/{machine}/proxy/stats/summary");
        let summary = self.cluster.json(&path).await.ok()?;
        let uid = pod.uid()?;
        let containers = summary["pods"]
            .as_array()?
            .iter()
            .find(|found| found["podRef"]["uid"] == uid.as_str())?["containers"]
            .as_array()?
            .clone();
        let sum = |part: &str, field: &str| -> f64 {
            containers
                .iter()
                .filter_map(|container| container[part][field].as_f64())
                .sum()
        };
        let at = containers.first()?["cpu"]["time"].as_str()?.parse().ok()?;
        Some(Sample {
            at,
            cpu: sum("cpu", "usageCoreNanoSeconds") / 1e9,
            rss: sum("memory", "rssBytes") / MIB,
        })
    }

    /// Waits for a sample that the kubelet takes after this call.
    pub async fn fresh_sample(&self) -> Sample {
        let pod = self.pod().await;
        let old = self.sample(&pod).await.map(|sample| sample.at);
        let begun = Instant::now();
        loop {
            sleep(Duration::from_millis(500)).await;
            if let Some(sample) = self.sample(&pod).await
                && old.is_none_or(|old| sample.at > old)
            {
                return sample;
            }
            assert!(
                begun.elapsed() < NEXT_SAMPLE,
                "the kubelet does not report the usage of pod {}",
                pod.name_any()
            );
        }
    }

    pub async fn mark(&self) -> Mark {
        Mark {
            slurm: self.slurm_calls().await,
            audit: fs::metadata(audit_log()).unwrap().len(),
        }
    }

    async fn slurm_calls(&self) -> Option<(f64, f64)> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}:{METRICS_PORT}/proxy/metrics",
            self.namespace,
            self.pod().await.name_any()
        );
        let metrics = self.cluster.text(&path).await.ok()?;
        // A counter appears with the first call that it counts.
        let of = |kind: &str| {
            metric(
                &metrics,
                &format!(r#"keelson_slurm_calls_total{{kind="{kind}"}}"#),
            )
        };
        metrics
            .contains("keelson_")
            .then(|| (of("read").unwrap_or(0.0), of("write").unwrap_or(0.0)))
    }

    pub fn calls(&self, from: Mark, to: Mark) -> Calls {
        let slurm = from.slurm.zip(to.slurm);
        let mut calls = Calls {
            slurm_reads: slurm.map(|(from, to)| to.0 - from.0),
            slurm_writes: slurm.map(|(from, to)| to.1 - from.1),
            pod_writes: 0.0,
            kubernetes_writes: 0.0,
        };
        assert!(from.audit <= to.audit, "the audit log was rotated");
        let mut log = fs::File::open(audit_log()).unwrap();
        log.seek(SeekFrom::Start(from.audit)).unwrap();
        for line in BufReader::new(log.take(to.audit - from.audit)).lines() {
            let line = line.unwrap();
            // Most lines are of others, and parsing them all takes seconds.
            if !line.contains(&self.user) {
                continue;
            }
            let Ok(event) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            let object = &event["objectRef"];
            let writes = ["create", "patch", "update", "delete", "deletecollection"];
            let is_write = writes.iter().any(|verb| event["verb"] == *verb);
            if event["user"]["username"] != self.user.as_str() || !is_write || object["resource"] == "leases"
            {
                continue;
            }
            calls.kubernetes_writes += 1.0;
            if object["resource"] == "pods" && object["namespace"] == NAMESPACE {
                calls.pod_writes += 1.0;
            }
        }
        calls
    }

    /// Waits until the operator has written nothing for a while, so that what one step causes is not counted in the
    /// next one.
    pub async fn settle(&self, quiet: Duration) {
        let begun = Instant::now();
        let (mut last, mut since) = (self.mark().await, Instant::now());
        while since.elapsed() < quiet && begun.elapsed() < SETTLED_WITHIN {
            sleep(Duration::from_secs(2)).await;
            let now = self.mark().await;
            let calls = self.calls(last, now);
            if calls.kubernetes_writes > 0.0 || calls.slurm_writes.is_some_and(|writes| writes > 0.0) {
                since = Instant::now();
            }
            last = now;
        }
    }

    /// Begins to watch the memory of the operator.
    pub async fn watch_memory(&self) -> Peak {
        let (operator, pod) = (self.clone(), self.pod().await);
        let highest = Arc::new(Mutex::new(0.0_f64));
        let found = Arc::clone(&highest);
        let task = tokio::spawn(async move {
            let raise = |mib: f64| {
                let mut highest = found.lock();
                *highest = highest.max(mib);
            };
            let here = processes(&pod.uid().unwrap_or_default());
            loop {
                raise(operator.sample(&pod).await.map_or(0.0, |sample| sample.rss));
                // The kubelet's samples are 10 s apart. In the testbed the process is visible on this machine.
                for _ in 0..10 {
                    raise(here.iter().filter_map(|process| rss(process)).sum());
                    sleep(Duration::from_millis(100)).await;
                }
            }
        });
        Peak { task, highest }
    }
}

/// The highest memory of the operator so far.
pub struct Peak {
    task: JoinHandle<()>,
    highest: Arc<Mutex<f64>>,
}

impl Peak {
    /// Ends the watch and returns MiB.
    pub fn end(self) -> f64 {
        self.task.abort();
        *self.highest.lock()
    }
}

/// Returns the processes of a pod that run on this machine, by their control groups.
pub fn processes(uid: &str) -> Vec<PathBuf> {
    let as_slice = uid.replace('-', "_");
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.map(|entry| entry.path())
        .filter(|process| {
            let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
            !uid.is_empty() && (groups.contains(uid) || groups.contains(&as_slice))
        })
        .collect()
}

/// Returns the memory of a process that is not of files, in MiB, as the kubelet counts it.
fn rss(process: &Path) -> Option<f64> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib / 1024.0)
}

fn metric(text: &str, name: &str) -> Option<f64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().parse().ok()
}

fn audit_log() -> String {
    std::env::var("KEELSON_BENCH_AUDIT").unwrap()
}
