//! Measures how fast and at what cost a NodeSet creates, drains and removes its workers, compared with a bare client.
//!
//! Run by `cargo xtask bench nodeset`, which creates the cluster: a real API server and a real slurmctld. The
//! Kubernetes nodes are simulated by kwok, and Slurm has the workers as EXTERNAL nodes, which have states and drains
//! but run no jobs. `docs/benchmarks/README.md` explains the rows.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a benchmark prints, and fails by panicking"
)]

mod budgets;
mod cluster;
mod measure;
mod operator;
mod plot;
mod programs;
mod report;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;

use futures::FutureExt as _;
use kube::Client;

use cluster::Cluster;
use measure::{Bench, Form};
use operator::Operator;
use report::{Report, Size};

/// `bench_nodeset SIZES [--check | --counts]`
#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let form = if has("--counts") { Form::Counts } else { Form::Full };
    let sizes = words.iter().find(|word| !word.starts_with("--")).unwrap();
    let sizes: Vec<usize> = sizes.split(',').map(|word| word.parse().unwrap()).collect();
    assert!(
        sizes.iter().all(|size| *size > 1),
        "at least two workers: {sizes:?}"
    );

    let cluster = Cluster::new(Client::try_default().await.unwrap());
    let operator = Operator::from_environment(cluster.clone());
    let mut report = Report {
        about: about(&cluster).await,
        sizes: Vec::new(),
    };
    let bench = Bench::prepare(cluster, operator, form).await;
    let out = std::env::var_os("KEELSON_BENCH_OUT").map(PathBuf::from);
    let mut exceeded = Vec::new();
    let mut failed = false;
    for size in sizes {
        let mut measured = Size::new(size);
        // A step may fail after an hour, and the figures of the others are still good.
        failed = AssertUnwindSafe(bench.measure(&mut measured))
            .catch_unwind()
            .await
            .is_err();
        exceeded.extend(match form {
            Form::Counts => budgets::counts(&measured),
            Form::Full => budgets::all(&measured),
        });
        report.sizes.push(measured);
        if let Some(out) = &out {
            report.write(out).unwrap();
        }
        if failed {
            break;
        }
    }
    println!("{}", report.table());
    if let Some(programs) = report.programs() {
        println!("{programs}");
    }
    for line in &exceeded {
        eprintln!("over budget: {line}");
    }
    // Counts are always checked: seconds depend on the machine, counts do not.
    if !failed && (exceeded.is_empty() || !(has("--check") || form == Form::Counts)) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the versions and the machine that the figures are for.
async fn about(cluster: &Cluster) -> BTreeMap<&'static str, String> {
    let given = |name: &str| std::env::var(name).unwrap_or_else(|_| "unknown".to_owned());
    let first_of = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let memory = first_of("/proc/meminfo", "MemTotal");
    let kib: Option<f64> = memory
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok());
    let memory = kib.map_or(memory, |kib| format!("{:.0} GiB", kib / f64::from(1 << 20)));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    BTreeMap::from([
        ("date", given("KEELSON_BENCH_DATE")),
        ("keelson", given("KEELSON_BENCH_COMMIT")),
        ("operator", given("KEELSON_BENCH_OPERATOR")),
        ("kubernetes", cluster.version().await),
        (
            "slurm",
            cluster::slurm(&["scontrol", "--version"]).trim().to_owned(),
        ),
        ("cores", cores.to_string()),
        ("processor", first_of("/proc/cpuinfo", "model name")),
        ("memory", memory),
        ("simulatedNodes", cluster.simulated().await.len().to_string()),
    ])
}
