//! A Slurm cluster for one test: a release `slurm` of the chart, in a namespace that is deleted with the test.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{Namespace, api, cluster, cluster_name, eventually, eventually_within, kubectl, run};

/// The chart under test.
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/slurm");
/// The directory of the example values files.
pub const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// The NodeSet of the quick start.
pub const NODESET: &str = "nodeset.slinky.slurm.net/slurm-worker-cpu";

/// Values that turn off parts of the quick start that most tests do not need: the database and the home directories.
/// They are applied directly after the quick start's values, so that examples can turn them on again.
pub const LEAN: &str = r"
accounting: { enabled: false }
loginsetDefaults: { login: { volumeMounts: [] }, podSpec: { volumes: [] } }
nodesetDefaults: { slurmd: { volumeMounts: [] }, podSpec: { volumes: [] } }
nodesets: { cpu: { replicas: 2 } }
";

/// Values that make the quick start's pods small enough to run several Slurm clusters on the test cluster. slurmrestd's
/// probe starts a process, so it runs less often.
pub const SMALL: &str = r#"
controller: { slurmctld: { resources: { requests: { cpu: 50m, memory: 64Mi } } } }
restapi:
  slurmrestd: { resources: { requests: { cpu: 50m, memory: 32Mi } }, readinessProbe: { periodSeconds: 5 } }
loginsets: { users: { login: { resources: { requests: { cpu: 20m, memory: 32Mi } } } } }
nodesets:
  cpu:
    slurmd: { resources: { requests: { cpu: 20m, memory: 64Mi }, limits: { cpu: "1", memory: 512Mi } } }
    logfile: { resources: { requests: { cpu: 1m, memory: 8Mi }, limits: { cpu: 100m, memory: 32Mi } } }
"#;

/// The quick start's Slurm cluster, with changes for the test.
#[derive(Debug)]
pub struct Slurm {
    /// The namespace of the cluster.
    pub space: Namespace,
    /// Values files of `examples/` that are applied after the quick start's, without `.yaml`.
    examples: Vec<String>,
}

impl Slurm {
    /// Installs the quick start with additional values (YAML).
    pub fn install(test: &str, values: &str) -> Result<Self> {
        Self::install_examples(Namespace::create(test)?, &[], values)
    }

    /// Installs the quick start in an existing namespace, with these examples and then the values applied on top.
    pub fn install_examples(space: Namespace, examples: &[&str], values: &str) -> Result<Self> {
        let slurm = Self {
            space,
            examples: examples.iter().map(|&name| name.to_owned()).collect(),
        };
        slurm.helm("install", values)?;
        Ok(slurm)
    }

    /// Wraps a cluster that was installed in another way, as release `slurm`.
    pub fn installed(space: Namespace) -> Self {
        Self {
            space,
            examples: Vec::new(),
        }
    }

    /// Installs the release again after it was uninstalled.
    pub fn install_again(&self, values: &str) -> Result<()> {
        self.helm("install", values)
    }

    /// Installs and waits until this many workers are idle.
    pub fn install_ready(test: &str, values: &str, workers: usize) -> Result<Self> {
        let slurm = Self::install(test, values)?;
        slurm.wait_idle(workers)?;
        Ok(slurm)
    }

    /// Upgrades the release with these values.
    pub fn upgrade(&self, values: &str) -> Result<()> {
        self.helm("upgrade", values)
    }

    fn helm(&self, verb: &str, values: &str) -> Result<()> {
        let directory = tempfile::tempdir()?;
        let more = directory.path().join("values.yaml");
        std::fs::write(&more, values)?;
        let small = directory.path().join("small.yaml");
        std::fs::write(&small, SMALL)?;
        let mut helm = cluster()?.helm();
        helm.args([verb, "slurm", CHART, "--namespace", &self.space.name]);
        lean_quick_start(&mut helm, directory.path())?;
        for example in &self.examples {
            helm.args(["--values", &format!("{EXAMPLES}/{example}.yaml")]);
        }
        run(helm.arg("--values").arg(&small).arg("--values").arg(&more)).map(drop)
    }

