//! A second release of the webhook on the test cluster, with separate names and called for only one namespace, so that
//! other tests are not affected.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use axum::http::Method;
use e2e::{Namespace, cluster, eventually, get, run};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use keelson_webhook::{Lifetimes, Material};
use kube::Client;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use serde_json::{Value, json};
use testbed::Cluster;
use testbed::layout::Node;

use crate::api::{path, send};
use crate::place::{connect, root};

/// The chart's default name of the Secret with the certificate.
const SECRET: &str = "slurm-operator-webhook-ca";

pub struct Release {
    pub cluster: Cluster,
    pub client: Client,
    /// The namespace in which the webhook runs.
    pub home: Namespace,
    /// The namespace whose objects the webhook validates.
    pub asked: Namespace,
    /// The name of the webhook's Deployment, Service and configurations.
    pub name: String,
    helm_name: String,
}

impl Release {
    /// Installs the webhook without replicas. [`Self::run`] starts them.
    pub async fn install(test: &str) -> Result<Self> {
        let cluster = cluster()?;
        let client = connect(&cluster).await?;
        let helm_name = format!("{test}-{}", std::process::id());
        let release = Self {
            client,
            home: Namespace::create(&format!("{test}-home"))?,
            asked: Namespace::create(&format!("{test}-asked"))?,
            name: format!("{helm_name}-webhook"),
            cluster,
            helm_name,
        };
        run(release
            .cluster
            .helm()
            .args(["install", &release.helm_name])
            .arg(root().join("charts/slurm-operator"))
            .args(["--namespace", &release.home.name])
            .args([
                "--set",
                "operator.enabled=false,webhook.replicas=0,webhook.metricsPort=8080",
            ])
            .args(["--set", &format!("nameOverride={}", release.helm_name)])
            .args(["--set", &format!("webhook.namespaces={}", release.asked.name)]))?;
        Ok(release)
    }

