//! `up --example slurm-cluster`: a Slurm cluster from one object, and a first job on it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testbed::command;
use testbed::progress::{Progress, Step};

use crate::slurm::{self, SLURM_NAMESPACE, Target};
use crate::workspace;

/// The manifest in `examples/`.
const EXAMPLE: &str = "slurm-cluster.yaml";
const CLUSTER: &str = "slurmclusters.keelson.dev/slurm";
/// How long the first start may take: the database is created first.
const START: Duration = Duration::from_mins(5);

/// Installs the operator and the example, runs a job, and returns a summary.
pub fn run(target: &Target, progress: &Progress) -> Result<String> {
    slurm::install_operator(target, progress)?;
    progress.step(&format!("one SlurmCluster: examples/{EXAMPLE}"), |step| {
        slurm::ensure_namespace(target)?;
        let example = workspace::root()?.join("examples").join(EXAMPLE);
        let mut apply = target.kubectl();
        apply.args([
            "--namespace",
            SLURM_NAMESPACE,
            "apply",
            "--server-side",
            "--filename",
        ]);
        command::output(apply.arg(example))?;
        wait(target, step)
    })?;
    progress.step("first job: srun on two nodes, record in sacct", |step| {
        let hosts = until(target, step, || {
            on_login(target, &["srun", "--nodes=2", "hostname"])
        })?;
        until(target, step, || {
            let records = on_login(
                target,
                &["sacct", "--noheader", "--allocations", "--format=state"],
            )?;
            ensure!(records.contains("COMPLETED"), "sacct has no completed job yet");
            Ok(())
        })?;
        let mut hosts: Vec<&str> = hosts.split_whitespace().collect();
        hosts.sort_unstable();
        Ok(format!("srun ran on {}; record in sacct", hosts.join(", ")))
    })
}

fn wait(target: &Target, step: &Step) -> Result<()> {
    until(target, step, || {
        let shown = command::output(target.kubectl().args([
            "--namespace",
            SLURM_NAMESPACE,
            "get",
            CLUSTER,
            "--output=json",
        ]))?;
        let cluster: Value = serde_json::from_str(&shown)?;
        let conditions = cluster.pointer("/status/conditions").and_then(Value::as_array);
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.get("type").is_some_and(|kind| kind == "Ready"))
            .context("the operator has not looked at it yet")?;
        let text = |field: &str| ready.get(field).and_then(Value::as_str).unwrap_or_default();
        ensure!(text("status") == "True", "{}", text("message"));
        Ok(())
    })
}

fn until<T>(target: &Target, step: &Step, attempt: impl Fn() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if begun.elapsed() > START => {
                let minutes = START.as_secs() / 60;
                return Err(error)
                    .with_context(|| format!("not within {minutes} minutes; {}", target.where_to_look()));
            }
            Err(error) => step.note(error.to_string().lines().next().unwrap_or_default()),
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn on_login(target: &Target, words: &[&str]) -> Result<String> {
    let pod = slurm::login(target)?;
    let mut exec = target.kubectl();
    exec.args([
        "--namespace",
        SLURM_NAMESPACE,
        "exec",
        &pod,
        "--",
        "timeout",
        "60",
    ]);
    command::output(exec.args(words))
}
