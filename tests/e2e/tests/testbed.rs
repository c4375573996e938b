//! Tests the testbed: its clusters behave like any Kubernetes cluster, and leave nothing behind on the machine.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use e2e::forward::Forward;
use e2e::{Namespace, cluster, eventually, run, tools_image, xtask};

/// Returns a pod that runs a script with bash.
fn pod(name: &str, node: &str, script: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": tools_image(), "imagePullPolicy": "Never",
                "command": ["bash", "-c", script]}],
        },
    })
    .to_string()
}

/// An HTTP server in Perl, which every Debian base system contains. Bash cannot listen on a port.
const SERVE: &str = r#"exec perl -MIO::Socket::INET -e '
  my $server = IO::Socket::INET->new(LocalPort => 8080, Listen => 5, ReuseAddr => 1) or die;
  $| = 1; print "serving\n";
  while (my $client = $server->accept) { 1 while defined($_ = <$client>) && !/^\r?\n$/; print $client "HTTP/1.0 200 OK\r\n\r\nahoy\n"; close $client }'"#;

#[test]
fn pods_on_two_nodes_talk_by_service_name() -> Result<()> {
    let space = Namespace::create("talk")?;
    space.apply(&pod("server", "node-1", SERVE))?;
    space.apply(&pod("client", "node-2", "sleep infinity"))?;
    space.apply(
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"},
            "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]}}"#,
    )?;
    space.wait_ready("pod/server")?;
    space.wait_ready("pod/client")?;
    let get = "exec 3<>/dev/tcp/server/80 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3";
    let answer = eventually("an answer by Service name", || {
        space.exec("client", &["bash", "-c", get])
    })?;
    ensure!(answer.ends_with("ahoy\n"), "{answer:?}");
    Ok(())
}

#[test]
fn a_claim_is_bound_and_its_data_outlives_the_pod() -> Result<()> {
    let space = Namespace::create("claim")?;
    for (claim, mode) in [("once", "ReadWriteOnce"), ("many", "ReadWriteMany")] {
        space.apply(&format!(
            r#"{{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {{"name": "{claim}"}},
                "spec": {{"accessModes": ["{mode}"], "resources": {{"requests": {{"storage": "1Mi"}}}}}}}}"#
        ))?;
    }
    let with_volume = |node: &str| {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "holder"},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 0,
                "securityContext": {"runAsUser": 401, "runAsGroup": 401, "fsGroup": 401},
                "containers": [{"name": "main", "image": tools_image(), "imagePullPolicy": "Never",
                    "command": ["sleep", "infinity"],
                    "volumeMounts": [{"name": "once", "mountPath": "/once"}, {"name": "many", "mountPath": "/many"}]}],
                "volumes": [
                    {"name": "once", "persistentVolumeClaim": {"claimName": "once"}},
                    {"name": "many", "persistentVolumeClaim": {"claimName": "many"}}],
            },
        })
        .to_string()
    };
    // The file is written on one node, by a user other than root, and read on another node.
    space.apply(&with_volume("node-1"))?;
    space.wait_ready("pod/holder")?;
    space.exec("holder", &["bash", "-c", "echo kept | tee /once/file /many/file"])?;
    space.kubectl(&["delete", "pod", "holder"])?;
    space.apply(&with_volume("node-2"))?;
    space.wait_ready("pod/holder")?;
    let kept = space.exec("holder", &["cat", "/once/file", "/many/file"])?;
    ensure!(kept == "kept\nkept\n", "{kept:?}");
    Ok(())
}

#[test]
fn exec_logs_and_port_forward_work() -> Result<()> {
    let space = Namespace::create("reach")?;
    space.apply(&pod("server", "node-2", SERVE))?;
    space.wait_ready("pod/server")?;
    ensure!(space.kubectl(&["exec", "server", "--", "hostname"])? == "server\n");
    eventually("the server's log line", || {
        let log = space.kubectl(&["logs", "server"])?;
        ensure!(log == "serving\n", "{log:?}");
        Ok(())
    })?;
    let forward = Forward::open(&space.name, "pod/server", 8080)?;
    let mut connection = TcpStream::connect(("127.0.0.1", forward.port))?;
    connection.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    ensure!(answer.ends_with("ahoy\n"), "{answer:?}");
    Ok(())
}

