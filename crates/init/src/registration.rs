//! Registers a worker again when slurmctld does not know its node.
//!
//! slurmd registers when it starts, and slurmctld never contacts an unknown node: after slurmctld lost its state, or an
//! administrator deleted the node, the worker would stay idle forever. SIGHUP makes slurmd register again. A worker that
//! runs a job waits until the job ends, because slurmctld kills jobs that it does not know.

use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use crate::process::find;

/// The environment variable for the interval between checks in seconds; 0 disables them.
const PERIOD: &str = "REGISTRATION_CHECK_SECONDS";
const DEFAULT_PERIOD: u64 = 120;
/// When a worker is removed, its node is deleted shortly before its pod, and must not register again in between.
const GOING: Duration = Duration::from_secs(20);

/// Starts a thread that checks the registration of this pod's slurmd, which was started with these arguments.
pub fn look_after(args: &[String]) {
    let period = std::env::var(PERIOD).ok().and_then(|text| text.parse().ok());
    let period = Duration::from_secs(period.unwrap_or(DEFAULT_PERIOD));
    if period.is_zero() {
        return;
    }
    let node = node_name(args);
    let unknown = |node: &str| ask(node).is_ok_and(|answer| is_unknown(&answer));
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(period);
            if !unknown(&node) {
                continue;
            }
            std::thread::sleep(GOING);
            if unknown(&node) && !has_jobs() {
                eprintln!(
                    "init: slurmctld does not know node {node} and no job is running here: registering again"
                );
                // To ourselves, like any other request for slurmd to reread its configuration.
                let _ = kill_process(getpid(), Signal::HUP);
            }
        }
    });
}

/// Returns the node's name, as slurmd determines it.
fn node_name(args: &[String]) -> String {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if let Some(name) = arg.strip_prefix("-N") {
            let apart = name.is_empty().then(|| args.next()).flatten();
            return apart.map_or(name, String::as_str).to_owned();
        }
    }
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Returns slurmctld's text about the node. The reaping thread collects the exit status, so only the text is used.
fn ask(node: &str) -> std::io::Result<String> {
    let (output, input) = std::io::pipe()?;
    let mut command = Command::new(find("scontrol"));
    command
        .args(["show", "node", node])
        .stdin(Stdio::null())
        .stdout(input.try_clone()?)
        .stderr(input)
        .spawn()?;
    // The command has the other end of the pipe open, so reading would not end.
    drop(command);
    std::io::read_to_string(output)
}

/// Reports whether slurmctld itself said that the node is unknown. A failed connection does not count.
fn is_unknown(answer: &str) -> bool {
    let mut lines = answer.lines();
    lines.any(|line| line.starts_with("Node ") && line.trim_end().ends_with(" not found"))
}

fn has_jobs() -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return true;
    };
    processes.flatten().any(|process| {
        let read = |name: &str| std::fs::read_to_string(process.path().join(name)).unwrap_or_default();
        read("comm").trim_end() == "slurmstepd" && !keeps_the_cgroup(&read("cmdline"))
    })
}

/// Recognizes `slurmstepd infinity`, which keeps the cgroup of all jobs and runs without any job.
fn keeps_the_cgroup(command_line: &str) -> bool {
    command_line.split('\0').any(|word| word == "infinity")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::unknown("Node cpu-0 not found\n", true)]
    #[case::known(
        "NodeName=cpu-0 CoresPerSocket=1\n   State=IDLE Comment=Node x not found\n",
        false
    )]
    #[case::down(
        "slurm_load_node error: Unable to contact slurm controller (connect failure)\n",
        false
    )]
    #[case::nothing("", false)]
    fn only_slurmctld_can_say_that_it_does_not_know_us(#[case] answer: &str, #[case] unknown: bool) {
        assert_eq!(is_unknown(answer), unknown);
    }

    #[rstest]
    #[case::apart(&["-Z", "-N", "here"], "here")]
    #[case::together(&["-Nhere", "-Z"], "here")]
    fn a_name_that_slurmd_was_given_is_its_name(#[case] args: &[&str], #[case] name: &str) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        assert_eq!(node_name(&args), name);
    }

    #[test]
    fn else_it_is_the_hosts() {
        let name = node_name(&["-Z".to_owned()]);
        assert!(!name.is_empty() && !name.contains('.'));
    }

    #[rstest]
    #[case("/usr/sbin/slurmstepd\0infinity\0", true)]
    #[case("slurmstepd: [12.batch]\0", false)]
    fn what_holds_the_cgroup_is_no_job(#[case] command_line: &str, #[case] keeps: bool) {
        assert_eq!(keeps_the_cgroup(command_line), keeps);
    }
}
