//! The namespaces of a cluster, and the processes that keep them alive.
//!
//! The control plane and every node are one process tree each, in their own network, mount, pid, uts and ipc
//! namespaces. None of these has a name on this machine: when the first process of a tree exits, the kernel kills the
//! others and removes mounts and interfaces. Trees are identified by a variable in their environment, so `down` also
//! works after a crash.

use std::fs::{self, OpenOptions};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::layout::Layout;

/// The variable that identifies the processes of a cluster: `<cluster directory>|<role>`.
pub const MARK: &str = "KEELSON_TESTBED";

/// The role of the control plane tree. The role of a node is its name.
pub const CONTROL_PLANE: &str = "control-plane";

/// The first process of a tree, as seen from this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// `control-plane`, or the name of a node.
    pub role: String,
    /// Its process id.
    pub pid: i32,
}

/// Starts a tree. `api` is the listener on the loopback interface of this machine that the control plane serves.
pub fn spawn(layout: &Layout, role: &str, api: Option<TcpListener>) -> Result<Tree> {
    fs::create_dir_all(layout.logs())?;
    let log_path = layout.log(&format!("{role}-init"));
    let log = OpenOptions::new().create(true).append(true).open(&log_path)?;
    let mut command = Command::new("setsid");
    command
        .args([
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--fork",
            "--kill-child=SIGKILL",
        ])
        .arg(layout.program())
        .arg("testbed-init")
        .arg(layout.root())
        .arg(role)
        .env(MARK, mark(layout, role))
        .current_dir("/")
        // A socket keeps the network namespace in which it was created. This is the only access from outside.
        .stdin(api.map_or_else(Stdio::null, |listener| Stdio::from(OwnedFd::from(listener))))
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut child = command
        .spawn()
        .context("failed to start setsid and unshare: check that util-linux is installed")?;
    let begun = Instant::now();
    loop {
        if let Some(tree) = trees(layout)?.into_iter().find(|tree| tree.role == role) {
            return Ok(tree);
        }
        if let Some(status) = child.try_wait()? {
            bail!(
                "{role} exited immediately ({status}); see {}:\n{}",
                log_path.display(),
                crate::command::tail(&log_path)
            );
        }
        if begun.elapsed() > Duration::from_secs(20) {
            bail!("{role} did not start within 20 s; see {}", log_path.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The running trees of the cluster.
pub fn trees(layout: &Layout) -> Result<Vec<Tree>> {
    let mut trees: Vec<Tree> = marked(layout)?
        .into_iter()
        .filter(|(tree, first)| *first && !tree.role.is_empty())
        .map(|(tree, _)| tree)
        .collect();
    trees.sort_by(|a, b| a.role.cmp(&b.role));
    Ok(trees)
}

/// Kills all processes of the cluster and waits until they have exited.
pub fn end(layout: &Layout) -> Result<()> {
    let begun = Instant::now();
    loop {
        let mut processes = marked(layout)?;
        if processes.is_empty() {
            return Ok(());
        }
        // The exit of the first process also ends the rest of its tree.
        processes.sort_by_key(|(_, first)| !first);
        for (tree, _) in &processes {
            if let Some(pid) = Pid::from_raw(tree.pid) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        if begun.elapsed() > Duration::from_secs(30) {
            let left: Vec<String> = processes.iter().map(|(tree, _)| tree.pid.to_string()).collect();
            bail!(
                "processes {} of cluster {} do not exit; inspect them with `ps -fp`",
                left.join(" "),
                layout.name()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A command that runs in all namespaces of a tree, or only in its network namespace.
pub fn inside(tree: &Tree, all: bool) -> Command {
    let mut command = Command::new("nsenter");
    command.arg("--target").arg(tree.pid.to_string()).arg("--net");
    if all {
        command.args(["--mount", "--pid", "--uts", "--ipc", "--root", "--wd"]);
    }
    command.arg("--");
    command
}

fn mark(layout: &Layout, role: &str) -> String {
    format!("{}|{role}", layout.root().display())
}

/// All processes of the cluster, and whether each is the first process in a pid namespace.
fn marked(layout: &Layout) -> Result<Vec<(Tree, bool)>> {
    let prefix = format!("{MARK}={}", mark(layout, ""));
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("failed to read /proc")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        // Processes start and exit during the scan: if one cannot be read, it no longer exists.
        let Ok(environment) = fs::read(entry.path().join("environ")) else {
            continue;
        };
        let Some(role) = environment
            .split(|&byte| byte == 0)
            .find_map(|variable| std::str::from_utf8(variable).ok()?.strip_prefix(&prefix))
        else {
            continue;
        };
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else {
            continue;
        };
        if status.lines().any(|line| line.starts_with("State:\tZ")) {
            continue;
        }
        let ids: Vec<&str> = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .map(|ids| ids.split_whitespace().collect())
            .unwrap_or_default();
        let first = ids.len() > 1 && ids.last() == Some(&"1");
        found.push((
            Tree {
                role: role.to_owned(),
                pid,
            },
            first,
        ));
    }
    Ok(found)
}
