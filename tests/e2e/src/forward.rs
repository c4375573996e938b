//! A port of a pod on the loopback address, as long as somebody needs it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result};

use crate::cluster;

/// One `kubectl port-forward`.
#[derive(Debug)]
pub struct Forward {
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    child: Child,
    /// Kept open to the end: kubectl prints a line for each connection and would die of a closed pipe.
    _said: BufReader<ChildStdout>,
}

impl Forward {
    /// Forwards to a port of a pod, or of a pod behind something.
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
