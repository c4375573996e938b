//! The steps of the benchmark for one number of workers.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::process::{Child, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{sleep, timeout_at};

use crate::cluster::{self, CONTROLLER, Cluster, FLOOR, NODESET, WORKERS, scale, slurm, try_slurm};
use crate::operator::{Calls, Mark, Operator};
use crate::programs::Programs;
use crate::report::{Measure, Size, Work};

/// Number of single changes whose latency is measured, of nodes that nothing waits for and of nodes that something does.
const CHANGES: usize = 60;
/// How long the last of these changes may take to show.
const LAST_CHANGE: Duration = Duration::from_mins(1);
/// How long Slurm may take to show what the operator did, and the operator to show what Slurm did.
const LIMIT: Duration = Duration::from_mins(5);
/// How long to watch an operator that does not resume EXTERNAL nodes, because their slurmd never registers.
const NO_RETURN: Duration = Duration::from_secs(5);
/// Work right after the end of a step counts as part of it.
const AFTERWARDS: Duration = Duration::from_secs(5);
const QUIET: Duration = Duration::from_secs(10);
/// Longer than the operator delays conditions that are not urgent.
const AT_REST: Duration = Duration::from_secs(35);
/// Slurm nodes whose state contains `drain`, each once although it may be in several partitions.
const DRAINED: &str = "sinfo --noheader --Node --format='%N %T' | grep drain | sort --unique";
const RECORDS: &str = "scontrol --oneliner show nodes | sed --quiet 's/^NodeName=\\(cpu-[0-9]*\\) .*/\\1/p'";

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Full,
    /// Counts of calls only, which do not depend on the machine.
    Counts,
}

pub struct Bench {
    cluster: Cluster,
    operator: Operator,
    form: Form,
    /// The simulated machines.
    machines: Vec<Node>,
    /// A worker pod as the operator creates it.
    template: Pod,
    programs: Programs,
}

impl Bench {
    pub async fn prepare(cluster: Cluster, operator: Operator, form: Form) -> Self {
        delete_records(0);
        create_records(1);
        scale(1);
        cluster.wait_ready(WORKERS, 1).await;
        let template = cluster.worker().await;
        scale(0);
        cluster.wait_gone(WORKERS).await;
        delete_records(0);
        let programs = Programs::find(&cluster, &operator).await;
        let machines = cluster.simulated().await;
        Self {
            cluster,
            operator,
            form,
            machines,
            template,
            programs,
        }
    }

    /// Runs all steps. If one fails, the figures of those before are there.
    pub async fn measure(&self, row: &mut Size) {
        create_records(row.workers);
        if self.form == Form::Full {
            self.floors(row).await;
        }
        self.operator.settle(QUIET).await;
        let memory = self.operator.watch_memory().await;
        self.scale_out(row).await;
        own_records(0, row.workers);
        self.rest(row).await;
        if self.form == Form::Full {
            self.latency(row).await;
            self.awaited(row).await;
        }
        self.cordon(row).await;
        self.uncordon(row).await;
        self.scale_in(row).await;
        row.set(Measure::PeakMemory, memory.end());
        delete_records(0);
    }

    /// Creates and deletes the same pods without the operator. With the workers' labels, Kubernetes counts them in the
    /// workers' Service and disruption budget, as it must for workers.
    async fn floors(&self, row: &mut Size) {
        let (none, workers) = (BTreeMap::new(), self.template.labels().clone());
        for (mut labels, ready, gone) in [
            (none, Measure::BareFloor, Measure::BareDeletion),
            (workers, Measure::Floor, Measure::Deletion),
        ] {
            step(row, "pods of a plain client");
            labels.insert("bench".to_owned(), "floor".to_owned());
            let (before, begun) = (self.programs.seconds(), Instant::now());
            self.cluster
                .create_pods(&self.template, &labels, row.workers)
                .await;
            self.cluster.wait_ready(FLOOR, row.workers).await;
            row.set(ready, begun.elapsed().as_secs_f64());
            // That of the pods with labels is kept.
            row.programs.insert(Work::Floor, self.programs.since(&before));
            // The controllers of Kubernetes still work on the last pods.
            sleep(AFTERWARDS).await;
            let begun = Instant::now();
            self.cluster.delete_pods(row.workers).await;
            self.cluster.wait_gone(FLOOR).await;
            row.set(gone, begun.elapsed().as_secs_f64());
            sleep(AFTERWARDS).await;
        }
    }

