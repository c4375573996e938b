//! A Slurm's workers as Kubernetes and slurmctld see them, and looking at them while something happens.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::slurm::{NODESET, Slurm, condition};
use crate::{eventually, kubectl, names};

/// The cluster's machines.
pub fn machines() -> Result<Vec<String>> {
    let nodes = names(&["nodes"])?;
    Ok(nodes
        .iter()
        .filter_map(|node| node.strip_prefix("node/"))
        .map(str::to_owned)
        .collect())
}

/// Marks machines for one test's workers, and takes the marks away again.
#[derive(Debug)]
pub struct Marks {
    /// The label, and the taint.
    pub key: String,
}

impl Marks {
    /// Marks of this test; no machine has them yet.
    pub fn new(test: &str) -> Self {
        Self {
            key: format!("test.keelson.dev/{test}-{}", std::process::id()),
        }
    }

    /// Labels a machine.
    pub fn put(&self, machine: &str) -> Result<()> {
        let mark = format!("{}=yes", self.key);
        kubectl(&["label", "--overwrite", "node", machine, &mark]).map(drop)
    }

    /// Takes the label away.
    pub fn take(&self, machine: &str) -> Result<()> {
        kubectl(&["label", "node", machine, &format!("{}-", self.key)]).map(drop)
    }

    /// Taints a machine against new pods.
    pub fn taint(&self, machine: &str) -> Result<()> {
        let taint = format!("{}=yes:NoSchedule", self.key);
        kubectl(&["taint", "--overwrite", "node", machine, &taint]).map(drop)
    }

    /// Takes the taint away.
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
    /// The nodes that slurmctld knows.
    pub fn nodes(&self) -> Result<BTreeSet<String>> {
        let shown = self.controller(&["sinfo", "--noheader", "--Node", "--format=%N"])?;
        Ok(shown.split_whitespace().map(str::to_owned).collect())
    }

    /// The name of the pod that serves a node, in either scaling mode.
    pub fn pod_of(&self, node: &str) -> Result<String> {
        let selector = format!("--selector=nodeset.slinky.slurm.net/pod-hostname={node}");
        let found = names(&["--namespace", &self.space.name, "pods", &selector])?;
        ensure!(found.len() < 2, "{node} has several pods: {found:?}");
        let name = found.first().and_then(|pod| pod.strip_prefix("pod/"));
        name.map(str::to_owned)
            .with_context(|| format!("{node} has no pod"))
    }

    /// How many workers take jobs, as slurmctld sees it, and what it says of all of them.
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

    /// Waits until the operator has nothing left to do with the NodeSet as it is now, and returns its status.
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

/// Whether a node in this state takes jobs, as `sinfo` writes states. It does so all the same when it has not answered the last
/// ping (`*`), cleans up behind another job (`+`) or is meant for a job to come (`-`, planned).
fn takes_jobs(state: &str) -> bool {
    let state = state.trim().trim_end_matches(['*', '+', '-']);
    matches!(state, "idle" | "planned" | "allocated" | "mixed" | "completing")
}

/// Does something and looks at something else over and over meanwhile; a look that fails is left out.
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
