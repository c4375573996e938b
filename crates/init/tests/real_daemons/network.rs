//! The network of the pods, in its own namespaces. Tests must not write to Slurm's root file system. Everything ends
//! with the [`Network`], or with the test process, however that ends.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

const VARIABLE: &str = "KEELSON_TEST_SLURM_ROOT_2605";

/// Every pod's name and the last number of its address.
pub const HOSTS: [(&str, u8); 7] = [
    ("c0", 10),
    ("c1", 11),
    ("w0", 20),
    ("db", 30),
    ("maria", 31),
    ("rest", 40),
    ("login", 50),
];

/// Timeout of every wait, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs a test if Slurm is available. It must be available in CI: a skipped test must not look like a passed one.
pub fn with_slurm(test: impl FnOnce(&Network) -> Result<()>) -> Result<()> {
    let Some(root) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        ensure!(
            std::env::var("CI").as_deref() != Ok("true"),
            "{VARIABLE} is not set"
        );
        eprintln!("not run: {VARIABLE} does not name a root file system that holds Slurm");
        return Ok(());
    };
    let network = Network::start(root)?;
    ensure!(
        network.has("usr/sbin/slurmctld"),
        "{VARIABLE} names a directory without Slurm"
    );
    let result = test(&network);
    if result.is_err() {
        network.print_logs();
    }
    result
}

/// Repeats `ask` until it returns true.
pub fn eventually(what: &str, mut ask: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let answer = ask();
        if matches!(answer, Ok(true)) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("not within {PATIENCE:?}: {what} ({answer:?})");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The network of the pods, and the namespaces that contain it.
#[derive(Debug)]
pub struct Network {
    /// Slurm's root file system.
    pub root: PathBuf,
    /// The process that ends all namespaces when its standard input closes.
    holder: Child,
    /// PID on the host of the first process inside.
    pub inside: u32,
    work: tempfile::TempDir,
}

const HOLDER: &str = r#"
set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
ip link set lo up
ip link add bridge type bridge
ip link set bridge up
read -r pid _ < /proc/self/stat
# What follows must see its own processes, not the machine's.
mount -t proc proc /proc
echo "$pid"
while read -r _; do :; done
"#;

impl Network {
    fn start(root: PathBuf) -> Result<Self> {
        let work = tempfile::tempdir()?;
        let mut holder = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--fork", "--kill-child"])
            .args(["sh", "-c", HOLDER, "network"])
            .arg(work.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().context("no output")?).read_line(&mut line)?;
        let inside = line
            .trim()
            .parse()
            .context("the network could not be made; root is needed")?;
        Ok(Self {
            root,
            holder,
            inside,
            work,
        })
    }

    /// Reports whether Slurm's root file system has this path.
    pub fn has(&self, path: &str) -> bool {
        self.root.join(path).symlink_metadata().is_ok()
    }

    /// Creates a directory that pods can share, owned by `SlurmUser`, and returns its path on the host.
    pub fn volume(&self, name: &str) -> Result<PathBuf> {
        let path = self.seen(&self.directory(name));
        fs::create_dir_all(&path)?;
        chown(&path, Some(401), Some(401))?;
        Ok(path)
    }

    /// Returns the path inside the network's namespaces of a directory.
    pub fn directory(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// Returns the path on the host of a path inside the network's namespaces.
    pub fn seen(&self, path: &Path) -> PathBuf {
        let path = path.strip_prefix("/").unwrap_or(path);
        Path::new(&format!("/proc/{}/root", self.inside)).join(path)
    }

    fn print_logs(&self) {
        for (name, _) in HOSTS {
            let log = self.seen(&self.directory(name).join("log"));
            if let Ok(log) = fs::read_to_string(log) {
                eprintln!("--- {name} printed:\n{log}");
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}
