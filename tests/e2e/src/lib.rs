//! What end-to-end tests share: the test clusters, a namespace per test, and waiting for things to come true.
//!
//! `cargo xtask test` starts the cluster that most tests share and names it in `KEELSON_TEST_CLUSTER`. Tests that take away what
//! others stand on have another for themselves, which the first of them starts.

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

/// An image with a shell and the usual tools: the login node's.
pub fn tools_image() -> String {
    testbed::image::name("login")
}

/// How long things may take on a busy machine before a test gives up.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// The cluster that this test runs on.
pub fn cluster() -> Result<Cluster> {
    Cluster::open(cluster_name()?)
}

/// Its name. A cluster for tests that run alone is started, or healed, by the first question of a test.
pub fn cluster_name() -> Result<&'static str> {
    static NAME: OnceLock<Result<String>> = OnceLock::new();
    let name = NAME.get_or_init(|| {
        if !runs_alone() {
            return variable("KEELSON_TEST_CLUSTER");
        }
        let name = variable("KEELSON_TEST_CLUSTER_ALONE")?;
        if cluster::state(&Layout::of(&name)?)? != State::Running {
            let nodes = variable("KEELSON_TEST_NODES")?;
            // It goes before the other cluster, on which several tests run at once: nobody else waits as long as this row.
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

/// Whether `.config/nextest.toml` lets no other test run on the same cluster.
fn runs_alone() -> bool {
    std::env::var("NEXTEST_TEST_GROUP").is_ok_and(|group| group == "alone")
}

/// What the runner of the tests has set.
pub fn variable(name: &str) -> Result<String> {
    std::env::var(name)
        .with_context(|| format!("{name} is not set: run these tests with `cargo xtask test --tier cluster`"))
}

/// Runs kubectl and returns what it printed. For what only it does; what is asked over and over goes through [`api`] and
/// [`exec`].
pub fn kubectl(words: &[&str]) -> Result<String> {
    finish(
        &format!("kubectl {}", words.join(" ")),
        &cluster()?.kubectl().args(words).output()?,
    )
}

/// Runs kubectl with a manifest on its standard input and returns what it printed.
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

/// Applies a manifest with kubectl in a namespace.
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

/// Tries until it works; the last error says why it did not.
pub fn eventually<T>(what: &str, attempt: impl FnMut() -> Result<T>) -> Result<T> {
    eventually_within(PATIENCE, what, attempt)
}

/// [`eventually`] with a patience of one's own.
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

/// How long to wait before the next try: the longer it takes anyway, the less a try is worth. Several tests wait at the same
/// time, and where a try takes long, the machine has better things to do.
fn pause(waited: Duration, took: Duration) -> Duration {
    let worth = waited / 8;
    worth
        .max(took)
        .clamp(Duration::from_millis(250), Duration::from_secs(2))
}

/// A namespace that goes away with the test.
#[derive(Debug)]
pub struct Namespace {
    /// Its name.
    pub name: String,
}

impl Namespace {
    /// Makes a namespace for the test with this name.
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

    /// Fails as long as there is anything of these kinds (`pods,secrets`).
    pub fn has_no(&self, kinds: &str) -> Result<()> {
        let left = names(&["--namespace", &self.name, kinds])?;
        ensure!(left.is_empty(), "there is {}", left.join(", "));
        Ok(())
    }

    /// Runs a command in a pod, or a ready pod of a deployment.
    pub fn exec(&self, pod: &str, words: &[&str]) -> Result<String> {
        exec::exec(&self.name, pod, None, words)
    }

    /// Runs a command in a certain container of a pod.
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
            // What a person would look at first.
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

/// The project's own task runner, as `cargo xtask` would start it.
pub fn xtask() -> Result<Command> {
    let program =
        std::env::var_os("KEELSON_XTASK").context("KEELSON_XTASK is not set: run with `cargo xtask test`")?;
    let mut command = Command::new(program);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    Ok(command)
}

/// Runs a command to its end; an error carries what it said.
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
