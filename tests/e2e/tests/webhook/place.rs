//! A cluster without the operator, in which the chart's webhook objects stand and the test runs the replicas itself:
//! as processes in the control plane's network, with the rights that the chart gives them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::http::Method;
use e2e::{cluster, run, xtask};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use testbed::Cluster;
use testbed::layout::{API_ADDRESS, API_PORT};

use crate::api::{path, send};

/// Namespace of the webhook, and the name that the chart gives everything of it.
pub const HOME: &str = "keelson";
pub const NAME: &str = "slurm-operator-webhook";

pub struct Place {
    pub cluster: Cluster,
    pub client: Client,
    /// Kubeconfig of the webhook's service account, for use in the control plane's network.
    pub kubeconfig: PathBuf,
    /// The program under test.
    pub keelson: PathBuf,
    own: Option<String>,
}

impl Place {
    /// A cluster of the test's own under `cargo xtask test`; by hand, the one that `KEELSON_TEST_CLUSTER` names.
    pub async fn prepare(test: &str) -> Result<Self> {
        let own = std::env::var_os("KEELSON_XTASK").map(|_| format!("{test}-{}", std::process::id()));
        let cluster = match &own {
            Some(name) => {
                run(xtask()?.args(["up", "--no-slurm", "--nodes=1", "--name", name]))?;
                Cluster::open(name)?
            }
            None => cluster()?,
        };
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let client = keelson_runtime::client::connect(Some(&cluster.layout().kubeconfig())).await?;
        let mut place = Self {
            cluster,
            client,
            kubeconfig: PathBuf::new(),
            keelson: build()?,
            own,
        };
        place.install()?;
        place.kubeconfig = place.write_kubeconfig()?;
        Ok(place)
    }

    fn install(&self) -> Result<()> {
        let charts = root().join("charts");
        let crds = charts.join("slurm-operator-crds/templates");
        run(self
            .cluster
            .kubectl()
            .args(["apply", "--server-side", "--force-conflicts", "-f"])
            .arg(crds))?;
        run(self.cluster.kubectl().args([
            "wait",
            "--for=condition=Established",
            "crd",
            "--all",
            "--timeout=60s",
        ]))?;
        let _ = run(self.cluster.kubectl().args(["create", "namespace", HOME]));
        self.forget()?;
        self.apply(&["rbac", "service"])
    }

    /// From here on the API server asks.
    pub fn configure(&self) -> Result<()> {
        self.apply(&["configurations"])
    }

    /// Takes away what an earlier test may have left: its answers would be waited for.
    pub fn forget(&self) -> Result<()> {
        let gone = ["--ignore-not-found"];
        let kinds = "validatingwebhookconfiguration,mutatingwebhookconfiguration";
        run(self.cluster.kubectl().args(["delete", kinds, NAME]).args(gone))?;
        let secret = ["--namespace", HOME, "delete", "secret,endpointslice", "--all"];
        run(self.cluster.kubectl().args(secret)).map(drop)
    }

    /// Applies templates of the chart, as shipped.
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

    fn write_kubeconfig(&self) -> Result<PathBuf> {
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
        let path = self
            .cluster
            .layout()
            .root()
            .join(format!("webhook-{}.json", std::process::id()));
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.kubeconfig);
        let _ = match &self.own {
            Some(name) => xtask()
                .and_then(|mut xtask| run(xtask.args(["down", "--name", name])))
                .map(drop),
            None => self.forget(),
        };
    }
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds the program as it is now; the test runner builds only what tests link.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root())
        .args(["build", "--quiet", "--package", "keelson"])
        .stdin(Stdio::null())
        .status()?;
    ensure!(status.success(), "keelson does not build");
    // The tests lie in `deps` beside the programs.
    let here = std::env::current_exe()?;
    let directory = here
        .parent()
        .and_then(Path::parent)
        .context("no target directory")?;
    Ok(directory.join("keelson"))
}

/// A namespace of the test's own in the place's cluster.
pub async fn namespace(place: &Place, test: &str) -> Result<String> {
    let name = format!("{test}-{}", std::process::id());
    let object = json!({ "metadata": { "name": name } });
    let namespaces: Api<Namespace> = Api::all(place.client.clone());
    namespaces
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    Ok(name)
}

pub async fn remove_namespace(place: &Place, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(place.client.clone());
    namespaces.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until the API server asks the webhook, which it learns with a delay.
pub async fn asked(place: &Place, namespace: &str) -> Result<()> {
    let object = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": "first" },
        "spec": { "controllerRef": { "name": "nobody" } },
    });
    let begun = Instant::now();
    loop {
        let outcome = send(
            &place.client,
            Method::POST,
            &path(namespace, "NodeSet", None),
            Some(&object),
            true,
        )
        .await?;
        if outcome.refusal().is_none() && !outcome.warnings.is_empty() {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(30),
            "the webhook is not asked: {outcome:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
