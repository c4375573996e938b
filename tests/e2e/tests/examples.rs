//! Installs the files in `examples/` and runs a job with each. Other tests cover the quick start, which is installed on
//! the test cluster. `gpu.yaml` needs GPUs, so `gpu-fake.yaml` runs instead, with an extended resource that has no
//! device.
#![allow(
    clippy::indexing_slicing,
    reason = "an index into JSON that is not there gives null"
)]

use anyhow::{Context, Result, ensure};
use e2e::network_policy::{Network, sockets};
use e2e::slurm::{EXAMPLES, Slurm};
use e2e::{Namespace, apply, eventually, get, kubectl, run};
use serde_json::Value;

/// Resources that let a worker of an example run next to those of other tests.
const SMALL_WORKER: &str = r#"{
    slurmd: { resources: { requests: { cpu: 10m, memory: 64Mi }, limits: { cpu: "1", memory: 512Mi } } },
    logfile: { resources: { requests: { cpu: 1m, memory: 8Mi }, limits: { cpu: 100m, memory: 32Mi } } } }"#;

/// Runs a command as a job and returns its standard output.
fn srun(slurm: &Slurm, from: &str, words: &[&str]) -> Result<String> {
    eventually(&format!("srun {}", words.join(" ")), || {
        slurm
            .space
            .exec(from, &[&["timeout", "60", "srun"], words].concat())
    })
}

#[test]
fn several_partitions_and_a_login_set_for_each_team() -> Result<()> {
    let space = Namespace::create("partitions")?;
    let values = format!("nodesets: {{ cpu: {{ replicas: 1 }}, bigmem: {SMALL_WORKER} }}");
    let slurm = Slurm::install_examples(space, &["partitions", "team-logins"], &values)?;
    slurm.wait_idle(2)?;
    for (team, partition, node) in [("physics", "bigmem", "bigmem-0"), ("chemistry", "debug", "cpu-0")] {
        let from = format!("deployment/slurm-login-{team}");
        let printed = srun(&slurm, &from, &["--partition", partition, "hostname"])?;
        ensure!(printed.trim() == node, "partition {partition}: {printed:?}");
    }
    // The partition with both NodeSets is the default, and Slurm fills nodes with a low weight first.
    let printed = srun(&slurm, "deployment/slurm-login-physics", &["hostname"])?;
    ensure!(printed.trim() == "cpu-0", "{printed:?}");
    let printed = srun(
        &slurm,
        "deployment/slurm-login-physics",
        &["--nodes=2", "hostname"],
    )?;
    ensure!(printed.lines().count() == 2, "{printed:?}");

    let physics = slurm.get(&["deployment", "slurm-login-physics"])?;
    ensure!(physics["spec"]["replicas"] == 2, "{}", physics["spec"]);
    ensure!(
        slurm.get(&["deployment", "slurm-login-users"]).is_err(),
        "the quick start's login set is there still"
    );
    Ok(())
}

#[test]
fn jobs_get_the_fake_gpus_that_they_ask_for() -> Result<()> {
    let nodes = get(&[
        "nodes",
        "--selector=!node.kubernetes.io/exclude-from-external-load-balancers",
    ])?;
    let node = nodes
        .pointer("/items/0/metadata/name")
        .and_then(|name| name.as_str())
        .context("no node")?;
    let patch = r#"{"status":{"capacity":{"example.com/fake-gpu":"2"}}}"#;
    kubectl(&[
        "patch",
        "node",
        node,
        "--subresource=status",
        "--type=merge",
        "--patch",
        patch,
    ])?;

    let space = Namespace::create("gpu-fake")?;
    let small = r"
nodesets:
  cpu: { replicas: 0 }
  gpu:
    slurmd: { resources: { requests: { cpu: 10m, memory: 64Mi } } }
    logfile: { resources: { requests: { cpu: 1m, memory: 8Mi }, limits: { cpu: 100m, memory: 32Mi } } }
";
    let slurm = Slurm::install_examples(space, &["gpu-fake"], small)?;
    slurm.wait_idle(1)?;
    let from = "deployment/slurm-login-users";
    let show = "echo $SLURM_STEP_GPUS";
    for (gres, given) in [("gpu:fake:1", "0"), ("gpu:fake:2", "0,1")] {
        let printed = srun(
            &slurm,
            from,
            &["--partition=gpu", "--gres", gres, "sh", "-c", show],
        )?;
        ensure!(printed.trim() == given, "--gres {gres}: {printed:?}");
    }
    let refused = slurm.login(&["srun", "--partition=gpu", "--gres=gpu:fake:3", "true"]);
    let refused = refused.err().context("three of two GPUs were given")?.to_string();
    ensure!(
        refused.contains("node configuration is not available"),
        "{refused}"
    );
    let pod = slurm.get(&["pod", "slurm-worker-gpu-0"])?;
    ensure!(pod["spec"]["nodeName"] == node, "{}", pod["spec"]["nodeName"]);
    Ok(())
}

