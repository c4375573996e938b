//! `cargo xtask bench`: benchmarks with a budget, run with release builds.

mod plan;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use testbed::cache::Cache;
use testbed::cluster::Cluster;
use testbed::progress::Progress;
use testbed::{command, image};

use crate::test::Check as _;
use crate::workspace::{self, Build};
use crate::{cluster, slurm};

#[derive(Args)]
pub struct Options {
    #[arg(value_enum)]
    subject: Subject,
    /// Fail if a budget is exceeded
    #[arg(long)]
    check: bool,
    /// Numbers of workers for the nodeset benchmark, separated by commas
    #[arg(long, default_value = "500,2000,5000", value_delimiter = ',')]
    n: Vec<u32>,
    /// Nodeset: only count calls, with 200 workers, and fail if there are too many; for machines of unknown speed
    #[arg(long, conflicts_with_all = ["check", "n", "operator"])]
    counts: bool,
    /// Nodeset: measure another operator for the same API, which this shell command installs (KUBECONFIG is set)
    #[arg(long, value_name = "CMD", conflicts_with = "check")]
    operator: Option<String>,
    /// Nodeset: directory for the results; defaults to docs/benchmarks, or target/benchmarks for another operator
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the details of each step
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Subject {
    /// Admission reviews of each kind per second on one core
    Webhook,
    /// Listing 10,000 nodes from a real slurmctld, and host lists with 100,000 names
    SlurmRest,
    /// Workers on simulated nodes, compared with a plain client that creates the same pods
    Nodeset,
    /// Time and instructions of a plan for 10,000 workers
    Plan,
}

/// The cluster that the benchmark creates.
const CLUSTER: &str = "bench";
/// The number of workers whose calls are counted.
const COUNTED: u32 = 200;
/// Far fewer than fit on a simulated node: with full nodes, the scheduler would be measured.
const WORKERS_PER_NODE: u32 = 50;
const SIMULATED_NODES_MIN: u32 = 40;

pub fn run(options: &Options) -> Result<()> {
    match options.subject {
        Subject::Webhook => example("bench_webhook", options)?.check(),
        Subject::SlurmRest => {
            let progress = Progress::new(options.verbose);
            let cache = Cache::open()?;
            let images = workspace::root()?.join("images");
            testbed::host::ensure_packages(&progress, &cache.root().join("logs/apt.log"), image::PACKAGES)?;
            let slurm = image::slurm_root(&cache, &progress, &images, "26.05")?;
            example("bench_nodes", options)?
                .env("KEELSON_TEST_SLURM_ROOT_2605", slurm)
                .check()?;
            example("bench_hostlist", options)?.check()
        }
        Subject::Nodeset => nodeset(options),
        Subject::Plan => plan::run(options),
    }
}

fn nodeset(options: &Options) -> Result<()> {
    let progress = Progress::new(options.verbose);
    if options.counts {
        return count_calls(&progress, Build::Release);
    }
    // Build it before the cluster runs: both need the processor.
    let mut measure = example("bench_nodeset", options)?;
    let directory = match &options.out {
        Some(directory) => directory.clone(),
        // Figures of another operator do not replace ours.
        None if options.operator.is_some() => workspace::root()?.join("target/benchmarks"),
        None => workspace::root()?.join("docs/benchmarks"),
    };
    measure.env("KEELSON_BENCH_OUT", directory.join("nodeset.json"));
    let operator = match &options.operator {
        None => Operator::Ours(Build::Release),
        Some(install) => Operator::Other(install),
    };
    on_simulated_nodes(&progress, &options.n, &operator, measure)
}

/// Counts calls to Kubernetes and Slurm, and fails if there are more for each worker than there should be.
pub fn count_calls(progress: &Progress, build: Build) -> Result<()> {
    let name = "bench_nodeset";
    // Counts do not depend on optimization, and the tests' build contains the program already.
    let mut cargo = workspace::cargo()?;
    cargo.args(["build", "--quiet", "--locked", "--workspace", "--example", name]);
    cargo.check()?;
    let mut count = Command::new(workspace::program()?.with_file_name("examples").join(name));
    count.env_remove("KEELSON_BENCH_OUT");
    count.arg("--counts");
    on_simulated_nodes(progress, &[COUNTED], &Operator::Ours(build), count)
}

enum Operator<'a> {
    Ours(Build),
    /// The command that installs another one.
    Other(&'a str),
}

/// Starts a cluster with simulated nodes and the operator, and runs a program that measures it.
fn on_simulated_nodes(
    progress: &Progress,
    sizes: &[u32],
    operator: &Operator,
    mut measure: Command,
) -> Result<()> {
    let largest = sizes.iter().copied().max().unwrap_or_default();
    let simulated = largest.div_ceil(WORKERS_PER_NODE).max(SIMULATED_NODES_MIN);
    let build = match operator {
        Operator::Ours(build) => *build,
        Operator::Other(_) => Build::Release,
    };
    let running = cluster::start(progress, CLUSTER, 2, simulated, build)?;
    let mut target = slurm::Target::testbed(&running);
    match operator {
        Operator::Ours(build) => {
            target = target.with_operator(*build)?;
            slurm::install_operator(&target, progress)?;
        }
        Operator::Other(install) => {
            progress.step("the operator to measure", |_| other_operator(&running, install))?;
        }
    }
    progress.step("chart: slurm, with workers on simulated nodes", |_| {
        install_slurm(&target, largest)
    })?;
    let words: Vec<String> = sizes.iter().map(u32::to_string).collect();
    let name = match operator {
        Operator::Ours(_) => "keelson",
        Operator::Other(install) => install,
    };
    let measured = measure
        .arg(words.join(","))
        .env("KUBECONFIG", running.layout().kubeconfig())
        .env(
            "KEELSON_BENCH_KUBECTL",
            running.spec().binaries.component("kubectl"),
        )
        .env("KEELSON_BENCH_AUDIT", running.layout().log("audit"))
        .env("KEELSON_BENCH_CLUSTER", running.layout().root())
        .env("KEELSON_BENCH_DATE", today()?)
        .env("KEELSON_BENCH_COMMIT", commit()?)
        .env("KEELSON_BENCH_OPERATOR", name)
        .check();
    testbed::cluster::down(CLUSTER)?;
    measured
}

fn install_slurm(target: &slurm::Target, largest: u32) -> Result<()> {
    let on_simulated_nodes = serde_json::json!({
        "nodeSelector": { "type": "kwok" },
        "tolerations": [{ "key": "kwok.x-k8s.io/node", "operator": "Exists" }],
        "topologySpreadConstraints": [],
    });
    let place = format!("nodesets.cpu.podSpec={on_simulated_nodes}");
    // slurmctld reserves space for the nodes that the NodeSets request; here the nodes exist first, and some workers are added
    // to those of the largest size.
    let space = format!(
        "controller.maxNodeCount={}",
        (largest * 4 / 3 + 100).next_power_of_two()
    );
    let words = [
        "--set",
        "nodesets.cpu.replicas=0",
        // The user setup of the quick start is not measured.
        "--set",
        "accounting.enabled=false",
        "--set-json",
        "loginsetDefaults.login.volumeMounts=[],loginsetDefaults.podSpec.volumes=[]",
        "--set-json",
        "nodesetDefaults.slurmd.volumeMounts=[],nodesetDefaults.podSpec.volumes=[]",
        "--set",
        &space,
        "--set-json",
        &place,
    ];
    slurm::install_slurm(target, "bench", &words)
}

/// Installs our CRDs, then another operator with the user's command, which finds kubectl and helm in its PATH.
fn other_operator(running: &Cluster, install: &str) -> Result<()> {
    let name = "slurm-operator-crds";
    let mut crds = running.helm();
    crds.args(["upgrade", "--install", name])
        .arg(workspace::root()?.join("charts").join(name))
        .args(["--namespace", "slurm-operator", "--create-namespace", "--wait"]);
    command::run(&mut crds, &running.layout().log("install"))?;
    let binaries = &running.spec().binaries;
    let kubectl = binaries.component("kubectl");
    let mut places: Vec<PathBuf> = [&kubectl, &binaries.helm]
        .into_iter()
        .filter_map(|program| program.parent().map(Path::to_owned))
        .collect();
    places.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    Command::new("sh")
        .args(["-c", install])
        .env("KUBECONFIG", running.layout().kubeconfig())
        .env("PATH", env::join_paths(places).context("PATH")?)
        .check()
}

fn today() -> Result<String> {
    let date = command::output(Command::new("date").args(["--utc", "+%F"]))?;
    Ok(date.trim().to_owned())
}

/// The commit of the checkout, with a note if files have changed since.
fn commit() -> Result<String> {
    let root = workspace::root()?;
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(&root).args(words);
        git
    };
    let hash = command::output(&mut git(&["rev-parse", "--short", "HEAD"]))?;
    let clean = command::succeeds(&mut git(&["diff", "--quiet", "HEAD"]));
    let note = if clean { "" } else { ", with changes" };
    Ok(format!("{}{note}", hash.trim()))
}

/// Runs a benchmark, which is a Cargo example, as a release build.
fn example(name: &str, options: &Options) -> Result<Command> {
    // In the cache, like the programs of the images, so that checkouts share the build artifacts.
    let directory = Cache::open()?.root().join("cargo/bench");
    let mut build = workspace::cargo()?;
    // With the features of the whole workspace, so that all benchmarks share the build artifacts.
    build
        .args(["build", "--release", "--locked", "--workspace", "--example", name])
        .arg("--target-dir")
        .arg(&directory);
    if !options.verbose {
        build.arg("--quiet");
    }
    build.check()?;
    let mut command = Command::new(directory.join("release/examples").join(name));
    if options.check {
        command.arg("--check");
    }
    Ok(command)
}