#[test]
fn no_packet_leaves_the_cluster() -> Result<()> {
    let space = Namespace::create("closed")?;
    space.apply(&pod("client", "node-1", "sleep infinity"))?;
    space.wait_ready("pod/client")?;
    // An address reserved for documentation. It must be unreachable from pods, and the control plane must have no
    // default route.
    let connect = "timeout 5 bash -c 'exec 3<>/dev/tcp/192.0.2.1/80' 2>&1; echo $?";
    let answer = space.exec("client", &["bash", "-c", connect])?;
    ensure!(
        answer.contains("unreachable") || answer.contains("No route"),
        "{answer:?}"
    );
    let routes = run(cluster()?
        .in_control_plane()?
        .args(["ip", "route", "show", "default"]))?;
    ensure!(
        routes.is_empty(),
        "the control plane has a default route: {routes}"
    );
    Ok(())
}

/// Returns the state of this machine that a cluster could change: namespaces, routes, links, mounts, cgroups and
/// sysctls.
fn machine() -> Result<BTreeSet<String>> {
    let mut seen = BTreeSet::new();
    let mut add = |kind: &str, text: String| seen.extend(text.lines().map(|line| format!("{kind} {line}")));
    add("netns", run(Command::new("ip").args(["netns", "list"]))?);
    add(
        "route",
        run(Command::new("ip").args(["route", "show", "table", "all"]))?,
    );
    add("link", run(Command::new("ip").args(["-brief", "link"]))?);
    add(
        "mount",
        std::fs::read_to_string("/proc/self/mountinfo")?
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .collect::<Vec<_>>()
            .join("\n"),
    );
    add(
        "cgroup",
        run(Command::new("find").args(["/sys/fs/cgroup", "-type", "d", "-path", "*keelson*"]))?,
    );
    for name in [
        "vm/overcommit_memory",
        "kernel/panic",
        "kernel/panic_on_oops",
        "net/ipv4/ip_forward",
    ] {
        add(name, std::fs::read_to_string(Path::new("/proc/sys").join(name))?);
    }
    Ok(seen)
}

fn processes_of(name: &str) -> Result<usize> {
    let layout = testbed::layout::Layout::of(name)?;
    Ok(testbed::namespaces::trees(&layout)?.len())
}

fn up(name: &str) -> Result<Command> {
    let mut command = xtask()?;
    command.args(["up", "--no-slurm", "--nodes=1", "--kwok=2", "--name", name]);
    // Use the images that the tests already use, so that no others are built.
    if std::env::var_os("KEELSON_TEST_QUICK").is_some() {
        command.arg("--quick");
    }
    Ok(command)
}

