//! Runs one replica of the webhook, and creates the `EndpointSlice` that the endpoint controller would create for it.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use testbed::layout::API_ADDRESS;

use crate::place::{HOME, NAME, Place, keelson};

type EndpointSlice = k8s_openapi::api::discovery::v1::EndpointSlice;

const PORT: u16 = 9443;
const HEALTH: u16 = 8081;

/// A webhook process. Dropping it kills the process.
pub struct Replica(Child);

impl Replica {
    /// Starts the webhook, waits until it is ready, and creates its `EndpointSlice`.
    pub async fn start(place: &Place) -> Result<Self> {
        let program = keelson()?;
        ensure!(
            program.is_file(),
            "there is no {}: build it with `cargo build -p keelson`",
            program.display()
        );
        let log = std::fs::File::create(place.cluster.layout().log("webhook"))?;
        let child = place
            .cluster
            .in_control_plane()?
            .arg(program)
            .args([
                "webhook",
                "--zap-encoder=console",
                "--metrics-addr=0",
                "--cert-secret=slurm-operator-webhook-ca",
            ])
            .arg(format!("--server-addr=:{PORT}"))
            .arg("--pods-binding")
            .arg(format!("--health-addr=:{HEALTH}"))
            .arg(format!("--kubeconfig={}", place.kubeconfig.display()))
            .args([&format!("--namespace={HOME}"), &format!("--service-name={NAME}")])
            .arg(format!("--webhook-configuration={NAME}"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start the webhook")?;
        let mut replica = Self(child);
        let begun = Instant::now();
        loop {
            let answer = readiness(place).await?;
            if answer.lines().next().is_some_and(|line| line.contains(" 200 ")) {
                break;
            }
            if let Some(status) = replica.0.try_wait()? {
                bail!("the webhook ended: {status}");
            }
            ensure!(
                begun.elapsed() < e2e::PATIENCE,
                "the webhook is not ready: {answer}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        publish(place).await?;
        Ok(replica)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the response of `/readyz`.
async fn readiness(place: &Place) -> Result<String> {
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{HEALTH} && printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
    );
    let output = tokio::process::Command::from(place.cluster.in_control_plane()?)
        .args(["bash", "-c", &script])
        .stderr(Stdio::null())
        .output()
        .await?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn publish(place: &Place) -> Result<()> {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "replica", "labels": { "kubernetes.io/service-name": NAME } },
        "endpoints": [{ "addresses": [API_ADDRESS.to_string()], "conditions": { "ready": true } }],
        "ports": [{ "name": "https", "port": PORT, "protocol": "TCP" }],
    });
    let slices: Api<EndpointSlice> = Api::namespaced(place.client.clone(), HOME);
    let apply = PatchParams::apply("test").force();
    slices.patch("replica", &apply, &Patch::Apply(slice)).await?;
    Ok(())
}
