//! The processor time of the programs of the testbed, which all run on this machine: from /proc.

use std::fs;
use std::path::{Path, PathBuf};

use keelson_api::well_known::app;

use crate::cluster::Cluster;
use crate::operator::{Operator, processes};
use crate::report::Seconds;

const CONTROL_PLANE: [&str; 5] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
];
/// Programs that run in pods in the namespace of the workers.
const SLURM: [&str; 2] = [app::SLURMCTLD, app::SLURMRESTD];
const WHOLE: &str = "all programs";
/// Linux counts processor time in ticks of 10 ms for programs, whatever the kernel uses.
const TICKS: f64 = 100.0;

/// The processes of each program.
pub struct Programs(Vec<(&'static str, Vec<PathBuf>)>);

impl Programs {
    /// Finds the processes. Programs that are not on this machine are left out.
    pub async fn find(cluster: &Cluster, operator: &Operator) -> Self {
        let mut all = vec![("benchmark", vec![PathBuf::from("/proc/self")])];
        if let Some(directory) = std::env::var_os("KEELSON_BENCH_CLUSTER") {
            let directory = directory.to_string_lossy().into_owned();
            all.extend(CONTROL_PLANE.map(|name| (name, with_argument(name, &directory))));
        }
        for name in SLURM {
            let selector = format!("app.kubernetes.io/name={name}");
            all.push((name, processes_of(cluster.uids(&selector).await)));
        }
        all.push(("operator", processes_of([operator.uid().await])));
        all.retain(|(_, processes)| !processes.is_empty());
        Self(all)
    }

    /// Returns the processor seconds that each program has used so far. A program that was restarted is left out.
    pub fn seconds(&self) -> Seconds {
        let mut seconds: Seconds = self
            .0
            .iter()
            .filter_map(|(name, processes)| {
                let ticks: Option<Vec<f64>> = processes
                    .iter()
                    .map(|process| of_process(&fs::read_to_string(process.join("stat")).ok()?))
                    .collect();
                Some((*name, ticks?.iter().sum::<f64>() / TICKS))
            })
            .collect();
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        seconds.extend(of_machine(&machine).map(|ticks| (WHOLE, ticks / TICKS)));
        seconds
    }

    /// Returns the processor seconds since a call of `seconds`.
    pub fn since(&self, before: &Seconds) -> Seconds {
        let now = self.seconds().into_iter();
        now.filter_map(|(name, now)| Some((name, now - before.get(name)?)))
            .collect()
    }
}

fn processes_of(pods: impl IntoIterator<Item = String>) -> Vec<PathBuf> {
    pods.into_iter().flat_map(|uid| processes(&uid)).collect()
}

/// Returns the processes of a program that have this directory in an argument.
fn with_argument(name: &str, directory: &str) -> Vec<PathBuf> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.map(|entry| entry.path())
        .filter(|process| {
            let line = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
            let mut words = line.split('\0');
            let program = words.next().map(Path::new).and_then(Path::file_name);
            program.is_some_and(|program| program == name) && words.any(|word| word.contains(directory))
        })
        .collect()
}

/// Reads the user and the system time of a process, without its children.
fn of_process(stat: &str) -> Option<f64> {
    // The name of the program is in parentheses and may contain blanks.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// Reads the time in which the processors were busy.
fn of_machine(stat: &str) -> Option<f64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<f64> = fields
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let [
        user,
        nice,
        system,
        _idle,
        _waiting,
        interrupts,
        soft_interrupts,
        ..,
    ] = fields[..]
    else {
        return None;
    };
    Some(user + nice + system + interrupts + soft_interrupts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_is_read_despite_its_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 7 8 20 0 9 0 100 1000 10";
        assert_eq!(of_process(stat), Some(300.0));
        assert_eq!(of_process("42 (a) S 1"), None);
    }

    #[test]
    fn waiting_is_not_work() {
        let stat = "cpu  10 20 30 4000 500 6 7 0 0 0\ncpu0 1 2 3\n";
        assert_eq!(of_machine(stat), Some(73.0));
        assert_eq!(of_machine(""), None);
    }

    #[test]
    fn this_process_uses_processor_time() {
        let programs = Programs(vec![("benchmark", vec![PathBuf::from("/proc/self")])]);
        let before = programs.seconds();
        assert!(before.contains_key("benchmark") && before.contains_key(WHOLE));
        assert!(programs.since(&before).values().all(|seconds| *seconds >= 0.0));
    }
}