#[test]
fn a_job_of_a_cluster_with_accounting_is_on_record() -> Result<()> {
    let space = Namespace::create("records")?;
    let database = std::fs::read_to_string(format!("{EXAMPLES}/mariadb.yaml"))?;
    space.apply(&database)?;
    let slurm = Slurm::install_examples(space, &["accounting"], "nodesets: { cpu: { replicas: 1 } }")?;
    slurm.wait_idle(1)?;
    let job = slurm.sbatch(&["--wait", "--job-name=recorded"], "true")?;
    eventually("the job's record", || {
        let line = [
            "sacct",
            "--noheader",
            "--allocations",
            "--parsable2",
            "--format=jobname,state",
        ];
        let line = slurm.login(&[&line[..], &["--jobs", &job]].concat())?;
        ensure!(line.trim() == "recorded|COMPLETED", "{line:?}");
        Ok(())
    })?;
    only_slurm_reaches_slurm(&slurm)
}

/// Evaluates the network policies that the example enables, for the cluster's pods and open connections. The test
/// cluster's network does not enforce policies.
fn only_slurm_reaches_slurm(slurm: &Slurm) -> Result<()> {
    let here = slurm.space.name.as_str();
    for object in [
        "restapis.slinky.slurm.net/slurm",
        "loginsets.slinky.slurm.net/slurm-login-users",
    ] {
        slurm.wait_condition(object, "Ready", "True", "")?;
    }
    slurm.space.apply(&format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "stranger", "labels": {{"app": "stranger"}}}},
             "spec": {{"containers": [{{"name": "sleep", "image": "{}", "command": ["sleep", "3600"]}}]}}}}"#,
        e2e::tools_image()
    ))?;
    let network = network_of(here)?;
    let operator = network.pod("slurm-operator", "slurm-operator-")?;
    let stranger = network.pod(here, "stranger")?;
    for (server, port) in [
        ("slurm-controller-", 6817),
        ("slurm-controller-", 6816),
        ("slurm-accounting-", 6819),
        ("slurm-restapi-", 6820),
        ("slurm-worker-cpu-", 6818),
        ("mariadb-", 3306),
    ] {
        let server = network.pod(here, server)?;
        ensure!(
            !network.lets(stranger, server, port)?,
            "a stranger reaches {port}"
        );
    }
    ensure!(
        network.lets(stranger, network.pod(here, "slurm-login-")?, 22)?,
        "nobody can log in"
    );
    for (server, port) in [("slurm-controller-", 6816), ("slurm-restapi-", 6820)] {
        ensure!(
            network.lets(operator, network.pod(here, server)?, port)?,
            "the operator and {port}"
        );
    }
    // A retry lists the pods again, because a pod may be replaced while its sockets are read.
    eventually("connections that the policies allow", || {
        only_allowed_connections(slurm, &network_of(here)?)
    })
}

/// Returns the policies of a namespace, and all pods.
fn network_of(namespace: &str) -> Result<Network> {
    let list = |words: &[&str]| -> Result<Vec<Value>> {
        let list = get(words)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    };
    Ok(Network {
        policies: list(&["--namespace", namespace, "networkpolicies"])?,
        pods: list(&["--all-namespaces", "pods"])?,
    })
}

/// Fails if Slurm's pods have open connections that the policies forbid.
fn only_allowed_connections(slurm: &Slurm, network: &Network) -> Result<()> {
    let servers = network.pods.iter().filter(|pod| {
        pod["metadata"]["namespace"] == slurm.space.name.as_str()
            && pod["metadata"]["name"] != "stranger"
            && pod["metadata"]["deletionTimestamp"].is_null()
    });
    let mut seen = 0;
    for server in servers {
        let name = server["metadata"]["name"]
            .as_str()
            .context("a pod without name")?;
        let sockets = sockets(&slurm.space.exec(name, &["cat", "/proc/net/tcp"])?);
        let listening: Vec<u64> = sockets
            .iter()
            .filter(|socket| socket.listens)
            .map(|socket| socket.port)
            .collect();
        for socket in sockets
            .iter()
            .filter(|socket| !socket.listens && listening.contains(&socket.port))
        {
            let client = network
                .pods
                .iter()
                .find(|pod| pod["status"]["podIP"] == socket.remote.0.as_str());
            if let Some(client) = client {
                seen += 1;
                ensure!(
                    network.lets(client, server, socket.port)?,
                    "{} has a connection to {name}:{}, which the policies forbid",
                    client["metadata"]["name"],
                    socket.port
                );
            }
        }
    }
    ensure!(seen > 0, "not one connection was seen");
    Ok(())
}

