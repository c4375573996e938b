//! The test cluster's own operator, for tests that need it killed or out of the way.

use anyhow::{Result, ensure};

use crate::{eventually, kubectl};

/// Ends the operator's processes without a word to them; Kubernetes starts others.
pub fn kill() -> Result<()> {
    kubectl(&[
        "--namespace=slurm-operator",
        "delete",
        "pods",
        "--selector=app.kubernetes.io/name=slurm-operator",
        "--grace-period=0",
        "--force",
    ])
    .map(drop)
}

/// The operator stands still while this lives.
#[derive(Debug)]
pub struct Stopped;

impl Stopped {
    /// Stops it and waits until it is gone.
    pub fn stop() -> Result<Self> {
        scale(0)?;
        let stopped = Self;
        eventually("the operator's end", || {
            let pods = kubectl(&[
                "--namespace=slurm-operator",
                "get",
                "pods",
                "--selector=app.kubernetes.io/name=slurm-operator",
                "--output=name",
            ])?;
            ensure!(pods.is_empty(), "{pods}");
            Ok(())
        })?;
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = scale(1);
    }
}

fn scale(replicas: u8) -> Result<()> {
    kubectl(&[
        "--namespace=slurm-operator",
        "scale",
        "deployment/slurm-operator",
        &format!("--replicas={replicas}"),
    ])
    .map(drop)
}