    /// Starts two replicas with additional flags, and waits until the API server calls them.
    pub async fn run(&self, flags: &[&str]) -> Result<()> {
        let mut patch: Vec<Value> = flags
            .iter()
            .map(|flag| json!({ "op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": flag }))
            .collect();
        patch.push(json!({ "op": "replace", "path": "/spec/replicas", "value": 2 }));
        let deployment = format!("deployment/{}", self.name);
        let patch = Value::from(patch).to_string();
        self.home
            .kubectl(&["patch", &deployment, "--type=json", "--patch", &patch])?;
        self.wait_rolled_out()?;
        let object = json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": "first" },
            "spec": { "controllerRef": { "name": "nobody" }, "slurmd": { "image": "slurmd" }, "logfile": { "image": "alpine" } },
        });
        let kinds = path(&self.asked.name, "NodeSet", None);
        let begun = std::time::Instant::now();
        // The API server also calls the cluster's own webhook, so only the metrics of these replicas show that they
        // were called.
        while self.sum("keelson_admission_reviews_total{", |sum, value| sum + value)? == 0.0 {
            send(&self.client, Method::POST, &kinds, Some(&object), true).await?;
            ensure!(begun.elapsed() < e2e::PATIENCE, "the webhook is not asked");
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        Ok(())
    }

    pub fn wait_rolled_out(&self) -> Result<()> {
        let deployment = format!("deployment/{}", self.name);
        self.home
            .kubectl(&["rollout", "status", &deployment, "--timeout=180s"])
            .map(drop)
    }

    /// Replaces every replica by a rolling update.
    pub fn replace(&self) -> Result<()> {
        let deployment = format!("deployment/{}", self.name);
        self.home.kubectl(&["rollout", "restart", &deployment])?;
        self.wait_rolled_out()
    }

    /// Returns the pods by name, without those that are being deleted.
    pub fn pods(&self) -> Result<BTreeMap<String, Value>> {
        let selector = format!("--selector=app.kubernetes.io/instance={}", self.helm_name);
        let list = get(&["--namespace", &self.home.name, "pods", &selector])?;
        let pods = list["items"].as_array().context("no list")?.iter();
        Ok(pods
            .filter(|pod| pod.pointer("/metadata/deletionTimestamp").is_none())
            .map(|pod| {
                (
                    pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                    pod.clone(),
                )
            })
            .collect())
    }

    /// Combines the values of the metrics lines with this prefix, over all replicas.
    pub fn sum(&self, line: &str, fold: fn(f64, f64) -> f64) -> Result<f64> {
        let mut folded: Option<f64> = None;
        for name in self.pods()?.keys() {
            let path = format!(
                "/api/v1/namespaces/{}/pods/{name}:8080/proxy/metrics",
                self.home.name
            );
            for found in e2e::api::raw(&path)?.lines() {
                if let Some(value) = found.strip_prefix(line) {
                    let value: f64 = value.rsplit(' ').next().context("no value")?.parse()?;
                    folded = Some(folded.map_or(value, |so_far| fold(so_far, value)));
                }
            }
        }
        Ok(folded.unwrap_or_default())
    }

    /// Kills the process of one replica with SIGKILL, as the kernel would. Returns the name of the pod.
    pub fn kill_one(&self) -> Result<String> {
        let pods = self.pods()?;
        let (name, pod) = pods.first_key_value().context("no pod")?;
        let container = pod.pointer("/status/containerStatuses/0/containerID");
        let id = container
            .and_then(Value::as_str)
            .and_then(|id| id.strip_prefix("containerd://"))
            .context("no container")?;
        let node = pod.pointer("/spec/nodeName").and_then(Value::as_str);
        let node = node
            .and_then(|name| name.strip_prefix("node-"))
            .context("no node")?;
        run(self.cluster.in_node(Node(node.parse()?))?.args([
            "ctr",
            "--namespace=k8s.io",
            "tasks",
            "kill",
            "--signal=SIGKILL",
            id,
        ]))?;
        Ok(name.clone())
    }

    /// Waits until the kubelet has restarted a pod's container.
    pub fn wait_restarted(&self, pod: &str) -> Result<()> {
        eventually("the killed container is started again", || {
            let pods = self.pods()?;
            let restarts = pods[pod].pointer("/status/containerStatuses/0/restartCount");
            ensure!(restarts.and_then(Value::as_u64) > Some(0), "not yet");
            Ok(())
        })
    }

    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.home.name)
    }

    /// Returns the certificate material in the Secret.
    pub async fn stored(&self) -> Result<Material> {
        let data = self.secrets().get(SECRET).await?.data.unwrap_or_default();
        Ok(Material::from_data(&data)?)
    }

    pub async fn delete_secret(&self) -> Result<()> {
        self.secrets().delete(SECRET, &DeleteParams::default()).await?;
        Ok(())
    }

    pub async fn has_secret(&self) -> Result<bool> {
        Ok(self.secrets().get_opt(SECRET).await?.is_some())
    }

    /// Stores a CA that is four years old and a certificate that is two months old. Both are due for renewal.
    pub async fn store_old_certificate(&self, now: Timestamp) -> Result<()> {
        let (home, name) = (&self.home.name, &self.name);
        let names = [
            format!("{name}.{home}.svc"),
            format!("{name}.{home}"),
            name.clone(),
        ];
        let lifetimes = Lifetimes::default();
        let ago = |days: i64| now.checked_sub(SignedDuration::from_hours(24 * days));
        let old = Material::make(&names, ago(4 * 365)?, &lifetimes)?.issue(&names, ago(61)?, &lifetimes)?;
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(SECRET.to_owned()),
                ..ObjectMeta::default()
            },
            data: Some(old.to_data()),
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        };
        self.secrets().create(&PostParams::default(), &secret).await?;
        Ok(())
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        for pod in self.pods().unwrap_or_default().keys() {
            // The runner shows it only for failed tests.
            eprintln!(
                "--- {pod}\n{}",
                self.home.kubectl(&["logs", pod, "--tail=40"]).unwrap_or_default()
            );
        }
        let uninstall = ["uninstall", &self.helm_name, "--namespace", &self.home.name];
        let _ = run(self.cluster.helm().args(uninstall));
    }
}
