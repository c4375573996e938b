//! Tests the operator while it is stopped, idle, replicated or killed. Other tests depend on the operator, so these
//! tests run alone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::slurm::{Slurm, condition};
use e2e::{Namespace, audit, cluster, eventually, get, kubectl, operator, run};
use serde_json::{Value, json};
use testbed::layout::Node;

const HOME: &str = "--namespace=slurm-operator";
const DEPLOYMENT: &str = "deployment/slurm-operator";
const PODS: &str = "--selector=app.kubernetes.io/name=slurm-operator";

/// The operator, scaled to a number of replicas. Dropping it scales the operator back to one.
struct Replicas;

impl Replicas {
    fn scale(count: usize) -> Result<Self> {
        kubectl(&[HOME, "scale", DEPLOYMENT, &format!("--replicas={count}")])?;
        let guard = Self;
        eventually(&format!("{count} operators"), || {
            let pods = operators()?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            ensure!(
                pods.len() == count && ready == count,
                "{ready} of {} are ready",
                pods.len()
            );
            Ok(())
        })?;
        Ok(guard)
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        let _ = kubectl(&[HOME, "scale", DEPLOYMENT, "--replicas=1"]);
        let _ = kubectl(&[HOME, "rollout", "status", DEPLOYMENT, "--timeout=180s"]);
    }
}

fn operators() -> Result<Vec<Value>> {
    let pods = get(&[HOME, "pods", PODS])?;
    let items = pods.pointer("/items").and_then(Value::as_array);
    Ok(items.cloned().unwrap_or_default())
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_ok_and(|ready| ready["status"] == "True")
}

fn leader() -> Result<String> {
    let lease = get(&[HOME, "lease", "slurm-operator"])?;
    let holder = lease.pointer("/spec/holderIdentity").and_then(Value::as_str);
    holder
        .filter(|holder| !holder.is_empty())
        .map(str::to_owned)
        .context("nobody leads")
}

/// Runs a command in a pod of the quick start's cluster.
fn in_quick_start(pod: &str, words: &[&str]) -> Result<String> {
    e2e::exec::exec("slurm", pod, None, words)
}

#[test]
fn slurm_works_while_the_operator_is_away() -> Result<()> {
    let away = Replicas::scale(0)?;
    let slurmctld = ["--namespace=slurm", "pod", "slurm-controller-0"];
    let uid = |pod: Value| pod.pointer("/metadata/uid").map(ToString::to_string);
    let before = uid(get(&slurmctld)?);
    kubectl(&["--namespace=slurm", "delete", "pod", "slurm-controller-0"])?;
    eventually("another slurmctld", || {
        let pod = get(&slurmctld)?;
        ensure!(is_ready(&pod), "it is not ready");
        ensure!(uid(pod) != before, "it is the old one");
        Ok(())
    })?;
    let printed = eventually("a job runs", || {
        in_quick_start(
            "deployment/slurm-login-users",
            &["timeout", "30", "srun", "hostname"],
        )
    })?;
    ensure!(printed.trim().starts_with("cpu-"), "{printed}");

    // A rotated key arrives without the operator, when the kubelet updates the volume.
    let status =
        "exec 3<>/dev/tcp/127.0.0.1/6816 && printf 'GET /v1/status HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3";
    let key_in_use = || {
        let said = in_quick_start("slurm-controller-0", &["bash", "-c", status])?;
        let (_, report) = said.split_once("\r\n\r\n").context("no report")?;
        let report: Value = serde_json::from_str(report.trim())?;
        anyhow::Ok(report["jwtKeyMac"].as_str().unwrap_or_default().to_owned())
    };
    let before = key_in_use()?;
    let begun = Instant::now();
    let key = format!(
        "a-key-of-{:?}-that-nobody-had-before",
        std::time::SystemTime::UNIX_EPOCH.elapsed()?
    );
    let patch = serde_json::json!({ "stringData": { "jwt.key": key } }).to_string();
    kubectl(&[
        "--namespace=slurm",
        "patch",
        "secret",
        "slurm-auth-jwt",
        "--patch",
        &patch,
    ])?;
    eventually("slurmctld goes by the new key", || {
        let now = key_in_use()?;
        ensure!(!now.is_empty() && now != before, "it goes by {now:?}");
        Ok(())
    })?;
    println!(
        "without the operator a rotated JWT key was in use after {:.0} s",
        begun.elapsed().as_secs_f32()
    );
    drop(away);
    eventually("the operator reaches Slurm with the new key", || {
        let nodesets = get(&[
            "--namespace=slurm",
            "nodesets.slinky.slurm.net",
            "slurm-worker-cpu",
        ])?;
        ensure!(condition(&nodesets, "Ready")?["status"] == "True", "not ready");
        Ok(())
    })
}

#[test]
fn another_replica_takes_over_from_a_leader_that_is_lost() -> Result<()> {
    let _two = Replicas::scale(2)?;
    let before = eventually("a leader", leader)?;
    let pods = operators()?;
    let leads = pods.iter().find(|pod| pod["metadata"]["name"] == before.as_str());
    let uid = leads.and_then(|pod| pod["metadata"]["uid"].as_str());
    let begun = Instant::now();
    operator::kill_pod(&before, uid.context("the leader is no pod")?)?;
    let after = eventually("another leader", || {
        let now = leader()?;
        ensure!(now != before, "{now} still leads");
        Ok(now)
    })?;
    println!(
        "{after} led {:.1} s after the leader was killed",
        begun.elapsed().as_secs_f32()
    );
    Ok(())
}

