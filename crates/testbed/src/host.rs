//! The properties of this machine, and whether a cluster can run on it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::progress::Progress;
use crate::{binaries, command};

/// Debian packages that the testbed requires; `up` installs the missing ones and nothing else.
pub const PACKAGES: &[&str] = &["iproute2", "util-linux", "procps", "ca-certificates"];

/// The free space required for a complete build and one cluster.
const DISK_TO_BUILD_GIB: u64 = 15;
/// The free space required for a cluster if everything is built.
const DISK_TO_RUN_GIB: u64 = 4;

/// The number of inotify instances that a control plane and a node use.
const INOTIFY_CONTROL_PLANE: usize = 11;
const INOTIFY_NODE: usize = 9;

const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_CHROOT: u32 = 18;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;
const CAP_MKNOD: u32 = 27;

/// The layout of the control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cgroups {
    /// All controllers are in the legacy hierarchies, or split between both. The kubelet must be configured for v1.
    V1,
    /// The unified hierarchy.
    V2,
}

impl std::fmt::Display for Cgroups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V1 => "cgroup v1 (or hybrid)",
            Self::V2 => "cgroup v2",
        })
    }
}

/// The properties of this machine that determine how components are configured.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Host {
    /// Layout of control groups.
    pub cgroups: Cgroups,
    /// Whether `oom_score_adj` may be lowered and limits raised (`CAP_SYS_RESOURCE`).
    pub may_raise_limits: bool,
}

impl Host {
    /// Inspects the machine.
    pub fn inspect() -> Result<Self> {
        let cgroups = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            Cgroups::V2
        } else {
            Cgroups::V1
        };
        Ok(Self {
            cgroups,
            may_raise_limits: capabilities()? & (1 << CAP_SYS_RESOURCE) != 0,
        })
    }

    /// A human-readable description.
    pub fn describe(&self) -> String {
        let limits = if self.may_raise_limits {
            ""
        } else {
            ", no CAP_SYS_RESOURCE (OOM scores are not changed)"
        };
        format!("{}{limits}", self.cgroups)
    }
}

/// Fails if a cluster cannot run on this machine. The error contains the remedy.
pub fn require(cache: &Cache) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "a cluster requires root (namespaces, mounts, cgroups): run this command as root"
    );
    let capabilities = capabilities()?;
    for (bit, name) in [
        (CAP_SYS_ADMIN, "CAP_SYS_ADMIN"),
        (CAP_NET_ADMIN, "CAP_NET_ADMIN"),
        (CAP_SYS_CHROOT, "CAP_SYS_CHROOT"),
        (CAP_MKNOD, "CAP_MKNOD"),
    ] {
        ensure!(
            capabilities & (1 << bit) != 0,
            "{name} is missing: run on a machine or in a container that has it (for example with --privileged)"
        );
    }
    let filesystems = fs::read_to_string("/proc/filesystems").context("failed to read /proc/filesystems")?;
    ensure!(
        filesystems
            .lines()
            .any(|line| line.trim() == "nodev\toverlay" || line.ends_with("overlay")),
        "the kernel does not support overlayfs: load it with `modprobe overlay`, or use a kernel that supports it"
    );
    let needed = if cache.has_any(binaries::KUBERNETES_BUILD) {
        DISK_TO_RUN_GIB
    } else {
        DISK_TO_BUILD_GIB
    };
    let free = free_gib(cache.root())?;
    ensure!(
        free >= needed,
        "only {free} GiB are free at {}, but {needed} GiB are required: free some space, or set KEELSON_CACHE and KEELSON_STATE to a larger disk",
        cache.root().display()
    );
    Ok(())
}

/// Fails if another cluster would run out of inotify instances: the kubelet of its last node would not start and would
/// report this only in its log.
pub fn require_inotify(nodes: u8) -> Result<()> {
    const LIMIT: &str = "/proc/sys/fs/inotify/max_user_instances";
    let limit: usize = fs::read_to_string(LIMIT)
        .with_context(|| format!("failed to read {LIMIT}"))?
        .trim()
        .parse()
        .with_context(|| format!("{LIMIT} is not a number"))?;
    let needed = INOTIFY_CONTROL_PLANE + INOTIFY_NODE * usize::from(nodes);
    let used = inotify_instances();
    ensure!(
        used + needed <= limit,
        "{used} of {limit} inotify instances are in use, but the cluster requires {needed} more: remove another cluster, or run `sysctl fs.inotify.max_user_instances={}`",
        (used + needed).next_power_of_two()
    );
    Ok(())
}

/// The inotify instances of all users, nearly all of which belong to root.
fn inotify_instances() -> usize {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    // A process that exits during the scan has none.
    let open = processes.flat_map(|process| {
        fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten()
    });
    open.filter(|file| {
        fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == "anon_inode:inotify")
    })
    .count()
}

/// Fails if the kernel does not support the network of the cluster.
pub fn require_network() -> Result<()> {
    let probe = "ip link add br0 type bridge && ip link add veth0 type veth peer name veth1 && ip link set veth0 master br0";
    ensure!(
        command::succeeds(Command::new("unshare").args(["--net", "sh", "-c", probe])),
        "the kernel cannot create bridges or veth pairs in a network namespace: load the modules with `modprobe -a bridge veth`, or use a kernel that supports them"
    );
    Ok(())
}

/// Installs the missing packages in `wanted`.
pub fn ensure_packages(progress: &Progress, log: &Path, wanted: &[&str]) -> Result<()> {
    let missing: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|package| !installed(package))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    progress.step(&format!("Debian packages: {}", missing.join(" ")), |_| {
        if !Path::new("/usr/bin/apt-get").exists() {
            bail!(
                "these Debian packages are missing, and apt-get is not available to install them: {}",
                missing.join(" ")
            );
        }
        let apt = || {
            let mut command = Command::new("apt-get");
            command.env("DEBIAN_FRONTEND", "noninteractive");
            command
        };
        command::run(apt().args(["update", "-q"]), log)
            .and_then(|()| {
                command::run(
                    apt()
                        .args(["install", "-y", "-q", "--no-install-recommends"])
                        .args(&missing),
                    log,
                )
            })
            .context("failed to install Debian packages: check the network and the package sources")
    })
}

fn installed(package: &str) -> bool {
    command::output(Command::new("dpkg-query").args(["-W", "-f", "${Status}", package]))
        .is_ok_and(|status| status.ends_with(" installed"))
}

fn capabilities() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("failed to read /proc/self/status")?;
    let field = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .context("no CapEff in /proc/self/status")?;
    u64::from_str_radix(field.trim(), 16).context("failed to parse CapEff in /proc/self/status")
}

fn free_gib(path: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(path).with_context(|| format!("failed to inspect {}", path.display()))?;
    Ok(stat.f_bavail * stat.f_frsize / (1 << 30))
}