    async fn scale_out(&self, row: &mut Size) {
        step(row, "scale-out");
        let before = self.operator.fresh_sample().await;
        let from = self.operator.mark().await;
        let (used, begun) = (self.programs.seconds(), Instant::now());
        scale(row.workers);
        self.cluster.wait_ready(WORKERS, row.workers).await;
        let ready = begun.elapsed().as_secs_f64();
        row.programs.insert(Work::ScaleOut, self.programs.since(&used));
        let calls = self.calls_since(from).await;
        let after = self.operator.fresh_sample().await;
        row.set(Measure::Ready, ready);
        if let Some(floor) = row.get(Measure::Floor) {
            row.set(Measure::ReadyRatio, ready / floor);
        }
        row.set(Measure::PodWrites, calls.pod_writes / row.workers as f64);
        row.maybe(Measure::SlurmReads, calls.slurm_reads);
        row.maybe(Measure::SlurmWrites, calls.slurm_writes);
        row.set(Measure::Cpu, after.cpu - before.cpu);
    }

    /// Measures what the operator does when nothing happens.
    async fn rest(&self, row: &mut Size) {
        step(row, "rest");
        self.operator.settle(AT_REST).await;
        let seconds = match self.form {
            Form::Full => 60,
            Form::Counts => 20,
        };
        let before = self.operator.fresh_sample().await;
        let from = self.operator.mark().await;
        sleep(Duration::from_secs(seconds)).await;
        let calls = self.operator.calls(from, self.operator.mark().await);
        let after = self.operator.fresh_sample().await;
        let between = after.at.duration_since(before.at).as_secs_f64();
        row.set(Measure::RestCpu, (after.cpu - before.cpu) * 60.0 / between);
        row.set(Measure::RestMemory, after.rss);
        row.set(Measure::RestWrites, calls.kubernetes_writes);
        row.maybe(Measure::RestSlurmWrites, calls.slurm_writes);
    }

    /// Measures how long the drain of one Slurm node takes to show in the condition of its pod. Nothing waits for it, so it
    /// shows with the next list of all nodes.
    async fn latency(&self, row: &mut Size) {
        step(row, "single changes");
        let changes = CHANGES.min(row.workers);
        let nodes: Vec<usize> = (0..changes)
            .map(|change| change * row.workers / changes)
            .collect();
        let drain =
            |node: usize| format!("scontrol update nodename=cpu-{node} state=drain reason=bench-{node} &\n");
        let took = self.changes(&nodes, "Drain", drain).await;
        let measures = [Measure::LatencyMedian, Measure::Latency99, Measure::LatencyMax];
        set_percentiles(row, measures, &took, changes);
        undrain_all();
    }

    /// Measures how long the registration of a worker takes to show in the conditions of its pod. The operator waits for the
    /// registration of a new worker, so it reads these nodes one by one.
    async fn awaited(&self, row: &mut Size) {
        step(row, "registrations that the operator waits for");
        self.operator.settle(QUIET).await;
        let all = row.workers + CHANGES;
        // Their Slurm nodes do not exist yet.
        scale(all);
        self.cluster.wait_ready(WORKERS, all).await;
        let nodes: Vec<usize> = (row.workers..all).collect();
        let register = |node: usize| format!("scontrol create nodename=cpu-{node} CPUs=1 State=EXTERNAL &\n");
        let took = self.changes(&nodes, "", register).await;
        let measures = [Measure::AwaitedMedian, Measure::Awaited99, Measure::AwaitedMax];
        set_percentiles(row, measures, &took, CHANGES);
        own_records(row.workers, all);
        scale(row.workers);
        if !self.cluster.wait_fewer(row.workers, LIMIT).await {
            eprintln!("the additional workers are not gone after {LIMIT:?}");
        }
        delete_records(row.workers);
    }

