//! Real Slurm daemons for one test: slurmctld, slurmrestd, and optionally slurmdbd with its database and one slurmd,
//! in their own network, mount, pid and uts namespaces. All daemons end when the value is dropped, or when the
//! process that owns it exits for any reason.
//!
//! The daemons come from a root file system that contains Slurm, at the path in `KEELSON_TEST_SLURM_ROOT_2605` or
//! `KEELSON_TEST_SLURM_ROOT_2411`. It is read-only: every cluster writes to its own layer.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

mod daemons;

/// The address of slurmrestd in the network namespace of the cluster.
pub const REST_URL: &str = "http://127.0.0.1:6820";
/// The host name inside, which is also the name of the only real node.
pub const HOST: &str = "n0";
/// An address inside that is not loopback: Slurm resolves no names if there is only a loopback interface.
pub const ADDRESS: &str = "10.77.0.1";
/// The cluster name in the default configuration.
pub const CLUSTER: &str = "test";

/// A Slurm release that tests run against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// 24.11
    V2411,
    /// 26.05
    V2605,
}

impl Release {
    /// The variable with the path of the root file system for this release.
    pub fn variable(self) -> &'static str {
        match self {
            Self::V2411 => "KEELSON_TEST_SLURM_ROOT_2411",
            Self::V2605 => "KEELSON_TEST_SLURM_ROOT_2605",
        }
    }

    /// The root file system, or `None` with a message if it does not exist. In CI this is an error, because a skipped
    /// test must not look like a passed one.
    pub fn root(self) -> Result<Option<PathBuf>> {
        let variable = self.variable();
        match std::env::var_os(variable).map(PathBuf::from) {
            // In Debian it is a link that can be resolved only inside the root file system.
            Some(root) if root.join("usr/sbin/slurmctld").symlink_metadata().is_ok() => Ok(Some(root)),
            Some(root) => bail!(
                "{variable} is set to {}, which does not contain slurmctld",
                root.display()
            ),
            None if std::env::var("CI").is_ok_and(|ci| ci == "true") => bail!("{variable} is not set"),
            None => {
                eprintln!("skipped: {variable} is not set to a root file system that contains Slurm");
                Ok(None)
            }
        }
    }
}

/// The specification of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// slurm.conf; a minimal one if `None`.
    pub slurm_conf: Option<String>,
    /// Additional lines for the minimal one.
    pub extra_conf: String,
    /// Other files in /etc/slurm.
    pub files: Vec<(String, String)>,
    /// slurmdbd.conf; if set, a database and slurmdbd are started.
    pub slurmdbd_conf: Option<String>,
    /// Password of the database user `slurm`.
    pub database_password: String,
    /// `--conf` of one real slurmd that registers as a dynamic node.
    pub slurmd: Option<String>,
    /// Starts slurmctld like a service manager, so that it keeps running after a failed reconfiguration.
    pub managed: bool,
}

/// A running cluster.
#[derive(Debug)]
pub struct Slurm {
    release: Release,
    /// The process that ends the namespaces when its standard input closes.
    holder: Child,
    /// The first process inside, by its pid outside.
    inside: u32,
    daemons: Vec<(&'static str, Child)>,
    /// The receiver of the notifications from a managed slurmctld.
    manager: Option<UnixDatagram>,
}

/// Creates the namespaces and the layered root, then waits until its input is closed.
/// $1: the read-only root, $2: an empty directory.
const HOLDER: &str = r#"
set -e
root=$1; work=$2
read -r pid _ < /proc/self/stat
ip link set lo up
ip link add v0 type veth peer name v1
ip addr add 10.77.0.1/24 dev v0
ip link set v0 up
ip link set v1 up
mount -t tmpfs -o mode=755 tmpfs "$work"
mkdir "$work/upper" "$work/scratch" "$work/root"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/scratch" "$work/root"
cd "$work/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
hostname n0
printf '127.0.0.1 localhost\n10.77.0.1 n0\n' > etc/hosts
exec chroot . /bin/sh -c 'echo "$1"; while read -r _; do :; done' sh "$pid"
"#;

/// Creates another layered root next to the first, with the files and state of the first, and stays in it.
/// $1: the read-only root, $2: the directory of the first.
const SECOND_ROOT: &str = r#"
set -e
root=$1; work=$2
read -r pid _ < /proc/self/stat
place=$(mktemp -d "$work/root-XXXXXX")
chmod 755 "$place"
mkdir "$place/upper" "$place/scratch" "$place/root"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$place/upper,workdir=$place/scratch" "$place/root"
cd "$place/root"
for shared in proc dev run tmp etc/slurm var/spool var/log; do
    mkdir -p "$shared"
    mount --rbind "$work/root/$shared" "$shared"
done
cp "$work/root/etc/hosts" etc/hosts
exec chroot . /bin/sh -c 'echo "$1"; exec sleep infinity' sh "$pid"
"#;

impl Slurm {
    /// Starts a cluster and waits until slurmctld and slurmrestd respond. Returns `None` if the release is not available.
    pub fn start(release: Release, setup: &Setup) -> Result<Option<Self>> {
        let Some(root) = release.root()? else {
            return Ok(None);
        };
        let mut slurm = Self::hold(release, &root)?;
        slurm.write_configuration(setup)?;
        if setup.slurmdbd_conf.is_some() {
            slurm.start_database(&setup.database_password)?;
            slurm.start_slurmdbd()?;
        }
        if setup.managed {
            slurm.start_managed_slurmctld()?;
        } else {
            slurm.start_slurmctld()?;
        }
        slurm.start_slurmrestd()?;
        if let Some(conf) = &setup.slurmd {
            slurm.start_slurmd(conf)?;
        }
        Ok(Some(slurm))
    }

