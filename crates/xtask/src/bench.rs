//! `cargo xtask bench`: measures what has a budget, with programs built as they are shipped.

use std::process::Command;

use anyhow::Result;
use clap::{Args, ValueEnum};
use testbed::cache::Cache;
use testbed::image;
use testbed::progress::Progress;

use crate::test::Check as _;
use crate::workspace::{self, Build};
use crate::{cluster, slurm};

#[derive(Args)]
pub struct Options {
    #[arg(value_enum)]
    subject: Subject,
    /// Fail when a budget is broken
    #[arg(long)]
    check: bool,
    /// nodeset: how many workers, one run for each number
    #[arg(long, default_value = "500,2000")]
    n: String,
    /// Show what each step does
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Subject {
    /// Reviews per second of one core
    Webhook,
    /// A list of 10,000 nodes from a real slurmctld, and host lists of 100,000 names
    SlurmRest,
    /// Workers on simulated machines, next to a bare client that creates the same pods
    Nodeset,
}

/// The cluster that a benchmark makes for itself.
const CLUSTER: &str = "bench";
/// Room for 2,500 workers.
const SIMULATED_NODES: u32 = 40;

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
    }
}

fn nodeset(options: &Options) -> Result<()> {
    let progress = Progress::new(options.verbose);
    let running = cluster::start(&progress, CLUSTER, 2, SIMULATED_NODES, Build::Release)?;
    let target = slurm::Target::testbed(&running).with_operator(Build::Release)?;
    slurm::install_operator(&target, &progress)?;
    let on_simulated_nodes = serde_json::json!({
        "nodeSelector": { "type": "kwok" },
        "tolerations": [{ "key": "kwok.x-k8s.io/node", "operator": "Exists" }],
        "topologySpreadConstraints": [],
    });
    progress.step("chart: slurm, with workers on simulated nodes", |_| {
        let place = format!("nodesets.cpu.podSpec={on_simulated_nodes}");
        let words = [
            "--set",
            "nodesets.cpu.replicas=0",
            // What the quick start has for its user is not measured.
            "--set",
            "accounting.enabled=false",
            "--set-json",
            "loginsetDefaults.login.volumeMounts=[],loginsetDefaults.podSpec.volumes=[]",
            "--set-json",
            "nodesetDefaults.slurmd.volumeMounts=[],nodesetDefaults.podSpec.volumes=[]",
            // slurmctld makes room for what the NodeSets want; here the nodes are there first.
            "--set",
            "controller.maxNodeCount=4096",
            "--set-json",
            &place,
        ];
        slurm::install_slurm(&target, "bench", &words)
    })?;
    let measured = example("bench_nodeset", options)?
        .arg(&options.n)
        .env("KUBECONFIG", running.layout().kubeconfig())
        .env(
            "KEELSON_BENCH_KUBECTL",
            running.spec().binaries.component("kubectl"),
        )
        .env("KEELSON_BENCH_AUDIT", running.layout().log("audit"))
        .check();
    testbed::cluster::down(CLUSTER)?;
    measured
}

/// A benchmark is an example, run as it is shipped.
fn example(name: &str, options: &Options) -> Result<Command> {
    // In the cache, as the programs of the images are: checkouts share what they are built of.
    let directory = Cache::open()?.root().join("cargo/bench");
    let mut build = workspace::cargo()?;
    // The whole workspace's features, so that all benchmarks share what they are built of.
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
