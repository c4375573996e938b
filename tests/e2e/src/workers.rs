//! The workers of a Slurm cluster in Kubernetes and slurmctld, and sampling of their state during an action.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::slurm::{NODESET, Slurm, condition};
use crate::{eventually, kubectl, names};

/// Returns the names of the Kubernetes nodes.
pub fn machines() -> Result<Vec<String>> {
    let nodes = names(&["nodes"])?;
    Ok(nodes
        .iter()
        .filter_map(|node| node.strip_prefix("node/"))
        .map(str::to_owned)
        .collect())
}

/// Labels and taints on Kubernetes nodes for the workers of one test. Dropping it removes them.
#[derive(Debug)]
pub struct Marks {
    /// The key of both the label and the taint.
    pub key: String,
}

impl Marks {
    /// Creates a key for this test. No node has it yet.
    pub fn new(test: &str) -> Self {
        Self {
            key: format!("test.keelson.dev/{test}-{}", std::process::id()),
        }
    }

    /// Labels a node.
    pub fn put(&self, machine: &str) -> Result<()> {
        let mark = format!("{}=yes", self.key);
        kubectl(&["label", "--overwrite", "node", machine, &mark]).map(drop)
    }

    /// Removes the label.
    pub fn take(&self, machine: &str) -> Result<()> {
        kubectl(&["label", "node", machine, &format!("{}-", self.key)]).map(drop)
    }

    /// Taints a node with `NoSchedule`.
    pub fn taint(&self, machine: &str) -> Result<()> {
        let taint = format!("{}=yes:NoSchedule", self.key);
        kubectl(&["taint", "--overwrite", "node", machine, &taint]).map(drop)
    }

    /// Removes the taint.
    pub fn untaint(&self, machine: &str) -> Result<()> {
        kubectl(&["taint", "node", machine, &format!("{}-", self.key)]).map(drop)
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        for machine in machines().unwrap_or_default() {
            let _ = self.take(&machine);
            let _ = self.untaint(&machine);
        }
    }
}

impl Slurm {
    /// Returns the nodes that slurmctld knows.
    pub fn nodes(&self) -> Result<BTreeSet<String>> {
        let shown = self.controller(&["sinfo", "--noheader", "--Node", "--format=%N"])?;
        Ok(shown.split_whitespace().map(str::to_owned).collect())
    }

    /// Returns the name of the pod that runs a Slurm node, in either scaling mode.
    pub fn pod_of(&self, node: &str) -> Result<String> {
        let selector = format!("--selector=nodeset.slinky.slurm.net/pod-hostname={node}");
        let found = names(&["--namespace", &self.space.name, "pods", &selector])?;
        ensure!(found.len() < 2, "{node} has several pods: {found:?}");
        let name = found.first().and_then(|pod| pod.strip_prefix("pod/"));
        name.map(str::to_owned)
            .with_context(|| format!("{node} has no pod"))
    }

    /// Returns how many workers accept jobs according to slurmctld, and the states of all nodes.
    pub fn in_service(&self) -> Result<(usize, String)> {
        let states = self.controller(&["sinfo", "--noheader", "--Node", "--format=%N %T"])?;
        let at_work: BTreeSet<&str> = states
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(_, state)| takes_jobs(state))
            .map(|(name, _)| name)
            .collect();
        Ok((at_work.len(), states.clone()))
    }

    /// Waits until the latest generation of the NodeSet is ready and not progressing, and returns its status.
    pub fn settled(&self) -> Result<Value> {
        eventually("a settled NodeSet", || {
            let set = self.get(&[NODESET])?;
            ensure!(
                set.pointer("/status/observedGeneration") == set.pointer("/metadata/generation"),
                "the status is behind"
            );
            for (kind, wanted) in [("Ready", "True"), ("Progressing", "False")] {
                let found = condition(&set, kind)?;
                ensure!(found["status"] == wanted, "{found}");
            }
            set.get("status").cloned().context("no status")
        })
    }
}

/// Returns whether a node in this `sinfo` state accepts jobs. It also does if it has not answered the last ping (`*`),
/// is cleaning up after a job (`+`) or is planned for a future job (`-`).
fn takes_jobs(state: &str) -> bool {
    let state = state.trim().trim_end_matches(['*', '+', '-']);
    matches!(state, "idle" | "planned" | "allocated" | "mixed" | "completing")
}

/// Runs `work` and calls `look` repeatedly in the meantime. Returns both results, without the samples that failed.
pub fn sampled<S: Send, T>(
    look: impl Fn() -> Result<S> + Sync,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<S>)> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut seen = Vec::new();
            while !over.load(Ordering::Relaxed) {
                seen.extend(look());
                std::thread::sleep(Duration::from_millis(300));
            }
            seen
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        let seen = sampler.join().unwrap_or_default();
        ensure!(done.is_err() || !seen.is_empty(), "every look failed");
        Ok((done?, seen))
    })
}