    /// Runs a command in slurmctld's container for each node, at intervals that do not keep step with a period of the operator,
    /// and returns the seconds until the pod of each has a condition for this state; any if it is empty. The changes do not wait
    /// for each other: after a change that was just seen, the next one would always begin at the same time of the
    /// operator's period.
    async fn changes(
        &self,
        nodes: &[usize],
        state: &'static str,
        command: impl Fn(usize) -> String,
    ) -> Vec<f64> {
        let (send, mut shown) = unbounded_channel();
        let watch = tokio::spawn(self.cluster.clone().watch_states(state, send));
        let mut shell = shell_in_slurmctld();
        // The watch begins with a list of all pods.
        sleep(AFTERWARDS).await;
        let mut begun = HashMap::new();
        for (change, node) in nodes.iter().enumerate() {
            sleep(Duration::from_millis(400 + change as u64 * 618 % 1000)).await;
            begun.insert(format!("cpu-{node}"), Instant::now());
            let line = command(*node);
            shell.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        }
        let mut took = Vec::new();
        let until = tokio::time::Instant::now() + LAST_CHANGE;
        while took.len() < nodes.len()
            && let Ok(Some((host, at))) = timeout_at(until, shown.recv()).await
        {
            if let Some(begun) = begun.remove(&host) {
                took.push(at.saturating_duration_since(begun).as_secs_f64());
            }
        }
        watch.abort();
        // The shell ends with its input.
        drop(shell.stdin.take());
        shell.wait().unwrap();
        if !begun.is_empty() {
            eprintln!(
                "{} of {} changes do not show {LAST_CHANGE:?} after the last",
                begun.len(),
                nodes.len()
            );
        }
        took.sort_by(f64::total_cmp);
        took
    }

    async fn cordon(&self, row: &mut Size) {
        step(row, "cordon");
        self.operator.settle(QUIET).await;
        let (from, begun) = (self.operator.mark().await, Instant::now());
        self.cluster.cordon(&self.machines, true).await;
        let drained = cluster::slurm_until(
            &format!("[ $({DRAINED} | wc --lines) -ge {} ]", row.workers),
            LIMIT,
        );
        let took = begun.elapsed().as_secs_f64();
        let calls = self.calls_since(from).await;
        if drained {
            row.set(Measure::Cordon, took);
            row.maybe(Measure::CordonWrites, calls.slurm_writes);
        } else {
            eprintln!("not all Slurm nodes are drained after {LIMIT:?}");
        }
    }

    async fn uncordon(&self, row: &mut Size) {
        step(row, "return from the cordon");
        self.operator.settle(QUIET).await;
        let (from, begun) = (self.operator.mark().await, Instant::now());
        self.cluster.cordon(&self.machines, false).await;
        let limit = if self.operator.is_ours { NO_RETURN } else { LIMIT };
        let back = cluster::slurm_until(&format!("[ $({DRAINED} | wc --lines) -eq 0 ]"), limit);
        let took = begun.elapsed().as_secs_f64();
        let calls = self.calls_since(from).await;
        if back {
            row.set(Measure::Return, took);
            row.maybe(Measure::ReturnWrites, calls.slurm_writes);
        } else {
            // Scale-in is measured from nodes in service.
            undrain_all();
        }
    }

