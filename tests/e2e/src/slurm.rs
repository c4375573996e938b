//! A Slurm of the test's own: the charts' release `slurm` in a namespace that goes away with the test.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{Namespace, api, cluster, cluster_name, eventually, eventually_within, kubectl, run};

/// The chart under test.
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/slurm");
/// Values files that users start from.
pub const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// The quick start's set of workers.
pub const NODESET: &str = "nodeset.slinky.slurm.net/slurm-worker-cpu";

/// What the quick start has for its user and the tests do without, each of which has a cluster of its own: a database, homes, users.
/// Laid right over it, so that examples bring back what they need.
pub const LEAN: &str = r"
accounting: { enabled: false }
loginsetDefaults: { login: { volumeMounts: [] }, podSpec: { volumes: [] } }
nodesetDefaults: { slurmd: { volumeMounts: [] }, podSpec: { volumes: [] } }
nodesets: { cpu: { replicas: 2 } }
";

/// What makes the quick start's pods small enough for several Slurms on the test cluster. slurmrestd's probe starts a process, so it
/// comes less often.
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

/// A Slurm cluster as the quick start makes it, with changes of the test's own.
#[derive(Debug)]
pub struct Slurm {
    /// Where it is installed.
    pub space: Namespace,
    /// Value files of `examples/` that are laid over the quick start, without their suffix.
    examples: Vec<String>,
}

impl Slurm {
    /// Installs the quick start with more values (YAML) on top.
    pub fn install(test: &str, values: &str) -> Result<Self> {
        Self::install_examples(Namespace::create(test)?, &[], values)
    }

    /// Installs the quick start with these examples laid over it, then the values, in a namespace that is there.
    pub fn install_examples(space: Namespace, examples: &[&str], values: &str) -> Result<Self> {
        let slurm = Self {
            space,
            examples: examples.iter().map(|&name| name.to_owned()).collect(),
        };
        slurm.helm("install", values)?;
        Ok(slurm)
    }

    /// A Slurm that was installed in another way, as release `slurm`.
    pub fn installed(space: Namespace) -> Self {
        Self {
            space,
            examples: Vec::new(),
        }
    }

    /// Installs once more what was uninstalled.
    pub fn install_again(&self, values: &str) -> Result<()> {
        self.helm("install", values)
    }

    /// Installs and waits until this many workers are idle.
    pub fn install_ready(test: &str, values: &str, workers: usize) -> Result<Self> {
        let slurm = Self::install(test, values)?;
        slurm.wait_idle(workers)?;
        Ok(slurm)
    }

    /// Changes the release's values, as a user would.
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

    /// Reads an object of the namespace.
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

    /// Runs a command beside slurmctld, where it works while login and slurmrestd do not.
    pub fn controller(&self, words: &[&str]) -> Result<String> {
        self.space.exec_in("slurm-controller-0", "slurmctld", words)
    }

    /// The same for what may be said twice. slurmctld does not answer in the moment in which it starts or takes a configuration in.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        eventually_within(Duration::from_secs(30), "an answer of slurmctld", || {
            self.controller(words)
        })
    }

    /// Waits until exactly these many workers are idle.
    pub fn wait_idle(&self, count: usize) -> Result<Vec<String>> {
        eventually(&format!("{count} idle workers"), || {
            // Chosen here: sinfo counts a drained node without jobs as idle, too.
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

    /// Submits a batch job and returns its number.
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

    /// Lets the jobs of [`Slurm::hold`] on this node end.
    pub fn open(&self, node: &str) -> Result<()> {
        let pod = self.pod_of(node)?;
        eventually("a word to the job", || {
            self.space.exec_in(&pod, "slurmd", &["touch", "/tmp/open"])
        })
        .map(drop)
    }

    /// Watches for a while that nothing happens to a worker and its job.
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

    /// Waits until Slurm gives no new jobs to a node, and returns the reason.
    pub fn wait_drain(&self, node: &str) -> Result<String> {
        eventually(&format!("the drain of {node}"), || {
            let state = self.node_field(node, "State")?;
            ensure!(state.contains("DRAIN"), "{node} is {state}");
            self.node_reason(node)
        })
    }

    /// The whole reason that a node's state was given.
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

    /// The uid of a worker's pod.
    pub fn worker(&self, node: &str) -> Result<String> {
        let pod = worker_pod(node);
        self.workers()?
            .remove(&pod)
            .with_context(|| format!("there is no pod {pod}"))
    }

    /// A job's state as slurmctld has it.
    pub fn job_state(&self, job: &str) -> Result<String> {
        self.job_field(job, "JobState")
    }

    /// One field of `scontrol show job`.
    pub fn job_field(&self, job: &str, field: &str) -> Result<String> {
        let shown = self.ask(&["scontrol", "--oneliner", "show", "job", job])?;
        field_of(&shown, field).with_context(|| format!("job {job} has no {field}: {shown}"))
    }

    /// One field of `scontrol show node`.
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

    /// The uid of each worker pod, by name: another uid is another pod.
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

    /// Every pod that this selector finds: its uid and how often its containers were restarted. Equal means untouched.
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

    /// Adds lines to the Controller's extraConf as it was installed.
    pub fn add_conf(&self, installed: &str, lines: &str) -> Result<()> {
        let extra = format!("{installed}\n{lines}\n");
        self.patch(
            "controllers.slinky.slurm.net/slurm",
            &serde_json::json!({ "spec": { "extraConf": extra } }),
        )
    }

    /// The Controller's extraConf.
    pub fn extra_conf(&self) -> Result<String> {
        let controller = self.get(&["controllers.slinky.slurm.net", "slurm"])?;
        let extra = controller.pointer("/spec/extraConf").and_then(Value::as_str);
        Ok(extra.unwrap_or_default().trim_end().to_owned())
    }

    /// One setting as slurmctld has it now.
    pub fn setting(&self, name: &str) -> Result<String> {
        let shown = self.ask(&["scontrol", "show", "config"])?;
        shown
            .lines()
            .filter_map(|line| line.split_once('='))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
            .with_context(|| format!("no {name} in {shown}"))
    }

    /// Puts a value into a Secret.
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

    /// Waits for a condition (type, status, reason) with these words in its message: one reason may be told of in several ways.
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
        // Tests end with an error, not with a panic, so this is printed always; the runner shows it when they fail.
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

/// Gives helm the values of the quick start, [`LEAN`], from a directory that outlives the command.
pub fn lean_quick_start(helm: &mut Command, directory: &Path) -> Result<()> {
    let lean = directory.join("lean.yaml");
    std::fs::write(&lean, LEAN)?;
    helm.args(["--values", &format!("{EXAMPLES}/quickstart.yaml"), "--values"])
        .arg(lean);
    Ok(())
}

/// The pod that serves a node of the quick start's workers.
pub fn worker_pod(node: &str) -> String {
    format!("slurm-worker-{node}")
}

/// The condition of this type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Result<&'a Value> {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind)
        .with_context(|| format!("no condition {kind}"))
}

/// The operator's pods' log, for tests that look for what must not be in it.
pub fn operator_log() -> Result<String> {
    kubectl(&[
        "--namespace=slurm-operator",
        "logs",
        "--selector=app.kubernetes.io/name=slurm-operator",
        "--tail=-1",
    ])
}

/// `Name=value` of a one-line `scontrol show`; the value ends at the next blank.
fn field_of(shown: &str, field: &str) -> Option<String> {
    let start = format!("{field}=");
    shown
        .split_whitespace()
        .find_map(|word| word.strip_prefix(&start))
        .map(str::to_owned)
}
