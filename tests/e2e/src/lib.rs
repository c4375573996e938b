//! Helpers for end-to-end tests: the test clusters, a namespace for each test, and retries with a timeout.
//!
//! `cargo xtask test` starts the cluster that most tests share and sets `KEELSON_TEST_CLUSTER` to its name. Tests that
//! remove something other tests depend on run on a separate cluster, which the first of them starts.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use testbed::Cluster;
use testbed::cluster::{self, State};
use testbed::layout::Layout;

pub mod api;
pub mod audit;
pub mod exec;
pub mod forward;
pub mod network_policy;
pub mod operator;
pub mod pages;
pub mod slurm;
pub mod standing;
pub mod workers;

pub use api::{get, names};

/// Returns an image with a shell and common tools: the login image.
pub fn tools_image() -> String {
    testbed::image::name("login")
}

/// The default timeout of a wait, long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// Opens the cluster that this test runs on.
pub fn cluster() -> Result<Cluster> {
    Cluster::open(cluster_name()?)
}

/// Returns the name of this test's cluster. The first call in a test that runs alone starts or repairs the cluster for
/// such tests.
pub fn cluster_name() -> Result<&'static str> {
    static NAME: OnceLock<Result<String>> = OnceLock::new();
    let name = NAME.get_or_init(|| {
        if !runs_alone() {
            return variable("KEELSON_TEST_CLUSTER");
        }
        let name = variable("KEELSON_TEST_CLUSTER_ALONE")?;
        if cluster::state(&Layout::of(&name)?)? != State::Running {
            let nodes = variable("KEELSON_TEST_NODES")?;
            // Takes priority over the shared cluster: the tests that run alone take the longest, because they run one
            // by one.
            let mut up = Command::new("nice");
            up.args(["-n", "-5"]).arg(xtask()?.get_program());
            up.args(["up", "--name", &name, "--nodes", &nodes]);
            if std::env::var_os("KEELSON_TEST_QUICK").is_some() {
                up.arg("--quick");
            }
            run(&mut up)?;
        }
        Ok(name)
    });
    name.as_deref().map_err(|error| anyhow!("{error:#}"))
}

/// Returns whether this test is in the group `alone` of `.config/nextest.toml`.
fn runs_alone() -> bool {
    std::env::var("NEXTEST_TEST_GROUP").is_ok_and(|group| group == "alone")
}

/// Returns an environment variable that `cargo xtask test` sets.
pub fn variable(name: &str) -> Result<String> {
    std::env::var(name)
        .with_context(|| format!("{name} is not set: run these tests with `cargo xtask test --tier cluster`"))
}

/// Runs kubectl and returns its standard output. Use it only for what [`api`] and [`exec`] cannot do: starting a
/// process for every query is slow.
pub fn kubectl(words: &[&str]) -> Result<String> {
    finish(
        &format!("kubectl {}", words.join(" ")),
        &cluster()?.kubectl().args(words).output()?,
    )
}

/// Runs kubectl with a manifest on its standard input and returns its standard output.
pub fn kubectl_with(words: &[&str], manifest: &str) -> Result<String> {
    let mut child = cluster()?
        .kubectl()
        .args(words)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .context("no standard input")?
        .write_all(manifest.as_bytes())?;
    finish(
        &format!("kubectl {}", words.join(" ")),
        &child.wait_with_output()?,
    )
}

/// Applies a manifest in a namespace, by server-side apply.
pub fn apply(namespace: &str, manifest: &str) -> Result<String> {
    kubectl_with(&["--namespace", namespace, "apply", "--server-side"], manifest)
}

fn finish(what: &str, output: &Output) -> Result<String> {
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{what}: {}\n{}",
        String::from_utf8_lossy(&output.stderr).trim(),
        printed.trim()
    );
    Ok(printed.into_owned())
}

/// Retries until `attempt` succeeds or [`PATIENCE`] has passed, then returns the last error.
pub fn eventually<T>(what: &str, attempt: impl FnMut() -> Result<T>) -> Result<T> {
    eventually_within(PATIENCE, what, attempt)
}

/// Like [`eventually`], with a custom timeout.
pub fn eventually_within<T>(
    limit: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let begun = Instant::now();
    loop {
        let tried = Instant::now();
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if begun.elapsed() > limit => {
                return Err(error).with_context(|| format!("not within {} s: {what}", limit.as_secs()));
            }
            Err(_) => std::thread::sleep(pause(begun.elapsed(), tried.elapsed())),
        }
    }
}

/// Returns the pause before the next attempt, which grows with the time waited so far and with the duration of an
/// attempt: several tests wait at the same time, and attempts must not overload the machine.
fn pause(waited: Duration, took: Duration) -> Duration {
    let worth = waited / 8;
    worth
        .max(took)
        .clamp(Duration::from_millis(250), Duration::from_secs(2))
}

/// A namespace that is deleted with the test.
#[derive(Debug)]
pub struct Namespace {
    /// Its name.
    pub name: String,
}

impl Namespace {
    /// Creates a namespace for this test.
    pub fn create(test: &str) -> Result<Self> {
        let name = format!("{test}-{}", std::process::id());
        kubectl(&["create", "namespace", &name])?;
        Ok(Self { name })
    }

    /// Runs kubectl in the namespace.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        kubectl(&[&["--namespace", &self.name], words].concat())
    }

    /// Applies a manifest in the namespace.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        apply(&self.name, manifest)
    }

    /// Reads objects of the namespace.
    pub fn get(&self, words: &[&str]) -> Result<serde_json::Value> {
        get(&[&["--namespace", &self.name], words].concat())
    }

    /// Fails if the namespace contains objects of these kinds (`pods,secrets`).
    pub fn has_no(&self, kinds: &str) -> Result<()> {
        let left = names(&["--namespace", &self.name, kinds])?;
        ensure!(left.is_empty(), "there is {}", left.join(", "));
        Ok(())
    }

    /// Runs a command in a pod, or in a ready pod of a Deployment.
    pub fn exec(&self, pod: &str, words: &[&str]) -> Result<String> {
        exec::exec(&self.name, pod, None, words)
    }

    /// Runs a command in a container of a pod.
    pub fn exec_in(&self, pod: &str, container: &str, words: &[&str]) -> Result<String> {
        exec::exec(&self.name, pod, Some(container), words)
    }

    /// Waits until pods are ready.
    pub fn wait_ready(&self, what: &str) -> Result<()> {
        self.kubectl(&["wait", "--for=condition=Ready", "--timeout=180s", what])
            .map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Helps to debug the failed test.
            for words in [
                &["get", "all,pvc", "--output=wide"][..],
                &["get", "events", "--sort-by=.lastTimestamp"],
            ] {
                eprintln!(
                    "--- kubectl {}\n{}",
                    words.join(" "),
                    self.kubectl(words).unwrap_or_else(|error| error.to_string())
                );
            }
        }
        let _ = self.kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

/// Returns a command that runs `cargo xtask`.
pub fn xtask() -> Result<Command> {
    let program =
        std::env::var_os("KEELSON_XTASK").context("KEELSON_XTASK is not set: run with `cargo xtask test`")?;
    let mut command = Command::new(program);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    Ok(command)
}

/// Runs a command and returns its standard output. If it fails, the error contains its output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!(
            "{:?} ({}): {}{}",
            command,
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
