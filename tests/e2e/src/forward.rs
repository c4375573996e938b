//! Forwards a local port to a pod until it is dropped.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result};

use crate::cluster;

/// A running `kubectl port-forward`.
#[derive(Debug)]
pub struct Forward {
    /// The local port, on 127.0.0.1.
    pub port: u16,
    child: Child,
    /// Kept open, because kubectl prints a line for each connection and would be killed by a closed pipe.
    _said: BufReader<ChildStdout>,
}

impl Forward {
    /// Starts forwarding to a port of a pod, or of a pod of a Service or Deployment.
    pub fn open(namespace: &str, target: &str, port: u16) -> Result<Self> {
        let mut child = cluster()?
            .kubectl()
            .args(["--namespace", namespace, "port-forward", target])
            .arg(format!(":{port}"))
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = BufReader::new(child.stdout.take().context("no output")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        let port = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("127.0.0.1:"))
            .and_then(|port| port.parse().ok())
            .with_context(|| format!("no port in {line:?}"))?;
        Ok(Self {
            port,
            child,
            _said: said,
        })
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
