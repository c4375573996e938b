//! A control plane for one test, without real nodes and without an operator: objects can be stored unchecked, and no
//! controller acts on them. It contains the chart's webhook objects. The test runs the webhook as a process in the
//! control plane's network, with the permissions that the chart grants.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::http::Method;
use e2e::{run, xtask};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;
use testbed::Cluster;
use testbed::layout::{API_ADDRESS, API_PORT};

use crate::api::{path, send};

/// The namespace of the webhook.
pub const HOME: &str = "keelson";
/// The name of all the webhook's objects in the chart.
pub const NAME: &str = "slurm-operator-webhook";

pub struct Place {
    pub cluster: Cluster,
    pub client: Client,
    /// A kubeconfig for the webhook's service account, for use in the control plane's network.
    pub kubeconfig: PathBuf,
    name: String,
}

impl Place {
    /// Starts a control plane with this many simulated nodes, and installs the CRDs and the webhook's RBAC objects and
    /// Service.
    pub async fn prepare(test: &str, simulated: u32) -> Result<Self> {
        let name = format!("{test}-{}", std::process::id());
        run(xtask()?
            .args(["up", "--no-slurm", "--nodes=0", "--name", &name])
            .arg(format!("--kwok={simulated}")))?;
        let cluster = Cluster::open(&name)?;
        let kubeconfig = cluster.layout().root().join("webhook.json");
        let client = connect(&cluster).await?;
        let place = Self {
            cluster,
            client,
            kubeconfig,
            name,
        };
        place.install()?;
        place.write_kubeconfig()?;
        Ok(place)
    }

    fn install(&self) -> Result<()> {
        let crds = root().join("charts/slurm-operator-crds/templates");
        run(self
            .cluster
            .kubectl()
            .args(["apply", "--server-side", "-f"])
            .arg(crds))?;
        run(self.cluster.kubectl().args([
            "wait",
            "--for=condition=Established",
            "crd",
            "--all",
            "--timeout=60s",
        ]))?;
        run(self.cluster.kubectl().args(["create", "namespace", HOME]))?;
        self.apply(&["rbac", "service"])
    }

    /// Creates the webhook configurations. From then on, the API server calls the webhook.
    pub fn configure(&self) -> Result<()> {
        self.apply(&["configurations"])
    }

    /// Renders and applies templates of the chart.
    fn apply(&self, templates: &[&str]) -> Result<()> {
        let mut render = self.cluster.helm();
        render
            .args(["template", "slurm-operator"])
            .arg(root().join("charts/slurm-operator"));
        render.args(["--namespace", HOME, "--set", "webhook.podsBinding=true"]);
        for template in templates {
            render.args(["--show-only", &format!("templates/webhook/{template}.yaml")]);
        }
        self.cluster.apply(&run(&mut render)?)
    }

    fn write_kubeconfig(&self) -> Result<()> {
        let create = ["--namespace", HOME, "create", "token", NAME, "--duration=1h"];
        let token = run(self.cluster.kubectl().args(create))?;
        let pki = self.cluster.layout().pki();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": {
                "server": format!("https://{API_ADDRESS}:{API_PORT}"), "certificate-authority": pki.join("ca.crt") } }],
            "users": [{ "name": "u", "user": { "token": token.trim() } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        Ok(std::fs::write(&self.kubeconfig, config.to_string())?)
    }

    /// Creates a namespace.
    pub async fn namespace(&self, name: &str) -> Result<String> {
        let object = json!({ "metadata": { "name": name } });
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?;
        Ok(name.to_owned())
    }

    /// Waits until the API server calls the webhook. It loads the configuration with a delay.
    pub async fn asked(&self, namespace: &str) -> Result<()> {
        let object = json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": "first" },
            "spec": { "controllerRef": { "name": "nobody" }, "slurmd": { "image": "slurmd" }, "logfile": { "image": "alpine" } },
        });
        let begun = Instant::now();
        let kinds = path(namespace, "NodeSet", None);
        loop {
            let outcome = send(&self.client, Method::POST, &kinds, Some(&object), true).await?;
            if outcome.refusal().is_none() && !outcome.warnings.is_empty() {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < e2e::PATIENCE,
                "the webhook is not asked: {outcome:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = xtask().and_then(|mut xtask| run(xtask.args(["down", "--name", &self.name])));
    }
}

/// Returns a client with administrator permissions.
pub async fn connect(cluster: &Cluster) -> Result<Client> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let kubeconfig = cluster.layout().kubeconfig();
    Ok(keelson_runtime::client::connect(Some(&kubeconfig)).await?)
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the path of the program under test: that of the images, or that of the local build.
pub fn keelson() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("KEELSON_TEST_PROGRAM") {
        return Ok(program.into());
    }
    // Test binaries are in `deps`, below the directory of the programs.
    let here = std::env::current_exe()?;
    let directory = here.parent().and_then(Path::parent);
    Ok(directory.context("no target directory")?.join("keelson"))
}