    /// Reads objects of the namespace.
    pub fn get(&self, words: &[&str]) -> Result<Value> {
        self.space.get(words)
    }

    /// Changes an object by a merge patch.
    pub fn patch(&self, object: &str, patch: &Value) -> Result<()> {
        api::patch(&self.space.name, object, patch)
    }

    /// Runs a command on the login node.
    pub fn login(&self, words: &[&str]) -> Result<String> {
        self.space.exec("deployment/slurm-login-users", words)
    }

    /// Runs a command in the slurmctld container, which works even if login pods and slurmrestd do not.
    pub fn controller(&self, words: &[&str]) -> Result<String> {
        self.space.exec_in("slurm-controller-0", "slurmctld", words)
    }

    /// Like [`Self::controller`], with retries, for commands that can safely run twice. slurmctld does not answer while
    /// it starts or loads a configuration.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        eventually_within(Duration::from_secs(30), "an answer of slurmctld", || {
            self.controller(words)
        })
    }

    /// Waits until exactly these many workers are idle.
    pub fn wait_idle(&self, count: usize) -> Result<Vec<String>> {
        eventually(&format!("{count} idle workers"), || {
            // Filtered here, because `sinfo --states=idle` also lists drained nodes without jobs.
            let states = self.controller(&["sinfo", "--noheader", "--Node", "--format=%N %T"])?;
            let mut names: Vec<String> = states
                .lines()
                .filter_map(|line| line.split_once(' '))
                .filter(|(_, state)| state.trim() == "idle")
                .map(|(name, _)| name.to_owned())
                .collect();
            names.sort();
            names.dedup();
            ensure!(names.len() == count, "{} are idle: {names:?}", names.len());
            Ok(names)
        })
    }

    /// Submits a batch job and returns its ID.
    pub fn sbatch(&self, options: &[&str], script: &str) -> Result<String> {
        let wrap = format!("--wrap={script}");
        let words = [&["sbatch", "--parsable", "--output=/dev/null"], options, &[&wrap]].concat();
        Ok(self.controller(&words)?.trim().to_owned())
    }

    /// Submits a job that runs on this node until [`Slurm::open`], with a time limit in minutes.
    pub fn hold(&self, node: &str, minutes: u32) -> Result<String> {
        let job = self.sbatch(
            &[&format!("--nodelist={node}"), &format!("--time={minutes}")],
            "until [ -e /tmp/open ]; do sleep 1; done",
        )?;
        self.wait_job(&job, "RUNNING")?;
        Ok(job)
    }

    /// Ends the jobs of [`Slurm::hold`] on this node.
    pub fn open(&self, node: &str) -> Result<()> {
        let pod = self.pod_of(node)?;
        eventually("a word to the job", || {
            self.space.exec_in(&pod, "slurmd", &["touch", "/tmp/open"])
        })
        .map(drop)
    }

    /// Checks for a few seconds that a worker's pod is not replaced and its job keeps running.
    pub fn stays_at_work(&self, node: &str, uid: &str, job: &str) -> Result<()> {
        for _ in 0..8 {
            let workers = self.workers()?;
            let found = workers.get(&worker_pod(node)).map(String::as_str);
            ensure!(found == Some(uid), "pod of {node} was {uid} and is {found:?}");
            let state = self.job_state(job)?;
            ensure!(state == "RUNNING", "job {job} on {node} is {state}");
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Waits until a node is drained or draining, and returns the reason.
    pub fn wait_drain(&self, node: &str) -> Result<String> {
        eventually(&format!("the drain of {node}"), || {
            let state = self.node_field(node, "State")?;
            ensure!(state.contains("DRAIN"), "{node} is {state}");
            self.node_reason(node)
        })
    }

    /// Returns the full reason of a node's state.
    pub fn node_reason(&self, node: &str) -> Result<String> {
        let words = ["sinfo", "--noheader", "--nodes", node, "--format=%E"];
        Ok(self
            .ask(&words)?
            .lines()
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned())
    }

    /// Waits until a worker's pod and its record in Slurm are gone.
    pub fn wait_gone(&self, node: &str) -> Result<()> {
        eventually(&format!("the end of {node}"), || {
            ensure!(
                !self.workers()?.contains_key(&worker_pod(node)),
                "its pod is there"
            );
            let nodes = self.controller(&["sinfo", "--noheader", "--Node", "--format=%N"])?;
            ensure!(
                !nodes.split_whitespace().any(|name| name == node),
                "Slurm knows it: {nodes}"
            );
            Ok(())
        })
    }

    /// Sets the number of workers, as an autoscaler would.
    pub fn scale(&self, replicas: u32) -> Result<()> {
        self.space
            .kubectl(&["scale", NODESET, &format!("--replicas={replicas}")])
            .map(drop)
    }

    /// Returns the UID of a worker's pod.
    pub fn worker(&self, node: &str) -> Result<String> {
        let pod = worker_pod(node);
        self.workers()?
            .remove(&pod)
            .with_context(|| format!("there is no pod {pod}"))
    }

    /// Returns a job's state in slurmctld.
    pub fn job_state(&self, job: &str) -> Result<String> {
        self.job_field(job, "JobState")
    }

    /// Returns one field of `scontrol show job`.
    pub fn job_field(&self, job: &str, field: &str) -> Result<String> {
        let shown = self.ask(&["scontrol", "--oneliner", "show", "job", job])?;
        field_of(&shown, field).with_context(|| format!("job {job} has no {field}: {shown}"))
    }

    /// Returns one field of `scontrol show node`.
    pub fn node_field(&self, node: &str, field: &str) -> Result<String> {
        let shown = self.ask(&["scontrol", "--oneliner", "show", "node", node])?;
        field_of(&shown, field).with_context(|| format!("node {node} has no {field}: {shown}"))
    }

    /// Waits until a job is in this state.
    pub fn wait_job(&self, job: &str, state: &str) -> Result<()> {
        eventually(&format!("job {job} {state}"), || {
            let found = self.job_state(job)?;
            ensure!(found == state, "job {job} is {found}");
            Ok(())
        })
    }

    /// Returns the UID of each worker pod, by name. A different UID means a different pod.
    pub fn workers(&self) -> Result<std::collections::BTreeMap<String, String>> {
        let pods = self.get(&["pods", "--selector=app.kubernetes.io/name=slurmd"])?;
        let items = pods
            .get("items")
            .and_then(Value::as_array)
            .context("a list without items")?;
        let field = |pod: &Value, path: &str| {
            pod.pointer(path)
                .and_then(Value::as_str)
                .map(str::to_owned)
                .with_context(|| format!("a pod without {path}"))
        };
        items
            .iter()
            .map(|pod| Ok((field(pod, "/metadata/name")?, field(pod, "/metadata/uid")?)))
            .collect()
    }

    /// Returns the UID and the number of container restarts of each selected pod, by name. Equal results mean that no
    /// pod was replaced or restarted.
    pub fn pods(&self, selector: &str) -> Result<std::collections::BTreeMap<String, (String, u64)>> {
        let pods = self.get(&["pods", &format!("--selector={selector}")])?;
        let items = pods.get("items").and_then(Value::as_array);
        let text = |pod: &Value, path: &str| {
            pod.pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let restarts = |pod: &Value| -> u64 {
            let containers = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
            containers
                .into_iter()
                .flatten()
                .filter_map(|container| container["restartCount"].as_u64())
                .sum()
        };
        Ok(items
            .into_iter()
            .flatten()
            .map(|pod| {
                (
                    text(pod, "/metadata/name"),
                    (text(pod, "/metadata/uid"), restarts(pod)),
                )
            })
            .collect())
    }

    /// Sets the Controller's extraConf to the installed text plus these lines.
    pub fn add_conf(&self, installed: &str, lines: &str) -> Result<()> {
        let extra = format!("{installed}\n{lines}\n");
        self.patch(
            "controllers.slinky.slurm.net/slurm",
            &serde_json::json!({ "spec": { "extraConf": extra } }),
        )
    }

    /// Returns the Controller's extraConf.
    pub fn extra_conf(&self) -> Result<String> {
        let controller = self.get(&["controllers.slinky.slurm.net", "slurm"])?;
        let extra = controller.pointer("/spec/extraConf").and_then(Value::as_str);
        Ok(extra.unwrap_or_default().trim_end().to_owned())
    }

    /// Returns the current value of a setting in slurmctld.
    pub fn setting(&self, name: &str) -> Result<String> {
        let shown = self.ask(&["scontrol", "show", "config"])?;
        shown
            .lines()
            .filter_map(|line| line.split_once('='))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
            .with_context(|| format!("no {name} in {shown}"))
    }

    /// Sets a key of a Secret.
    pub fn set_secret(&self, name: &str, key: &str, value: &str) -> Result<()> {
        self.patch(
            &format!("secret/{name}"),
            &serde_json::json!({ "stringData": { key: value } }),
        )
    }

    /// Waits for a condition of an object and returns its message.
    pub fn wait_condition(&self, object: &str, kind: &str, status: &str, reason: &str) -> Result<String> {
        self.wait_told(object, [kind, status, reason], &[])
    }

    /// Waits for a condition (type, status, reason) whose message contains these words: a reason can have several
    /// messages. An empty reason matches any. Returns the message.
    pub fn wait_told(
        &self,
        object: &str,
        [kind, status, reason]: [&str; 3],
        words: &[&str],
    ) -> Result<String> {
        eventually(
            &format!("{object}: {kind}={status} for the reason {reason}"),
            || {
                let object = self.get(&[object])?;
                let found = condition(&object, kind)?;
                ensure!(
                    found["status"] == status && (reason.is_empty() || found["reason"] == reason),
                    "it says {found}"
                );
                let message = found["message"].as_str().unwrap_or_default();
                ensure!(words.iter().all(|word| message.contains(word)), "it says {found}");
                Ok(message.to_owned())
            },
        )
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let Ok(name) = cluster_name() else {
            return;
        };
        // Always printed, because tests fail with an error and do not panic. The runner shows it only for failed tests.
        let mut told = format!("--- the Slurm of {} on cluster {name}\n", self.space.name);
        for words in [
            &[
                "get",
                "pods,pvc,nodesets,controllers.slinky.slurm.net",
                "--output=wide",
            ][..],
            &["get", "events", "--sort-by=.lastTimestamp"],
            &["logs", "slurm-controller-0", "--container=slurmctld", "--tail=60"],
        ] {
            let shown = self
                .space
                .kubectl(words)
                .unwrap_or_else(|error| error.to_string());
            let _ = writeln!(told, "--- kubectl {}\n{shown}", words.join(" "));
        }
        eprintln!("{told}");
    }
}

/// Adds the values of the quick start and [`LEAN`] to a helm command. The directory must exist until the command has
/// run.
pub fn lean_quick_start(helm: &mut Command, directory: &Path) -> Result<()> {
    let lean = directory.join("lean.yaml");
    std::fs::write(&lean, LEAN)?;
    helm.args(["--values", &format!("{EXAMPLES}/quickstart.yaml"), "--values"])
        .arg(lean);
    Ok(())
}

/// Returns the name of the pod that runs a node of the quick start's NodeSet.
pub fn worker_pod(node: &str) -> String {
    format!("slurm-worker-{node}")
}

/// Returns the condition of this type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Result<&'a Value> {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind)
        .with_context(|| format!("no condition {kind}"))
}

/// Returns the logs of the operator's pods.
pub fn operator_log() -> Result<String> {
    kubectl(&[
        "--namespace=slurm-operator",
        "logs",
        "--selector=app.kubernetes.io/name=slurm-operator",
        "--tail=-1",
    ])
}

/// Returns the value of a `Name=value` in the one-line output of `scontrol show`. The value ends at the next space.
fn field_of(shown: &str, field: &str) -> Option<String> {
    let start = format!("{field}=");
    shown
        .split_whitespace()
        .find_map(|word| word.strip_prefix(&start))
        .map(str::to_owned)
}
