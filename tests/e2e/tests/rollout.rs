//! Tests updates of workers under load: no job fails, and no more workers are unavailable than `maxUnavailable` allows.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing entry fails the test, as it should"
)]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::slurm::{NODESET, Slurm, condition};
use e2e::{eventually, operator, workers::sampled};
use serde_json::{Value, json};

const WORKERS: usize = 6;
const MAY_BE_OUT: usize = 2;

fn values(mark: &str) -> String {
    json!({ "nodesets": { "cpu": {
        "replicas": WORKERS,
        "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": MAY_BE_OUT } },
        "slurmd": { "env": [{ "name": "TEST_REVISION", "value": mark }] },
    } } })
    .to_string()
}

/// Fails unless every worker has this mark.
fn updated(slurm: &Slurm, mark: &str) -> Result<()> {
    let pods = slurm.get(&["pods", "--selector=app.kubernetes.io/name=slurmd"])?;
    let items = pods["items"].as_array().cloned().unwrap_or_default();
    ensure!(items.len() == WORKERS, "{} pods", items.len());
    for pod in &items {
        let text = pod["spec"]["containers"].to_string();
        ensure!(
            text.contains(mark),
            "{} is of another revision",
            pod["metadata"]["name"]
        );
    }
    Ok(())
}

/// Updates all workers while jobs run, and calls `disturb` in the meantime.
fn roll(slurm: &Slurm, mark: &str, mut disturb: impl FnMut() -> Result<()>) -> Result<()> {
    let jobs = slurm.sbatch(&["--array=1-60", "--ntasks=1", "--no-requeue"], "sleep 3")?;
    slurm.upgrade(&values(mark))?;
    let begun = Instant::now();
    let ((), seen) = sampled(
        || slurm.in_service(),
        || {
            eventually("all workers of the new revision", || {
                disturb()?;
                updated(slurm, mark)
            })
        },
    )?;
    let (least, states) = seen.into_iter().min().unwrap_or_default();
    eprintln!(
        "{WORKERS} workers were updated in {} s under jobs of 3 s",
        begun.elapsed().as_secs()
    );
    ensure!(
        least + MAY_BE_OUT >= WORKERS,
        "only {least} of {WORKERS} were in service:\n{states}"
    );
    slurm.wait_idle(WORKERS)?;
    let states = eventually("the end of the jobs", || {
        let left = slurm.controller(&["squeue", "--noheader", "--jobs", &jobs])?;
        ensure!(left.trim().is_empty(), "{left}");
        slurm.controller(&[
            "squeue",
            "--noheader",
            "--states=all",
            "--array",
            "--jobs",
            &jobs,
            "--format=%T",
        ])
    })?;
    let states: Vec<&str> = states.split_whitespace().collect();
    ensure!(
        states.len() == 60 && states.iter().all(|state| *state == "COMPLETED"),
        "{states:?}"
    );
    Ok(())
}

#[test]
fn an_update_under_a_stream_of_jobs_fails_none_of_them_even_when_the_operator_is_killed() -> Result<()> {
    let slurm = Slurm::install_ready("rollout", &values("first"), WORKERS)?;
    roll(&slurm, "second", || Ok(()))?;

    let mut kills = 0;
    let mut last = Instant::now();
    roll(&slurm, "third", || {
        // At times that are unrelated to the operator's progress, all before the update can be complete.
        if kills < 3 && last.elapsed() > Duration::from_millis(1500 + 900 * kills) {
            kills += 1;
            last = Instant::now();
            operator::kill()?;
        }
        Ok(())
    })?;
    ensure!(kills == 3, "the update was over after {kills} kills");
    Ok(())
}

#[test]
fn twenty_updates_with_the_operator_killed_in_each_fail_no_job_soak() -> Result<()> {
    let slurm = Slurm::install_ready("rollouts", &values("mark-0"), WORKERS)?;
    for run in 1..=20 {
        let begun = Instant::now();
        let mut killed = false;
        roll(&slurm, &format!("mark-{run}-"), || {
            if !killed && begun.elapsed() > Duration::from_millis(700 * run) {
                killed = true;
                operator::kill()?;
            }
            Ok(())
        })
        .with_context(|| format!("run {run}"))?;
        ensure!(killed, "run {run} was over before the operator was killed");
    }
    Ok(())
}

#[test]
fn a_bad_image_stops_at_the_budget_and_a_roll_back_heals() -> Result<()> {
    let values = |tag: Option<&str>| {
        let mut values = json!({ "nodesets": { "cpu": {
            "replicas": 3,
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } },
        } } });
        if let Some(tag) = tag {
            values["nodesets"]["cpu"]["slurmd"] = json!({ "image": { "tag": tag } });
        }
        values.to_string()
    };
    let slurm = Slurm::install_ready("bad-image", &values(None), 3)?;
    let before = slurm.workers()?;
    slurm.upgrade(&values(Some("no-such-thing")))?;
    let waiting = |slurm: &Slurm| -> Result<usize> {
        let pods = slurm.get(&["pods", "--selector=app.kubernetes.io/name=slurmd"])?;
        let broken = |pod: &&Value| pod["status"].to_string().contains("no-such-thing");
        Ok(pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(broken)
            .count())
    };
    eventually("a worker that cannot start", || {
        ensure!(waiting(&slurm)? == 1);
        Ok(())
    })?;
    slurm.wait_told(
        NODESET,
        ["Progressing", "True", "RollingOut"],
        &["1 of 3 workers updated"],
    )?;
    for _ in 0..8 {
        ensure!(waiting(&slurm)? == 1, "more than one worker was given away");
        let set = slurm.get(&[NODESET])?;
        let ready = condition(&set, "Ready")?;
        ensure!(
            ready["status"] == "True",
            "within the budget, and it says {ready}"
        );
        std::thread::sleep(Duration::from_secs(1));
    }
    let job = slurm.sbatch(&["--nodes=2"], "srun hostname")?;
    slurm.wait_job(&job, "COMPLETED")?;
    slurm.upgrade(&values(None))?;
    slurm.wait_idle(3)?;
    let after = slurm.workers()?;
    let kept = before
        .iter()
        .filter(|(name, uid)| after.get(*name) == Some(uid))
        .count();
    ensure!(kept == 2, "{before:?} became {after:?}");
    slurm.wait_condition(NODESET, "Ready", "True", "").map(drop)
}
