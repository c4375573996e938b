//! slurmd: told how much of the machine belongs to the pod.

use std::path::Path;
use std::process::Command;

use crate::process::find;
use crate::single;

/// Runs slurmd to its end and returns its exit status.
pub fn run(mut args: Vec<String>) -> std::io::Result<i32> {
    // Before anything reaps children: this waits for one of its own.
    if let Some(machine) = Machine::ask() {
        let pod = Pod::from_environment();
        if let Some(conf) = conf_argument(&mut args) {
            for reserved in reservations(&machine, pod, conf) {
                conf.push(' ');
                conf.push_str(&reserved);
            }
        }
    }
    for directory in ["/var/spool/slurmd", "/run/slurm", "/var/log/slurm"] {
        std::fs::create_dir_all(directory)?;
    }
    args.insert(0, "--systemd".to_owned());
    single::run(Path::new(&find("slurmd")), &args, &[])
}

/// The value of `--conf`.
fn conf_argument(args: &mut [String]) -> Option<&mut String> {
    let at = args.iter().position(|arg| arg == "--conf")? + 1;
    args.get_mut(at)
}

/// What the pod may use; nothing where no limit is set.
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
            cpus: number("POD_CPUS"),
            memory_mib: number("POD_MEMORY"),
        }
    }
}

/// What slurmd finds on the machine.
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

/// What Slurm must leave alone, because it belongs to others on the machine. What the user wrote stands.
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

    #[test]
    fn the_conf_argument_is_found() {
        let mut args: Vec<String> = ["-Z", "--conf", "Features=x"].map(String::from).to_vec();
        assert_eq!(conf_argument(&mut args).unwrap(), "Features=x");
        assert_eq!(conf_argument(&mut ["--conf".to_owned()]), None);
    }
}
