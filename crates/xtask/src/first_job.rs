//! The first job of the quick start: a typical batch job, run as the quick start user from the login node.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testbed::command;
use testbed::progress::{Progress, Step};

use crate::slurm::{SLURM_NAMESPACE, Target, login};

/// The user of the quick start.
pub const USER: &str = "anna";

/// The number of workers in the quick start.
const WORKERS: usize = 3;

/// How long nodes may take to become available.
const START: Duration = Duration::from_mins(5);

/// How long the job may take on idle nodes, and how long its record may take afterwards.
const RUN: Duration = Duration::from_mins(1);

/// The commands to repeat the job on the login node. `up` prints them, and a test runs the printed commands.
pub const COMMANDS: [&str; 3] = [
    "sbatch --nodes=3 --output=hello-%j.out --wrap='srun hostname'",
    "squeue; ls; cat hello-*.out",
    "sacct",
];

/// Submits a batch job as the quick start user, checks its output on the login node and its record in the database, and returns a
/// summary. The job is skipped if nodes are busy with other jobs, which shows that they work.
pub fn run(target: &Target, progress: &Progress) -> Result<String> {
    let title = format!("first job: sbatch as {USER}, output file, record in sacct");
    progress.step(&title, |step| {
        let submitted = until(START, target, step, || submit(target))?;
        let job = match submitted {
            Submitted::Job(job) => job,
            Submitted::Busy(nodes) => return Ok(format!("skipped: other jobs are running on {nodes}")),
        };
        let nodes = until(RUN, target, step, || output(target, &job))?;
        until(RUN, target, step, || record(target, &job))?;
        Ok(format!(
            "{USER}'s job {job} ran on {nodes}; output in /home/{USER}/first-{job}.out, record in sacct"
        ))
    })
}

enum Submitted {
    /// The job ID.
    Job(String),
    /// The nodes on which other jobs run.
    Busy(String),
}

/// Retries until it succeeds, and shows the reason for the last failure.
fn until<T>(limit: Duration, target: &Target, step: &Step, attempt: impl Fn() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if begun.elapsed() > limit => {
                return Err(error).with_context(|| {
                    format!(
                        "the first job did not complete within {} s; {}",
                        limit.as_secs(),
                        target.where_to_look()
                    )
                });
            }
            Err(error) => step.note(error.to_string().lines().next().unwrap_or_default()),
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn submit(target: &Target) -> Result<Submitted> {
    let nodes = |states: &str| -> Result<BTreeSet<String>> {
        let shown = on_login(target, &["sinfo", "--noheader", "--Node", states, "--format=%N"])?;
        Ok(shown.split_whitespace().map(str::to_owned).collect())
    };
    // sinfo counts drained nodes without jobs as idle; a job would wait for them.
    let drained = nodes("--states=drain,down")?;
    let idle: BTreeSet<String> = nodes("--states=idle")?.difference(&drained).cloned().collect();
    if idle.len() < WORKERS {
        let at_work = nodes("--states=allocated,mixed,completing")?;
        if !at_work.is_empty() && idle.union(&at_work).count() >= WORKERS {
            let at_work: Vec<String> = at_work.into_iter().collect();
            return Ok(Submitted::Busy(at_work.join(", ")));
        }
        bail!("{} nodes are idle, but {WORKERS} are required", idle.len());
    }
    let job = as_user(
        target,
        &format!("sbatch --parsable --nodes={WORKERS} --output=first-%j.out --wrap='srun hostname'"),
    )?;
    Ok(Submitted::Job(job.trim().to_owned()))
}

/// The nodes on which the job ran, from its output file in the user's home directory.
fn output(target: &Target, job: &str) -> Result<String> {
    let answer = as_user(target, &format!("cat first-{job}.out"))?;
    let names: BTreeSet<&str> = answer.split_whitespace().collect();
    ensure!(
        names.len() == WORKERS,
        "unexpected content of first-{job}.out in /home/{USER}: {answer:?}"
    );
    Ok(names.into_iter().collect::<Vec<_>>().join(", "))
}

fn record(target: &Target, job: &str) -> Result<()> {
    let words = "sacct --noheader --allocations --parsable2 --format=user,state";
    let line = as_user(target, &format!("{words} --jobs={job}"))?;
    ensure!(
        line.trim() == format!("{USER}|COMPLETED"),
        "job {job} ran, but sacct reports {:?}",
        line.trim()
    );
    Ok(())
}

/// Runs a script as the user, after a login that creates the home directory.
fn as_user(target: &Target, script: &str) -> Result<String> {
    let script = format!("timeout 60 bash -c {}", quoted(script));
    on_login(target, &["su", "--login", USER, "--command", &script])
}

fn quoted(script: &str) -> String {
    format!("'{}'", script.replace('\'', r"'\''"))
}

fn on_login(target: &Target, words: &[&str]) -> Result<String> {
    let pod = login(target)?;
    command::output(
        target
            .kubectl()
            .args(["-n", SLURM_NAMESPACE, "exec", &pod, "--"])
            .args(words),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_with_quotes_reaches_the_shell_as_it_is() {
        assert_eq!(quoted("echo 'a b'"), r"'echo '\''a b'\'''");
    }
}