    fn work() -> PathBuf {
        std::env::temp_dir().join("keelson-slurm-daemons")
    }

    fn hold(release: Release, root: &Path) -> Result<Self> {
        let work = Self::work();
        fs::create_dir_all(&work)?;
        let mut holder = Command::new("unshare")
            .args([
                "--net",
                "--mount",
                "--uts",
                "--ipc",
                "--pid",
                "--fork",
                "--kill-child",
            ])
            .args(["sh", "-c", HOLDER, "holder"])
            .args([root, &work])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("unshare")?;
        let inside = Self::said(&mut holder).context("failed to create the namespaces (requires root)")?;
        Ok(Self {
            release,
            holder,
            inside,
            daemons: Vec::new(),
            manager: None,
        })
    }

    /// The pid that a script prints.
    fn said(script: &mut Child) -> Result<u32> {
        let mut line = String::new();
        BufReader::new(script.stdout.take().context("no output")?).read_line(&mut line)?;
        if let Ok(pid) = line.trim().parse() {
            return Ok(pid);
        }
        let _ = script.kill();
        bail!("{}", script.wait()?);
    }

    /// Starts daemons from another release from now on, with the same network, files and state. Running daemons are
    /// not changed. Returns whether that release is available.
    pub fn install(&mut self, release: Release) -> Result<bool> {
        let Some(root) = release.root()? else {
            return Ok(false);
        };
        let mut script = Command::new("nsenter")
            .args(["--target", &self.inside.to_string()])
            .args(["--net", "--mount", "--uts", "--ipc", "--pid", "--"])
            .args(["sh", "-c", SECOND_ROOT, "install"])
            .args([root, Self::work()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("nsenter")?;
        self.inside = Self::said(&mut script).context("failed to create the second root")?;
        self.release = release;
        self.daemons.push(("root", script));
        Ok(true)
    }

    /// The release of the cluster.
    pub fn release(&self) -> Release {
        self.release
    }

    /// The network namespace, for callers that connect to the daemons.
    pub fn network(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.inside))
    }

    /// The outside path of a path inside.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.inside))
    }

