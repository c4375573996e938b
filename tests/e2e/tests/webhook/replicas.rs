//! Replicas of the webhook, and what kubelet and endpoint controller do for them: a replica is asked while it is ready.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use testbed::Cluster;
use testbed::layout::API_ADDRESS;
use tokio_util::task::AbortOnDropHandle;

use crate::place::{HOME, NAME, Place};

type EndpointSlice = k8s_openapi::api::discovery::v1::EndpointSlice;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// One running webhook.
pub struct Replica {
    child: Child,
    name: String,
    slices: Api<EndpointSlice>,
    /// Tells the API server of each change of readiness, once there was one.
    probe: Option<AbortOnDropHandle<()>>,
}

impl Replica {
    /// Starts a replica and waits until it is ready and known to be.
    pub async fn start(place: &Place, flags: &[&str]) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (port, health) = (21000 + number, 22000 + number);
        let name = format!("replica-{number}");
        let log = std::fs::File::create(place.cluster.layout().log(&format!("webhook-{name}")))?;
        let child = place
            .cluster
            .in_control_plane()?
            .arg(&place.keelson)
            .args([
                "webhook",
                "--zap-encoder=console",
                "--metrics-addr=0",
                "--cert-secret=slurm-operator-webhook-ca",
            ])
            .arg(format!("--server-addr=:{port}"))
            .arg(format!("--health-addr=:{health}"))
            .arg(format!("--kubeconfig={}", place.kubeconfig.display()))
            .args([&format!("--namespace={HOME}"), &format!("--service-name={NAME}")])
            .arg(format!("--webhook-configuration={NAME}"))
            .args(flags)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start a replica")?;
        let slices: Api<EndpointSlice> = Api::namespaced(place.client.clone(), HOME);
        let probe = Probe {
            cluster: place.cluster.clone(),
            name: name.clone(),
            port,
            health,
            slices: slices.clone(),
        };
        let probe = Arc::new(probe);
        let begun = Instant::now();
        let mut replica = Self {
            child,
            name,
            slices,
            probe: None,
        };
        loop {
            if probe.is_ready().await {
                break;
            }
            if let Some(status) = replica.child.try_wait()? {
                bail!("the replica ended: {status}");
            }
            ensure!(
                begun.elapsed() < Duration::from_mins(1),
                "the replica is not ready: {}",
                probe.answer().await
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        probe.publish(true).await?;
        replica.probe = Some(AbortOnDropHandle::new(tokio::spawn(probe.follow())));
        Ok(replica)
    }

    /// Asks it to go, and waits until it has.
    pub async fn stop(mut self) -> Result<()> {
        self.signal("TERM")?;
        let begun = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(
                begun.elapsed() < Duration::from_mins(1),
                "the replica does not end"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        ensure!(self.child.wait()?.success(), "the replica failed at its end");
        self.withdraw().await
    }

    /// Kills it; as the kubelet would, the endpoint goes as soon as the process is seen to be gone.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.withdraw().await
    }

    async fn withdraw(mut self) -> Result<()> {
        self.probe = None;
        self.slices.delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }

    fn signal(&self, signal: &str) -> Result<()> {
        // nsenter has become the program itself.
        let status = Command::new("kill")
            .args([&format!("-{signal}"), &self.child.id().to_string()])
            .status()?;
        ensure!(status.success(), "cannot signal the replica");
        Ok(())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Probe {
    cluster: Cluster,
    name: String,
    port: u16,
    health: u16,
    slices: Api<EndpointSlice>,
}

impl Probe {
    /// What `/readyz` says.
    async fn answer(&self) -> String {
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{} && printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3",
            self.health
        );
        let Ok(command) = self.cluster.in_control_plane() else {
            return String::new();
        };
        let mut command = tokio::process::Command::from(command);
        let output = command
            .args(["bash", "-c", &script])
            .stderr(Stdio::null())
            .output()
            .await;
        output
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default()
    }

    async fn is_ready(&self) -> bool {
        self.answer()
            .await
            .lines()
            .next()
            .is_some_and(|line| line.contains(" 200 "))
    }

    async fn publish(&self, ready: bool) -> Result<()> {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": self.name, "labels": { "kubernetes.io/service-name": NAME } },
            "endpoints": [{ "addresses": [API_ADDRESS.to_string()], "conditions": { "ready": ready } }],
            "ports": [{ "name": "https", "port": self.port, "protocol": "TCP" }],
        });
        self.slices
            .patch(
                &self.name,
                &PatchParams::apply("test").force(),
                &Patch::Apply(slice),
            )
            .await?;
        Ok(())
    }

    async fn follow(self: Arc<Self>) {
        let mut known = true;
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let ready = self.is_ready().await;
            if ready != known && self.publish(ready).await.is_ok() {
                known = ready;
            }
        }
    }
}