#[test]
fn a_cluster_beside_another_leaves_nothing_behind_even_when_its_start_is_killed() -> Result<()> {
    let name = format!("gone-{}", std::process::id());
    // Other tests use the shared cluster at the same time, so only cgroups of this cluster count.
    let mine = |all: &BTreeSet<String>| -> BTreeSet<String> {
        all.iter()
            .filter(|line| !line.starts_with("cgroup") || line.contains(&name))
            .cloned()
            .collect()
    };
    let before = mine(&machine()?);

    // Kill `up` as soon as the cluster has processes.
    let mut half = Guard(up(&name)?.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    eventually("the first processes", || {
        ensure!(processes_of(&name)? > 0, "none yet");
        Ok(())
    })?;
    half.0.kill()?;
    half.0.wait()?;
    ensure!(
        processes_of(&name)? > 0,
        "nothing outlived the killed start, so this test shows nothing"
    );

    // A second `up` repairs the cluster; a third reports that it is already running.
    run(&mut up(&name)?)?;
    let again = up(&name)?.output()?;
    let said = String::from_utf8_lossy(&again.stderr);
    ensure!(
        again.status.success() && said.contains("already running"),
        "{said}"
    );
    let on_it = |words: &[&str]| run(xtask()?.args(["kubectl", "--name", &name]).args(words));
    let nodes = on_it(&["get", "nodes", "--output=name"])?;
    ensure!(nodes == "node/kwok-0\nnode/kwok-1\nnode/node-1\n", "{nodes:?}");
    on_it(&["wait", "nodes", "--all", "--for=condition=Ready", "--timeout=60s"])?;

    run(xtask()?.args(["down", "--name", &name]))?;
    ensure!(processes_of(&name)? == 0, "processes are left");
    let after = mine(&machine()?);
    let left: Vec<_> = after.symmetric_difference(&before).collect();
    ensure!(left.is_empty(), "the machine is not as it was: {left:?}");
    // The other cluster still runs.
    e2e::api::raw("/readyz").map(drop)
}

/// Uses a testbed cluster as an existing cluster, by its kubeconfig. This replaces the operator, so the test runs
/// alone.
#[test]
fn slurm_comes_up_on_a_cluster_that_is_there_already() -> Result<()> {
    let said = run(xtask()?
        .args(["up", "--kubeconfig"])
        .arg(cluster()?.layout().kubeconfig()))?;
    ensure!(said.contains("record in sacct"), "{said}");
    printed_commands_work(&said)
}

/// Runs the commands that `up` prints for the quick start's user.
fn printed_commands_work(said: &str) -> Result<()> {
    let mut printed = said
        .lines()
        .map(str::trim)
        .skip_while(|line| !line.starts_with("as anna"));
    let way_in = printed.next().context("no way in was printed")?;
    let way_in = way_in
        .trim_start_matches("as anna")
        .trim()
        .replace("kubectl ", "");
    let commands: Vec<&str> = printed.collect();
    ensure!(commands.len() == 3, "{said}");
    // Wait for the job, because the next commands need its results.
    let script = commands.join("\n").replacen("sbatch", "sbatch --wait", 1);
    let mut session = cluster()?
        .kubectl()
        .args(way_in.split(' ').filter(|&word| word != "--tty"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    session
        .stdin
        .take()
        .context("no standard input")?
        .write_all(script.as_bytes())?;
    let output = session.wait_with_output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    for expected in ["Submitted batch job", "cpu-2", "COMPLETED"] {
        ensure!(printed.contains(expected), "no {expected:?} in {printed}");
    }
    Ok(())
}

#[test]
fn bad_input_is_refused_with_a_remedy() -> Result<()> {
    for (words, expected) in [
        (&["up", "--name", "Not_A_Name"][..], "lowercase letters"),
        (
            &["up", "--no-slurm", "--nodes", "41", "--name", "many"],
            "40 real nodes",
        ),
        (
            &["kubectl", "--name", "nobody", "get", "nodes"],
            "cargo xtask up --name nobody",
        ),
        (&["up", "--kubeconfig", "/nonexistent"], "no such file"),
        (
            &["kubectl", "get", "nodes", "--name", "nobody"],
            "`cargo xtask kubectl --name nobody get nodes`",
        ),
    ] {
        let output = xtask()?.args(words).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "{words:?} was accepted");
        ensure!(
            said.contains(expected),
            "{words:?} said {said:?}, not {expected:?}"
        );
    }
    Ok(())
}

#[test]
fn a_cluster_that_is_not_there_is_the_same_error_for_every_command() -> Result<()> {
    for words in [
        &["status"][..],
        &["down"],
        &["logs"],
        &["kubectl"],
        &["helm"],
        &["shell"],
    ] {
        let output = xtask()?.args(words).args(["--name", "nobody"]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "{words:?} was accepted");
        ensure!(
            said.starts_with("error: cluster \"nobody\" does not exist; existing clusters: ")
                && said.contains("cargo xtask up --name nobody"),
            "{words:?} said {said:?}"
        );
    }
    Ok(())
}

#[test]
fn ctrl_c_says_what_is_left_and_how_to_go_on() -> Result<()> {
    let name = format!("stopped-{}", std::process::id());
    let child = up(&name)?.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut half = Guard(child);
    eventually("the first processes", || {
        ensure!(processes_of(&name)? > 0, "none yet");
        Ok(())
    })?;
    run(Command::new("kill").args(["-INT", &half.0.id().to_string()]))?;
    let mut said = String::new();
    half.0
        .stderr
        .take()
        .context("no standard error")?
        .read_to_string(&mut said)?;
    let status = half.0.wait()?;
    run(xtask()?.args(["down", "--name", &name]))?;
    ensure!(status.code() == Some(130), "{status}: {said}");
    for expected in ["Interrupted.", "cargo xtask up --name", "cargo xtask down --name"] {
        ensure!(said.contains(expected), "no {expected:?} in {said}");
    }
    Ok(())
}

#[test]
fn status_tells_how_slurm_is_doing() -> Result<()> {
    let name = e2e::cluster_name()?;
    eventually("Slurm in the status", || {
        let said = run(xtask()?.args(["status", "--name", name]))?;
        let at = said
            .find("slurm_slurm in namespace slurm\n")
            .with_context(|| said.clone())?;
        let lines: Vec<&str> = said[at..].lines().skip(1).take(3).collect();
        ensure!(
            matches!(lines[..], [nodes, queue, accounting]
                if nodes.starts_with("  nodes       ") && nodes.ends_with(" idle")
                    && queue.starts_with("  queue       ") && accounting == "  accounting  recording"),
            "{lines:?}"
        );
        Ok(())
    })
}

/// A child process that is killed when it is dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
