//! Pods for tests: namespaces and files as the kubelet sets them up, with init as the first process and a real Slurm.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::mount::Mount;
use crate::network::{HOSTS, Network, eventually};

/// Returns the group that may read the mounted files. Pods of root also run programs as `SlurmUser`.
fn group(uid: u32) -> u32 {
    if uid == 0 { 401 } else { uid }
}

impl Network {
    /// Creates a pod without starting it.
    pub fn pod(&self, name: &'static str, uid: u32, mount: &Mount) -> Result<Pod<'_>> {
        let directory = self.directory(name);
        let etc = self.seen(&directory.join("etc"));
        fs::create_dir_all(&etc)?;
        mount.deliver(&etc, group(uid))?;
        fs::copy(env!("CARGO_BIN_EXE_init"), self.seen(&directory.join("init")))?;
        Ok(Pod {
            network: self,
            name,
            uid,
            environment: Vec::new(),
            volumes: Vec::new(),
            directory,
            running: None,
        })
    }
}

/// One pod with one container.
#[derive(Debug)]
pub struct Pod<'a> {
    network: &'a Network,
    name: &'static str,
    uid: u32,
    environment: Vec<String>,
    volumes: Vec<(String, &'static str)>,
    directory: PathBuf,
    running: Option<Child>,
}

/// The pod's sandbox: its own network, reached over the bridge.
const SANDBOX: &str = r#"
set -e
name=$1 directory=$2
net=$directory/net
if ! [ -e "$net" ]; then
    : > "$net"
    unshare --net="$net" true
    ip link add "p-$name" type veth peer name eth0 netns "$net"
    ip link set "p-$name" master bridge up
fi
shift 2
exec nsenter --net="$net" unshare --mount --uts --ipc --pid --fork --kill-child "$@"
"#;

/// The pod's container, until it becomes init.
/// $1: root, $2: the pod's directory, $3: name, $4: address, $5: user, then volumes as `from:to`, `--`, the command.
const CONTAINER: &str = r#"
set -e
root=$1 directory=$2 name=$3 address=$4 user=$5; shift 5
ip link set lo up
ip addr replace "$address/24" dev eth0
ip link set eth0 up
hostname "$name"
mkdir -p "$directory/upper" "$directory/scratch" "$directory/root"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$directory/upper,workdir=$directory/scratch" "$directory/root"
cd "$directory/root"
mount -t proc proc proc
mount -t tmpfs -o mode=755 tmpfs dev
for device in full null random tty urandom zero; do cp -a "/dev/$device" dev; done
ln -s /proc/self/fd dev/fd
mkdir -m 1777 dev/shm
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs run
mkdir -p run/slurmctld run/slurmdbd var/log/slurm var/spool/slurmd
# Only Slurm's own user has something writable, and root does not ask.
[ "$user" != 401 ] || chown 401:401 run run/slurmctld run/slurmdbd var/log/slurm
cp "$directory/hosts" etc/hosts
cp "$directory/init" usr/sbin/keelson-init
mount --bind "$directory/etc" etc/slurm
mount -o remount,bind,ro etc/slurm
while [ "$1" != -- ]; do
    mkdir -p ".${1#*:}"
    mount --bind "${1%:*}" ".${1#*:}"
    shift
done
shift
exec chroot . setpriv --reuid="$user" --regid="$user" --clear-groups \
    env --chdir=/ --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
"#;

impl Pod<'_> {
    /// Adds an environment variable (`NAME=value`).
    pub fn env(mut self, variable: &str) -> Self {
        self.environment.push(variable.to_owned());
        self
    }

    /// Mounts a volume of the network at a path inside.
    pub fn volume(mut self, name: &str, path: &'static str) -> Result<Self> {
        self.network.volume(name)?;
        let from = self.network.directory(name);
        self.volumes.push((format!("{}:{path}", from.display()), path));
        Ok(self)
    }

    /// Changes the files mounted at /etc/slurm, as the kubelet does.
    pub fn deliver(&self, mount: &Mount) -> Result<()> {
        mount.deliver(&self.network.seen(&self.directory.join("etc")), group(self.uid))
    }