fn writes_while_idle(window: Duration) -> Result<()> {
    // An operator that has just started may not have begun to reconcile.
    let settled = || -> Result<()> {
        let mark = audit::mark()?;
        std::thread::sleep(Duration::from_secs(15));
        let busy: Vec<_> = writes_since(mark)?;
        ensure!(busy.is_empty(), "{busy:?}");
        ensure!(renewals_since(mark)? > 1, "no operator was there all the time");
        Ok(())
    };
    eventually("the operator has nothing to do", settled)?;
    let mark = audit::mark()?;
    std::thread::sleep(window);
    let written = writes_since(mark)?;
    ensure!(written.is_empty(), "an idle operator writes: {written:?}");
    ensure!(renewals_since(mark)? > 1, "no operator was there");
    Ok(())
}

/// Returns how often the operator renewed its Lease, which shows that it was running.
fn renewals_since(mark: audit::Mark) -> Result<usize> {
    Ok(audit::since(mark)?
        .iter()
        .filter(|call| call.user == audit::OPERATOR && call.resource == "leases" && call.is_write())
        .count())
}

/// Returns the operator's writes for the quick start's cluster.
fn writes_since(mark: audit::Mark) -> Result<Vec<audit::Call>> {
    Ok(audit::since(mark)?
        .into_iter()
        .filter(|call| call.user == audit::OPERATOR && call.is_write() && call.resource != "leases")
        .filter(|call| call.namespace == "slurm" || call.namespace.is_empty())
        .collect())
}

#[test]
fn an_idle_operator_writes_nothing() -> Result<()> {
    writes_while_idle(Duration::from_mins(1))
}

#[test]
fn an_idle_operator_writes_nothing_soak() -> Result<()> {
    writes_while_idle(Duration::from_mins(5))
}

/// Kills the operator's process with SIGKILL, as an out-of-memory kill would.
fn kill_operator() -> Result<()> {
    let pods = operators()?;
    let pod = pods.first().context("no operator")?;
    let field = |path: &str| {
        pod.pointer(path)
            .and_then(Value::as_str)
            .with_context(|| format!("no {path}"))
    };
    let id = field("/status/containerStatuses/0/containerID")?.trim_start_matches("containerd://");
    let node = Node::from_name(field("/spec/nodeName")?).context("not a machine of the testbed")?;
    let mut kill = cluster()?.in_node(node)?;
    kill.args([
        "ctr",
        "--namespace",
        "k8s.io",
        "tasks",
        "kill",
        "--signal",
        "SIGKILL",
        id,
    ]);
    run(&mut kill).map(drop)
}

const ONE_WORKER: &str = "nodesets: { cpu: { replicas: 1 } }";

/// Waits until the cluster is complete and runs a job.
fn ends_its_work(slurm: &Slurm) -> Result<()> {
    slurm.wait_idle(1)?;
    slurm.wait_condition(
        "controllers.slinky.slurm.net/slurm",
        "ConfigApplied",
        "True",
        "AsSpecified",
    )?;
    eventually("a job runs", || {
        slurm.login(&["timeout", "30", "srun", "hostname"])
    })
    .map(drop)
}

#[test]
fn an_operator_that_is_killed_while_it_creates_a_cluster_ends_its_work() -> Result<()> {
    let slurm = Slurm::install("killed", ONE_WORKER)?;
    let mut killed = 0;
    while killed < 3 {
        // Each kill comes later after the operator's start than the one before.
        std::thread::sleep(Duration::from_millis(killed * 300));
        if kill_operator().is_ok() {
            killed += 1;
        }
    }
    ends_its_work(&slurm)
}

#[test]
fn an_operator_that_is_killed_at_fifty_instants_ends_its_work_soak() -> Result<()> {
    for instant in 0..50 {
        let slurm = Slurm::install(&format!("killed-{instant}"), ONE_WORKER)?;
        std::thread::sleep(Duration::from_millis(instant * 250));
        // Also deletes the pod, because Kubernetes waits longer after each restart of a container.
        operator::kill()?;
        ends_its_work(&slurm).with_context(|| format!("killed {} ms after the release", instant * 250))?;
    }
    Ok(())
}

/// The operator dies at several points while it creates a SlurmCluster; the next one continues.
#[test]
fn a_slurm_cluster_is_finished_by_the_next_operator() -> Result<()> {
    let cluster = json!({
        "apiVersion": "keelson.dev/v1alpha1", "kind": "SlurmCluster", "metadata": { "name": "slurm" },
        "spec": {
            "confineJobs": false,
            "accounting": { "database": { "embedded": { "storage": "1Gi" } } },
            "nodeSets": { "cpu": { "replicas": 1 } },
        },
    });
    let space = Namespace::create("slc-killed")?;
    space.apply(&cluster.to_string())?;
    // Before the first child, between children, while they start, and while they become ready.
    for pause in [0, 200, 1000, 4000] {
        std::thread::sleep(Duration::from_millis(pause));
        operator::kill()?;
    }
    let slurm = Slurm::installed(space);
    slurm.wait_condition("slurmcluster.keelson.dev/slurm", "Ready", "True", "")?;
    eventually("a job", || {
        slurm.controller(&["srun", "--immediate=20", "hostname"])
    })?;
    // The key and the password were created once.
    let secrets = slurm.get(&["secrets"])?.to_string();
    ensure!(
        secrets.contains("slurm-auth-slurm") && secrets.contains("slurm-mariadb"),
        "{secrets}"
    );
    operator::wait_whole()
}