#[test]
fn a_cluster_with_a_second_slurmctld_runs_a_job() -> Result<()> {
    let space = Namespace::create("two-slurmctld")?;
    let slurm = Slurm::install_examples(space, &["ha"], "nodesets: { cpu: { replicas: 1 } }")?;
    slurm.wait_idle(1)?;
    let printed = srun(&slurm, "deployment/slurm-login-users", &["hostname"])?;
    ensure!(printed.trim() == "cpu-0", "{printed:?}");
    eventually("two slurmctld that answer", || {
        let ping = slurm.login(&["scontrol", "ping"])?;
        ensure!(ping.matches(" is UP").count() == 2, "{ping}");
        Ok(())
    })?;
    eventually("two slurmrestd", || {
        let rest = slurm.get(&["deployment", "slurm-restapi"])?;
        ensure!(rest["status"]["readyReplicas"] == 2, "{}", rest["status"]);
        Ok(())
    })
}

/// Uses a slurmctld in another namespace as the external slurmctld. It is a separate release.
#[test]
fn workers_serve_a_slurmctld_that_runs_elsewhere() -> Result<()> {
    let elsewhere = Slurm::install(
        "elsewhere",
        r"
clusterName: prod
controller:
  extraConf: |
    ProctrackType=proctrack/linuxproc
    TaskPlugin=task/affinity
    JobAcctGatherType=jobacct_gather/linux
    ReturnToService=2
    NodeSet=cpu Feature=cpu
    PartitionName=cpu Nodes=cpu Default=YES
partitions: { all: { enabled: false } }
nodesets: { cpu: { enabled: false } }
loginsets: { users: { enabled: false } }
",
    )?;
    eventually("keys over there", || {
        elsewhere.get(&["secret", "slurm-auth-slurm", "slurm-auth-jwt"])
    })?;
    let space = Namespace::create("workers")?;
    let keys: Vec<Value> = [("slurm-auth-slurm", "slurm.key"), ("slurm-auth-jwt", "jwt.key")]
        .into_iter()
        .map(|(name, key)| {
            let secret = elsewhere.get(&["secret", name])?;
            Ok(secret["data"][key].clone())
        })
        .collect::<Result<_>>()?;
    let secret = serde_json::json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "slurm-keys" },
        "data": { "slurm.key": keys[0], "jwt.key": keys[1] },
    });
    space.apply(&secret.to_string())?;
    let values = format!(
        "{{ controller: {{ externalConfig: {{ host: slurm-controller.{} }} }}, nodesets: {{ cpu: {{ replicas: 1 }} }} }}",
        elsewhere.space.name
    );
    let workers = Slurm::install_examples(space, &["external-slurmctld"], &values)?;
    elsewhere.wait_idle(1)?;
    let printed = srun(&workers, "deployment/slurm-login-users", &["hostname"])?;
    ensure!(printed.trim() == "cpu-0", "{printed:?}");
    // The operator drains workers through a slurmrestd that is connected to the external slurmctld.
    workers.upgrade(&values.replace("replicas: 1", "replicas: 0"))?;
    eventually("the worker's orderly leave", || {
        let pods = workers.workers()?;
        ensure!(pods.is_empty(), "{pods:?}");
        Ok(())
    })?;
    run(e2e::cluster()?
        .helm()
        .args(["uninstall", "slurm", "--namespace", &workers.space.name]))
    .map(drop)
}

#[test]
fn objects_written_by_hand_are_a_whole_cluster() -> Result<()> {
    let space = Namespace::create("manifests")?;
    let manifest = std::fs::read_to_string(format!("{EXAMPLES}/manifests.yaml"))?;
    apply(&space.name, &manifest)?;
    let slurm = Slurm::installed(space);
    let nodes = slurm.wait_idle(2)?;
    ensure!(nodes == ["node-0", "node-1"], "{nodes:?}");
    let printed = srun(
        &slurm,
        "deployment/login",
        &["--partition=node", "--nodes=2", "hostname"],
    )?;
    ensure!(printed.lines().count() == 2, "{printed:?}");
    Ok(())
}