    /// Starts the container: `init` with these arguments.
    pub fn start(&mut self, args: &[&str]) -> Result<()> {
        ensure!(self.running.is_none(), "{} runs already", self.name);
        let hosts: Vec<String> = HOSTS
            .iter()
            .map(|(name, last)| format!("10.78.0.{last} {name}\n"))
            .collect();
        let directory = self.network.seen(&self.directory);
        fs::write(
            directory.join("hosts"),
            format!("127.0.0.1 localhost\n{}", hosts.concat()),
        )?;
        let address = HOSTS
            .iter()
            .find(|(name, _)| *name == self.name)
            .context("unknown pod")?
            .1;
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(directory.join("log"))?;
        let child = Command::new("nsenter")
            .args([
                "--target",
                &self.network.inside.to_string(),
                "--net",
                "--mount",
                "--pid",
                "--",
            ])
            .args(["sh", "-c", SANDBOX, "sandbox", self.name])
            .arg(&self.directory)
            .args(["sh", "-c", CONTAINER, "container"])
            .arg(&self.network.root)
            .arg(&self.directory)
            .args([self.name, &format!("10.78.0.{address}"), &self.uid.to_string()])
            .args(self.volumes.iter().map(|(volume, _)| volume))
            .arg("--")
            .args(&self.environment)
            .arg("/usr/sbin/keelson-init")
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.running = Some(child);
        Ok(())
    }

    /// Waits until the container has ended, and returns its exit code.
    pub fn ended(&mut self) -> Result<i32> {
        let mut child = self.running.take().context("it does not run")?;
        let mut status = None;
        eventually("the container ends", || {
            status = child.try_wait()?;
            Ok(status.is_some())
        })
        .with_context(|| self.log())?;
        status.and_then(|status| status.code()).context("no exit code")
    }

    /// Whether the container runs.
    pub fn runs(&mut self) -> Result<bool> {
        let child = self.running.as_mut().context("it was never started")?;
        Ok(child.try_wait()?.is_none())
    }

    /// Stops the container as the kubelet does, and returns its exit code.
    pub fn stop(&mut self) -> Result<i32> {
        // The process that sends the signal may exit along with the container.
        self.output(&["kill", "-s", "TERM", "1"])?;
        self.ended()
    }

    /// Kills processes by name, which ends the container, and returns its exit code.
    pub fn ended_by_the_end_of(&mut self, program: &str) -> Result<i32> {
        // The killing process may exit along with the container.
        self.output(&["pkill", "-KILL", "-x", program])?;
        self.ended()
    }

    /// Returns the container's output.
    pub fn log(&self) -> String {
        fs::read_to_string(self.network.seen(&self.directory.join("log"))).unwrap_or_default()
    }

    /// Returns the PID of init on the host. The process that we started became nsenter, which became unshare. Before
    /// the child becomes init it has the host's root directory, where tests must not write.
    fn init(&self) -> Result<u32> {
        let mut pid = self.running.as_ref().context("it does not run")?.id();
        for _ in 0..2 {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
            pid = children
                .split_whitespace()
                .next()
                .context("not there yet")?
                .parse()?;
        }
        let name = fs::read_to_string(format!("/proc/{pid}/comm"))?;
        ensure!(name.trim() == "keelson-init", "not there yet");
        Ok(pid)
    }

    /// Returns the path on the host of a path inside.
    pub fn path(&self, inside: &str) -> Result<PathBuf> {
        Ok(PathBuf::from(format!("/proc/{}/root{inside}", self.init()?)))
    }

    /// Runs a command inside as root and returns its output, whatever its exit status.
    pub fn output(&self, words: &[&str]) -> Result<Output> {
        Command::new("nsenter")
            .args(["--target", &self.init()?.to_string()])
            .args([
                "--net",
                "--mount",
                "--uts",
                "--ipc",
                "--pid",
                "--root",
                "--",
                "env",
                "--chdir=/",
            ])
            .arg("PATH=/usr/sbin:/usr/bin:/sbin:/bin")
            .args(words)
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

    /// Returns the status report of init.
    pub fn status(&self) -> Result<Value> {
        let text = self.run(&[
            "curl",
            "--silent",
            "--fail",
            "--max-time",
            "5",
            "http://127.0.0.1:6816/v1/status",
        ])?;
        Ok(serde_json::from_str(&text)?)
    }
}