    /// Writes a file that only the slurm user can read.
    pub fn write(&self, inside: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let path = self.path(inside);
        let (uid, gid) = self.slurm_user()?;
        fs::write(&path, content).with_context(|| format!("write {inside}"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        chown(&path, Some(uid), Some(gid))?;
        Ok(())
    }

    /// Writes a file that all users can read.
    pub fn write_public(&self, inside: &str, content: impl AsRef<[u8]>) -> Result<()> {
        self.write(inside, content)?;
        fs::set_permissions(self.path(inside), fs::Permissions::from_mode(0o644))?;
        Ok(())
    }

    fn slurm_user(&self) -> Result<(u32, u32)> {
        let passwd = fs::read_to_string(self.path("/etc/passwd"))?;
        let line = passwd
            .lines()
            .find(|line| line.starts_with("slurm:"))
            .context("no slurm user")?;
        let mut fields = line.split(':').skip(2).map(str::parse);
        match (fields.next(), fields.next()) {
            (Some(Ok(uid)), Some(Ok(gid))) => Ok((uid, gid)),
            _ => bail!("failed to parse the entry of the slurm user"),
        }
    }

    fn write_configuration(&self, setup: &Setup) -> Result<()> {
        let (uid, gid) = self.slurm_user()?;
        let cluster_dir = format!("/var/spool/slurmctld/{CLUSTER}");
        for dir in [
            &*cluster_dir,
            "/var/spool/slurmd",
            "/var/log/slurm",
            "/run/slurmctld",
            "/run/slurmdbd",
        ] {
            fs::create_dir_all(self.path(dir))?;
            chown(self.path(dir), Some(uid), Some(gid))?;
        }
        chown(self.path("/var/spool/slurmctld"), Some(uid), Some(gid))?;
        // The default in Debian contains a pattern that Slurm reports as an error.
        let _ = fs::remove_file(self.path("/etc/slurm/plugstack.conf"));
        self.write(
            "/etc/slurm/slurm.key",
            "an auth/slurm key that is long enough for a test",
        )?;
        self.write(
            "/etc/slurm/jwt.key",
            "the first jwt key, which is long enough for HS256",
        )?;
        let default_conf = || {
            let accounting = setup.slurmdbd_conf.is_some();
            small_slurm_conf(accounting, &setup.extra_conf)
        };
        self.write_public(
            "/etc/slurm/slurm.conf",
            setup.slurm_conf.clone().unwrap_or_else(default_conf),
        )?;
        self.write_public("/etc/slurm/cgroup.conf", "CgroupPlugin=disabled\n")?;
        for (name, content) in &setup.files {
            let path = format!("/etc/slurm/{name}");
            self.write_public(&path, content)?;
            if content.starts_with("#!") {
                fs::set_permissions(self.path(&path), fs::Permissions::from_mode(0o755))?;
            }
        }
        if let Some(conf) = &setup.slurmdbd_conf {
            self.write("/etc/slurm/slurmdbd.conf", conf)?;
        }
        Ok(())
    }

    /// A command that runs inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.inside.to_string();
        command.args([
            "--target", &target, "--net", "--mount", "--uts", "--ipc", "--pid", "--root",
        ]);
        command.args([
            "--",
            "env",
            "--chdir=/",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            program,
        ]);
        command
    }

    /// Runs a command inside and returns its output, whatever its exit status.
    pub fn output(&self, words: &[&str]) -> Result<Output> {
        let (program, arguments) = words.split_first().context("no command")?;
        self.command(program)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run {words:?}"))
    }

    /// Runs a command inside that must succeed, and returns its standard output.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let output = self.output(words)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(
            output.status.success(),
            "{words:?}: {}: {}{}",
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        );
        Ok(text(&output.stdout))
    }

    /// The log of a daemon.
    pub fn log(&self, daemon: &str) -> String {
        fs::read_to_string(self.path(&format!("/var/log/slurm/{daemon}.out"))).unwrap_or_default()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // Closing its input ends the first process inside, and thereby all others.
        drop(self.holder.stdin.take().map(|mut input| input.flush()));
        for (_, child) in &mut self.daemons {
            // A stopped process would neither notice nor report the exit of its child.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.holder.wait();
        if let Some(manager) = &self.manager {
            let _ = manager.shutdown(Shutdown::Both);
        }
    }
}

fn small_slurm_conf(accounting: bool, extra: &str) -> String {
    let accounting = if accounting {
        "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\n"
    } else {
        ""
    };
    format!(
        "ClusterName={CLUSTER}\nSlurmUser=slurm\nSlurmctldHost={HOST}({ADDRESS})\n\
         StateSaveLocation=/var/spool/slurmctld/{CLUSTER}\nSlurmdSpoolDir=/var/spool/slurmd\n\
         SlurmctldPidFile=/run/slurmctld/slurmctld.pid\nSlurmdPidFile=/run/slurmd.pid\n\
         SlurmctldLogFile=/dev/stdout\nSlurmdLogFile=/dev/stdout\n\
         AuthType=auth/slurm\nCredType=cred/slurm\nAuthAltTypes=auth/jwt\n\
         AuthAltParameters=jwt_key=/etc/slurm/jwt.key\nAuthInfo=use_client_ids\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
         SelectType=select/cons_tres\nMaxNodeCount=16384\nReturnToService=2\nMinJobAge=300\n\
         {accounting}\
         NodeSet=real Feature=real\nNodeSet=ext Feature=ext\n\
         PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP\n\
         PartitionName=real Nodes=real State=UP\n{extra}"
    )
}