    async fn scale_in(&self, row: &mut Size) {
        step(row, "scale-in");
        self.operator.settle(QUIET).await;
        let (from, begun) = (self.operator.mark().await, Instant::now());
        scale(0);
        self.cluster.wait_gone(WORKERS).await;
        row.set(Measure::ScaleIn, begun.elapsed().as_secs_f64());
        // The operator may delete the records of its workers later.
        let none = format!("[ $({RECORDS} | wc --lines) -eq 0 ]");
        cluster::slurm_until(&none, Duration::from_mins(1));
        let calls = self.calls_since(from).await;
        row.set(Measure::ScaleInPodWrites, calls.pod_writes / row.workers as f64);
        row.maybe(Measure::ScaleInReads, calls.slurm_reads);
        row.maybe(Measure::ScaleInWrites, calls.slurm_writes);
    }

    async fn calls_since(&self, from: Mark) -> Calls {
        sleep(AFTERWARDS).await;
        self.operator.calls(from, self.operator.mark().await)
    }
}

/// Prints what is measured now.
fn step(row: &Size, what: &str) {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let seconds = BEGUN.elapsed().as_secs();
    eprintln!(
        "{:3}:{:02}  {} workers: {what}",
        seconds / 60,
        seconds % 60,
        row.workers
    );
}

/// Creates the Slurm nodes of the workers.
fn create_records(size: usize) {
    let names = format!("NodeName=cpu-[0-{}]", size - 1);
    slurm(&["scontrol", "create", &names, "CPUs=1", "State=EXTERNAL"]);
}

/// Marks the Slurm nodes as those of the NodeSet's workers, as slurmd does when it registers. Before the workers exist,
/// the operator would take them for leftovers.
fn own_records(from: usize, to: usize) {
    let nodeset = format!("nodeset.slinky.slurm.net/{NODESET}");
    let uid = cluster::kubectl(&["get", &nodeset, "--output=jsonpath={.metadata.uid}"]).unwrap();
    let names = format!("NodeName=cpu-[{from}-{}]", to - 1);
    let extra = format!("Extra=nodeset={NODESET}/{}", uid.trim());
    try_slurm(&["scontrol", "update", &names, &extra]);
}

/// Deletes the Slurm nodes with this number and higher ones that the operator left.
fn delete_records(from: usize) {
    let names = format!("{RECORDS} | while read name; do [ ${{name#cpu-}} -lt {from} ] || echo $name; done");
    on_nodes(&names, "scontrol delete nodename=$all");
}

/// Resumes the Slurm nodes that are drained: Slurm refuses to resume one that is in service.
fn undrain_all() {
    let names = format!("{DRAINED} | cut --delimiter=' ' --fields=1");
    on_nodes(&names, "scontrol update nodename=$all state=undrain");
}

/// Runs a command for the nodes that another one lists, `$all`, if there are any.
fn on_nodes(list: &str, command: &str) {
    let script = format!("all=$({list} | paste --serial --delimiters=,); [ -z \"$all\" ] || {command}");
    try_slurm(&["bash", "-c", &script]);
}

/// Starts a shell in slurmctld's container that runs what it reads: each `kubectl exec` takes half a second to begin.
fn shell_in_slurmctld() -> Child {
    cluster::program()
        .args(["exec", "--stdin"])
        .args(&CONTROLLER[1..])
        .arg("bash")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Sets the 50th and the 99th percentile and the maximum of sorted values, if there is one for each change.
fn set_percentiles(row: &mut Size, [median, high, max]: [Measure; 3], sorted: &[f64], changes: usize) {
    if sorted.len() == changes {
        row.maybe(median, percentile(sorted, 50));
        row.maybe(high, percentile(sorted, 99));
        row.maybe(max, sorted.last().copied());
    }
}

/// Returns the value that this share of the sorted values does not exceed.
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 50), Some(50.0));
        assert_eq!(percentile(&values, 99), Some(99.0));
        assert_eq!(percentile(&values[..50], 99), Some(50.0));
        assert_eq!(percentile(&[], 50), None);
    }
}
