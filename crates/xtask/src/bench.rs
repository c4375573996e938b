//! `cargo xtask bench`: measures what has a budget, with programs built as they are shipped.

use std::process::Command;

use anyhow::Result;
use clap::{Args, ValueEnum};
use testbed::cache::Cache;
use testbed::image;
use testbed::progress::Progress;

use crate::test::Check as _;
use crate::workspace;

#[derive(Args)]
pub struct Options {
    #[arg(value_enum)]
    subject: Subject,
    /// Fail when a budget is broken
    #[arg(long)]
    check: bool,
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
}

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
    }
}

/// A benchmark is an example, run as it is shipped.
fn example(name: &str, options: &Options) -> Result<Command> {
    let mut build = workspace::cargo()?;
    // The whole workspace's features, so that all benchmarks share what they are built of.
    build.args(["build", "--release", "--locked", "--workspace", "--example", name]);
    if !options.verbose {
        build.arg("--quiet");
    }
    build.check()?;
    let mut command = Command::new(workspace::root()?.join("target/release/examples").join(name));
    if options.check {
        command.arg("--check");
    }
    Ok(command)
}
