//! Runs slurmd with the CPU and memory limits of the pod.

use std::path::Path;
use std::process::Command;

use slurm_conf::container::{dir, env};

use crate::process::{Manager, find};
use crate::{MOUNTED, RUN, live_files, munge, plain_daemon, registration, sshd, sssd};

/// Runs slurmd to its end and returns its exit status.
pub fn run(args: Vec<String>) -> std::io::Result<i32> {
    // Must come first, because earlier signals would be lost.
    let mut manager = Manager::new(Some(Path::new(RUN)))?;
    live_files::link();
    munge::add(&mut manager, Path::new(MOUNTED))?;
    let machine = Machine::ask();
    let mut args = with_reservations(args, machine.as_ref(), Pod::from_environment());
    // `--systemd` below sets how it runs.
    args.retain(|arg| arg != "-D");
    for directory in [dir::SLURMD_SPOOL, dir::SACKD_RUN, dir::LOG] {
        std::fs::create_dir_all(directory)?;
    }
    // slurmd exits if it does not own its run directory. The packages give it to SlurmUser, for Slurm's other daemons.
    std::os::unix::fs::chown(dir::SACKD_RUN, Some(0), Some(0))?;
    args.insert(0, "--systemd".to_owned());
    if let Some(sssd) = sssd::service()? {
        manager.add_beside(sssd);
    }
    if Path::new(sshd::CONFIG).exists() {
        manager.add_beside(sshd::service()?);
    }
    registration::look_after(&args);
    plain_daemon::run(manager, &find("slurmd"), &args, &[])
}

/// Returns the arguments with the reservations added to `--conf`.
fn with_reservations(args: Vec<String>, machine: Option<&Machine>, pod: Pod) -> Vec<String> {
    let mut conf = String::new();
    let mut others = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.strip_prefix("--conf") {
            Some("") => conf = args.next().unwrap_or_default(),
            Some(value) if value.starts_with('=') => value.trim_start_matches('=').clone_into(&mut conf),
            _ => others.push(arg),
        }
    }
    // slurmd would use the word after an empty `Topology=` as its value.
    let mut words: Vec<String> = conf
        .split_whitespace()
        .filter(|word| !word.ends_with('='))
        .map(str::to_owned)
        .collect();
    if let Some(machine) = machine {
        words.extend(reservations(machine, pod, &conf));
    }
    if !words.is_empty() {
        others.extend(["--conf".to_owned(), words.join(" ")]);
    }
    others
}

/// The limits of the pod; `None` where no limit is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pod {
    cpus: Option<u64>,
    memory_mib: Option<u64>,
}

impl Pod {
    fn from_environment() -> Self {
        let number = |name: &str| {
            std::env::var(name)
                .ok()?
                .parse()
                .ok()
                .filter(|&number| number > 0)
        };
        Self {
            cpus: number(env::POD_CPUS),
            memory_mib: number(env::POD_MEMORY),
        }
    }
}

/// The machine as slurmd detects it.
#[derive(Debug, PartialEq, Eq)]
struct Machine {
    cores: u64,
    threads_per_core: u64,
    memory_mib: u64,
}

impl Machine {
    fn ask() -> Option<Self> {
        let output = Command::new(find("slurmd")).arg("-C").output().ok()?;
        Self::parse(&String::from_utf8_lossy(&output.stdout))
    }

    fn parse(text: &str) -> Option<Self> {
        let number = |name: &str| -> Option<u64> {
            text.split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        let threads_per_core = number("ThreadsPerCore")?.max(1);
        Some(Self {
            cores: number("Boards").unwrap_or(1) * number("SocketsPerBoard")? * number("CoresPerSocket")?,
            threads_per_core,
            memory_mib: number("RealMemory")?,
        })
    }
}

/// Returns the parameters that keep Slurm from using more of the machine than the pod may. Parameters that the user set
/// take precedence.
fn reservations(machine: &Machine, pod: Pod, conf: &str) -> Vec<String> {
    let written = |name: &str| {
        conf.split_whitespace().any(|word| {
            word.split_once('=')
                .is_some_and(|(key, _)| key.eq_ignore_ascii_case(name))
        })
    };
    let mut reserved = Vec::new();
    if let Some(cpus) = pod.cpus
        && !written("CoreSpecCount")
        && !written("CpuSpecList")
    {
        let usable = cpus.div_ceil(machine.threads_per_core).max(1);
        if usable < machine.cores {
            reserved.push(format!("CoreSpecCount={}", machine.cores - usable));
        }
    }
    if let Some(memory) = pod.memory_mib
        && !written("MemSpecLimit")
        && !written("RealMemory")
        && memory < machine.memory_mib
    {
        reserved.push(format!("MemSpecLimit={}", machine.memory_mib - memory));
    }
    reserved
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const MACHINE: &str = "NodeName=w CPUs=16 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=64000\nUpTime=0-00:10:00\n";

    #[test]
    fn reads_what_slurmd_prints() {
        assert_eq!(
            Machine::parse(MACHINE),
            Some(Machine {
                cores: 8,
                threads_per_core: 2,
                memory_mib: 64000
            })
        );
        assert_eq!(Machine::parse("nonsense"), None);
    }

    #[rstest]
    #[case::no_limits(None, None, "", &[])]
    #[case::half(Some(8), Some(32000), "", &["CoreSpecCount=4", "MemSpecLimit=32000"])]
    #[case::an_odd_thread_keeps_its_core(Some(3), None, "", &["CoreSpecCount=6"])]
    #[case::all_of_it(Some(16), Some(64000), "", &[])]
    #[case::more_than_there_is(Some(99), Some(99_000), "", &[])]
    #[case::the_user_knows_better(Some(8), Some(32000), "Features=x corespeccount=1 MemSpecLimit=5", &[])]
    fn reserves_what_is_not_the_pods(
        #[case] cpus: Option<u64>,
        #[case] memory_mib: Option<u64>,
        #[case] conf: &str,
        #[case] expected: &[&str],
    ) {
        let machine = Machine::parse(MACHINE).unwrap();
        assert_eq!(reservations(&machine, Pod { cpus, memory_mib }, conf), expected);
    }

    #[rstest]
    #[case::beside_the_users(&["-Z", "--conf", "Features=x"], &["-Z", "--conf", "Features=x CoreSpecCount=4"])]
    #[case::with_an_equals_sign(&["--conf=Features=x", "-v"], &["-v", "--conf", "Features=x CoreSpecCount=4"])]
    #[case::without_any(&["-Z"], &["-Z", "--conf", "CoreSpecCount=4"])]
    #[case::an_empty_value_would_swallow_the_next(&["--conf", "Features=x Topology= Weight=2"], &["--conf", "Features=x Weight=2 CoreSpecCount=4"])]
    #[case::conf_server_is_another(&["--conf-server", "a"], &["--conf-server", "a", "--conf", "CoreSpecCount=4"])]
    fn adds_to_the_conf_argument(#[case] args: &[&str], #[case] expected: &[&str]) {
        let machine = Machine::parse(MACHINE).unwrap();
        let args = args.iter().map(ToString::to_string).collect();
        assert_eq!(
            with_reservations(
                args,
                Some(&machine),
                Pod {
                    cpus: Some(8),
                    memory_mib: None
                }
            ),
            expected
        );
    }
}
