//! `cargo xtask test`: the test tiers, cheapest first.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use testbed::binaries::{self, Binaries};
use testbed::cache::{Cache, Key};
use testbed::cluster::{Cluster, State};
use testbed::layout::Layout;
use testbed::progress::Progress;
use testbed::{command, image};

use crate::workspace::{self, Build};
use crate::{audit, bench, cluster, permissions, previous_release, slurm};

#[derive(Args)]
pub struct Options {
    /// Tiers to run; defaults to all except soak
    #[arg(long, value_enum)]
    tier: Vec<Tier>,
    /// Compile the operator without optimizations, for faster builds during development
    #[arg(long)]
    quick: bool,
    /// Keep the test cluster running afterwards
    #[arg(long)]
    keep: bool,
    /// Name of the test cluster, different from the default name of `up`
    #[arg(long, default_value = "test")]
    name: String,
    /// Print the details of each step
    #[arg(long, short)]
    verbose: bool,
    /// Filter for the test runner, for example `test(drain)`
    #[arg(long, short = 'E')]
    filter: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tier {
    /// Formatting, clippy and dependency policy
    Lint,
    /// Tables, snapshots and properties, without a cluster or daemons
    Pure,
    /// Single real components, such as Slurm daemons, helm or package archives, without a cluster
    Parts,
    /// End-to-end tests on a real Kubernetes cluster
    Cluster,
    /// Long versions of the tests
    Soak,
}

/// Tests that require a cluster. Every tier builds the whole workspace and selects tests with such filters. If the tests of one
/// package were built alone, their dependencies would be built again with other features.
const ON_CLUSTER: &str = "package(e2e)";

/// Too long for every change.
const LONG: &str = "test(/soak/)";

/// Tests of single real components.
const OF_PARTS: &str = "binary(/^real_/)";

/// The number of concurrent tests where tests mostly wait; `.config/nextest.toml` limits each group.
const AT_ONCE: &str = "--test-threads=6";

/// The number of nodes in a test cluster: enough that tests can continue after the loss of one node.
const NODES: u8 = 3;

pub fn run(options: &Options) -> Result<ExitCode> {
    let progress = Progress::new(options.verbose);
    let wanted = |tier: Tier| {
        if options.tier.is_empty() {
            tier != Tier::Soak
        } else {
            options.tier.contains(&tier)
        }
    };
    let cache = Cache::open()?;
    if wanted(Tier::Lint) {
        progress.line("== Lint");
        lint(&cache, &progress)?;
    }
    std::thread::scope(|scope| {
        // The cluster tier requires the release build of the operator.
        let images = (wanted(Tier::Cluster) && !options.quick).then(|| scope.spawn(|| release(&cache)));
        if wanted(Tier::Pure) {
            progress.line("== Pure");
            pure(&cache, &progress, options)?;
        }
        match images.map(std::thread::ScopedJoinHandle::join) {
            Some(Ok(built)) => built,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    })?;
    // Run both together: cluster tests mostly wait, which leaves time for the parts.
    let runs = match (wanted(Tier::Parts), wanted(Tier::Cluster)) {
        (true, true) => Some((
            "Parts, Cluster",
            format!("{OF_PARTS} or ({ON_CLUSTER} and not ({LONG}))"),
        )),
        (true, false) => Some(("Parts", OF_PARTS.to_owned())),
        (false, true) => Some(("Cluster", format!("{ON_CLUSTER} and not ({LONG})"))),
        (false, false) => None,
    };
    if let Some((title, base)) = runs {
        progress.line(&format!("== {title}"));
        let mut runner = nextest(&cache, &progress, options)?;
        if wanted(Tier::Parts) {
            with_parts(&cache, &progress, &mut runner)?;
        }
        if wanted(Tier::Cluster) {
            with_cluster(&cache, &progress, options, runner, &base)?;
            if options.filter.is_none() {
                progress.line("== Calls for each worker");
                bench::count_calls(&progress, build(options))?;
            }
        } else {
            runner.args([AT_ONCE, "-E", &filter(&base, options)]).check()?;
        }
    }
    if wanted(Tier::Soak) {
        progress.line("== Soak");
        let runner = nextest(&cache, &progress, options)?;
        let base = format!("{ON_CLUSTER} and ({LONG})");
        with_cluster(&cache, &progress, options, runner, &base)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn filter(base: &str, options: &Options) -> String {
    options
        .filter
        .as_ref()
        .map_or_else(|| base.to_owned(), |more| format!("({base}) and ({more})"))
}

/// Builds the programs and images for the cluster in the background.
fn release(cache: &Cache) -> Result<()> {
    // In this order, so that the shared build directory ends with the programs of this checkout.
    previous_release::build(cache, &Progress::lines())?;
    workspace::build_images(cache, &Progress::lines(), Build::Release).map(drop)
}

fn lint(cache: &Cache, progress: &Progress) -> Result<()> {
    let step = |title: &str, command: &mut Command| progress.step(title, |_| command.check());
    step(
        "cargo fmt --check",
        workspace::cargo()?.args(["fmt", "--all", "--check"]),
    )?;
    step(
        "cargo clippy",
        workspace::cargo()?.args([
            "clippy",
            "--quiet",
            "--locked",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]),
    )?;
    let deny = deny(cache, progress)?;
    step(
        "cargo deny check bans licenses sources",
        Command::new(deny).current_dir(workspace::root()?).args([
            "--log-level",
            "error",
            "check",
            "bans",
            "licenses",
            "sources",
        ]),
    )
}

fn pure(cache: &Cache, progress: &Progress, options: &Options) -> Result<()> {
    nextest(cache, progress, options)?
        .args([
            "-E",
            &filter(&format!("not {ON_CLUSTER} and not {OF_PARTS}"), options),
        ])
        .check()?;
    if options.filter.is_some() {
        return Ok(());
    }
    // nextest does not run doctests.
    let examples = ["test", "--quiet", "--doc", "--workspace", "--locked"];
    progress.step("doctests", |_| {
        command::run(
            workspace::cargo()?.args(examples),
            &cache.root().join("logs/doctest.log"),
        )
    })
}

/// Provides the test runner with the requirements of the tests of single components.
fn with_parts(cache: &Cache, progress: &Progress, runner: &mut Command) -> Result<()> {
    let images = workspace::root()?.join("images");
    testbed::host::ensure_packages(progress, &cache.root().join("logs/apt.log"), image::PACKAGES)?;
    let current = image::slurm_root(cache, progress, &images, "26.05")?;
    let previous = image::slurm_root(cache, progress, &images, "24.11")?;
    let helms = [
        Binaries::build(cache, progress)?.helm,
        binaries::helm_3(cache, progress)?,
    ];
    runner
        .env("KEELSON_TEST_HELM", std::env::join_paths(helms)?)
        .env("KEELSON_TEST_SLURM_ROOT_2605", current)
        .env("KEELSON_TEST_SLURM_ROOT_2411", previous);
    Ok(())
}

/// Runs tests with clusters, which are removed afterwards.
fn with_cluster(
    cache: &Cache,
    progress: &Progress,
    options: &Options,
    mut runner: Command,
    base: &str,
) -> Result<()> {
    let build = build(options);
    testbed::host::require(cache)?;
    // Before the programs of this checkout, as above.
    let previous = previous_release::build(cache, progress)?;
    let shared = provide(progress, &options.name, build)?;
    // Tests that need a dedicated cluster start this one; it may exist from a previous run.
    let alone = format!("{}-alone", options.name);
    if testbed::cluster::state(&Layout::of(&alone)?)? != State::Absent {
        provide(progress, &alone, build)?;
    }
    // Tests use the login node in the same way as its users.
    let log = cache.root().join("logs/apt.log");
    testbed::host::ensure_packages(progress, &log, &["openssh-client"])?;
    if options.quick {
        runner.env("KEELSON_TEST_QUICK", "1");
    }
    let mut result = runner
        .args([AT_ONCE, "-E", &filter(base, options)])
        .env("KEELSON_TEST_CLUSTER", &options.name)
        .env("KEELSON_TEST_CLUSTER_ALONE", &alone)
        .env("KEELSON_TEST_NODES", NODES.to_string())
        .env("KEELSON_TEST_HELM_3", binaries::helm_3(cache, progress)?)
        .env("KEELSON_TEST_PREVIOUS", previous.files)
        .env("KEELSON_TEST_PREVIOUS_IMAGES", previous.archive)
        .env("KEELSON_TEST_PROGRAM", workspace::keelson(build)?)
        .env("KEELSON_XTASK", workspace::program()?)
        .env("KUBECONFIG", shared.layout().kubeconfig())
        .check();
    let mut used = BTreeSet::new();
    for name in [&options.name, &alone] {
        let layout = Layout::of(name)?;
        if testbed::cluster::state(&layout)? == State::Absent {
            continue;
        }
        // The tests ran with exactly the permissions in the charts; a denied call does not necessarily fail a test.
        result = result.and_then(|()| {
            let log = audit::log(&layout)?;
            used.extend(permissions::used(&log));
            audit::nothing_was_forbidden(&log)
        });
        if result.is_err() {
            // Print the most useful details now, because the cluster may be removed.
            dump(name);
        }
        if !options.keep {
            progress.step(&format!("removing cluster {name}"), |_| {
                testbed::cluster::down(name)
            })?;
        }
    }
    result?;
    // A selection of tests, or the long ones alone, does not use all permissions.
    if options.filter.is_none() && !base.ends_with(&format!("and ({LONG})")) {
        audit::everything_was_used(&used)?;
    }
    Ok(())
}

fn build(options: &Options) -> Build {
    if options.quick {
        Build::Quick
    } else {
        Build::Release
    }
}

/// Ensures a cluster with the operator of this checkout and the quick start's Slurm cluster.
fn provide(progress: &Progress, name: &str, build: Build) -> Result<Cluster> {
    let running = cluster::start(progress, name, NODES, 0, build)?;
    slurm::install(&slurm::Target::testbed(&running).with_operator(build)?, progress)?;
    Ok(running)
}

fn dump(name: &str) {
    let cluster = match Cluster::open(name) {
        Ok(cluster) => cluster,
        Err(error) => return eprintln!("--- cluster {name}: {error:#}"),
    };
    for words in [
        &["get", "pods,nodes", "--all-namespaces", "--output=wide"][..],
        &["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
        &[
            "-n",
            "slurm-operator",
            "logs",
            "--selector=app.kubernetes.io/part-of=slurm-operator",
            "--tail=100",
            "--prefix",
        ],
    ] {
        eprintln!("--- cluster {name}: kubectl {}", words.join(" "));
        let _ = cluster.kubectl().args(words).status();
    }
}

fn nextest(cache: &Cache, progress: &Progress, options: &Options) -> Result<Command> {
    let program = tool(cache, progress, "cargo-nextest", "0.9.151")?;
    let mut command = Command::new(program);
    command
        .current_dir(workspace::root()?)
        .args(["nextest", "run", "--workspace", "--locked", "--no-fail-fast"])
        // The error messages describe what happened and where in the test.
        .env("RUST_LIB_BACKTRACE", "0");
    if !options.verbose {
        command.args([
            "--cargo-quiet",
            "--status-level=slow",
            "--final-status-level=fail",
        ]);
    }
    Ok(command)
}

/// cargo-deny, which checks the dependencies.
pub fn deny(cache: &Cache, progress: &Progress) -> Result<PathBuf> {
    tool(cache, progress, "cargo-deny", "0.20.2")
}

/// A cargo subcommand, built once.
fn tool(cache: &Cache, progress: &Progress, name: &str, version: &str) -> Result<PathBuf> {
    let key = Key::new("cargo-tool-1").text(name).text(version).finish();
    let place = cache.get_or_build(name, &key, |place| {
        progress.step(
            &format!("building {name} {version} (once, a few minutes)"),
            |_| {
                let mut install = workspace::cargo()?;
                // Without optimizations, because the build takes longer than the run.
                install
                    .args(["install", "--locked", "--debug", "--root"])
                    .arg(place)
                    .arg(format!("{name}@{version}"));
                // The debug information of a tool is not needed and takes up most of the disk space.
                install
                    .env("CARGO_PROFILE_DEV_DEBUG", "0")
                    .env("CARGO_TARGET_DIR", place.join("target"));
                command::run(
                    &mut install,
                    &cache.root().join("logs").join(format!("{name}.log")),
                )?;
                testbed::cache::remove_tree(&place.join("target"))
            },
        )
    })?;
    Ok(place.join("bin").join(name))
}

/// Runs a command whose output is shown to the user.
pub trait Check {
    fn check(&mut self) -> Result<()>;
}

impl Check for Command {
    fn check(&mut self) -> Result<()> {
        let program = self.get_program().to_string_lossy().into_owned();
        let status = self
            .status()
            .with_context(|| format!("failed to start {program}"))?;
        if !status.success() {
            bail!(
                "{program} {} ({status})",
                self.get_args()
                    .take(3)
                    .map(|word| word.to_string_lossy())
                    .collect::<Vec<_>>()
                    .join(" ")
            );
        }
        Ok(())
    }
}
