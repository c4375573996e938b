//! Creation and removal of clusters.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::binaries::Binaries;
use crate::cache::{hex, remove_tree};
use crate::host::{self, Host};
use crate::layout::{API_ADDRESS, API_PORT, API_SERVICE, Layout, NODES_MAX, Node, Spec};
use crate::namespaces::{self, CONTROL_PLANE, Tree};
use crate::pki::Pki;
use crate::progress::{Progress, Step};
use crate::{cgroups, command, image, manifests};

/// The specification of a new cluster.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// The number of real nodes; 0 for only a control plane.
    pub nodes: u8,
    /// Simulated nodes.
    pub kwok: u32,
    /// The programs to run.
    pub binaries: Binaries,
    /// The root file system of nodes.
    pub node_root: PathBuf,
    /// Image archives that every node gets.
    pub images: Vec<PathBuf>,
    /// The program whose `testbed-init` subcommand calls [`crate::init::run`].
    pub program: PathBuf,
}

/// A cluster on this machine.
#[derive(Debug, Clone)]
pub struct Cluster {
    layout: Layout,
    spec: Spec,
}

/// The state of a cluster that has files on this machine.
#[derive(Debug, PartialEq, Eq)]
pub enum State {
    /// The cluster does not exist.
    Absent,
    /// The cluster has files but no processes: it was stopped, or the machine was restarted.
    Stopped,
    /// Some processes are missing, or the start did not complete.
    Broken,
    /// All processes are running.
    Running,
}

impl Cluster {
    /// The running cluster with this name.
    pub fn open(name: &str) -> Result<Self> {
        let layout = known(name)?;
        ensure!(
            state(&layout)? == State::Running,
            "cluster {name:?} is not running; to start it, run `cargo xtask up{}`",
            name_flag(name)
        );
        let spec = layout.spec()?.context("the cluster has no specification")?;
        Ok(Self { layout, spec })
    }

    /// Starts a cluster, or checks it if it is already running. The remains of an incomplete start are removed first.
    pub fn start(wanted: &Wanted, progress: &Progress) -> Result<(Self, bool)> {
        check(&wanted.name, wanted.nodes)?;
        let layout = Layout::of(&wanted.name)?;
        let _lock = lock(&layout)?;
        let host = Host::inspect()?;
        match state(&layout)? {
            State::Running => {
                let cluster = Self::open(&wanted.name)?;
                ensure!(
                    (cluster.spec.nodes, cluster.spec.kwok) == (wanted.nodes, wanted.kwok),
                    "cluster {:?} is already running with {} nodes and {} simulated nodes: use it, remove it with `cargo xtask down{}`, or choose another --name",
                    wanted.name,
                    cluster.spec.nodes,
                    cluster.spec.kwok,
                    name_flag(&wanted.name)
                );
                cluster.import(progress, &wanted.images)?;
                cluster.wait_until_usable(progress)?;
                return Ok((cluster, false));
            }
            State::Broken | State::Stopped => {
                progress.step("removing the remains of an earlier run", |_| {
                    remove(&layout, host)
                })?;
            }
            State::Absent => {}
        }
        host::require_inotify(wanted.nodes)?;
        let started = Self::start_new(layout.clone(), wanted, host, progress);
        if started.is_err() {
            // Keep the logs, because the error refers to them. Remove processes, mounts, interfaces and control groups.
            let _ = namespaces::end(&layout);
            let _ = cgroups::remove(&layout, host.cgroups);
        }
        started.map(|cluster| (cluster, true))
    }

    fn start_new(layout: Layout, wanted: &Wanted, host: Host, progress: &Progress) -> Result<Self> {
        let cluster = progress.step(
            "control plane: etcd, kube-apiserver, controller manager, scheduler",
            |_| {
                fs::create_dir_all(layout.logs())?;
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                    .context("no free port on the loopback interface")?;
                let spec = Spec {
                    nodes: wanted.nodes,
                    kwok: wanted.kwok,
                    api_port: listener.local_addr()?.port(),
                    binaries: wanted.binaries.clone(),
                    node_root: wanted.node_root.clone(),
                    host,
                };
                fs::copy(&wanted.program, layout.program()).context("failed to copy this program")?;
                write_credentials(&layout, &spec)?;
                layout.write_spec(&spec)?;
                namespaces::spawn(&layout, CONTROL_PLANE, Some(listener))?;
                let cluster = Self { layout, spec };
                cluster.wait(Duration::from_mins(2), "the API server", "kube-apiserver", || {
                    command::succeeds(cluster.kubectl().args(["get", "--raw=/readyz"]))
                })?;
                Ok(cluster)
            },
        )?;
        if wanted.nodes > 0 {
            progress.step(
                &format!("nodes: {} with containerd, kubelet, kube-proxy", wanted.nodes),
                |_| cluster.spec.nodes().try_for_each(|node| cluster.start_node(node)),
            )?;
        }
        cluster.import(progress, &wanted.images)?;
        if wanted.kwok > 0 {
            progress.step(&format!("{} simulated nodes", wanted.kwok), |_| {
                cluster.apply(&manifests::kwok_nodes(wanted.kwok))
            })?;
        }
        cluster.wait_until_usable(progress)?;
        fs::write(ready_file(&cluster.layout), "")?;
        Ok(cluster)
    }

    /// Starts the process tree of a node.
    pub fn start_node(&self, node: Node) -> Result<()> {
        let name = node.name();
        Pki::ensure(&self.layout.pki(), API_ADDRESS.into(), API_SERVICE.into())?
            .node(&name, node.address())?;
        write_kubeconfig(&self.layout, &name)?;
        cgroups::create(&self.layout, &name, self.spec.host.cgroups)?;
        let tree = namespaces::spawn(&self.layout, &name, None)?;
        let control_plane = self.tree(CONTROL_PLANE)?;
        let end = format!("veth{}", node.0);
        let ip = |words: String| {
            command::output(
                namespaces::inside(&control_plane, false)
                    .arg("ip")
                    .args(words.split(' ')),
            )
            .map(drop)
        };
        ip(format!(
            "link add {end} type veth peer name eth0 netns {}",
            tree.pid
        ))?;
        ip(format!("link set {end} master br0 up"))
    }

    /// Kills all processes of a node, like a power failure. Its files are kept.
    pub fn kill_node(&self, node: Node) -> Result<()> {
        let tree = self.tree(&node.name())?;
        let pid = rustix::process::Pid::from_raw(tree.pid).context("no such process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
        self.wait(
            Duration::from_secs(20),
            &format!("termination of {}", node.name()),
            CONTROL_PLANE,
            || self.tree(&node.name()).is_err(),
        )
    }

    /// Loads image archives into every node, skipping archives that a node already has.
    pub fn import(&self, progress: &Progress, archives: &[PathBuf]) -> Result<()> {
        let mut missing = Vec::new();
        for node in self.spec.nodes() {
            for archive in archives {
                let stamp = self.import_stamp(node, archive)?;
                if !stamp.exists() {
                    missing.push((node, archive, stamp));
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        progress.step("container images", |step| {
            for (node, archive, stamp) in missing {
                self.import_one(step, node, archive)?;
                fs::write(stamp, "")?;
            }
            Ok(())
        })
    }

    /// Archives are stored in the cache under the hash of their inputs, so the path identifies the content.
    fn import_stamp(&self, node: Node, archive: &Path) -> Result<PathBuf> {
        use sha2::Digest as _;
        let modified =
            fs::metadata(archive).with_context(|| format!("failed to inspect {}", archive.display()))?;
        let identity = format!(
            "{} {} {:?}",
            archive.display(),
            modified.len(),
            modified.modified()?
        );
        let hash = hex(&sha2::Sha256::digest(identity));
        Ok(self
            .layout
            .node(&node.name())
            .join("containerd")
            .join(format!("imported.{hash}")))
    }

    fn import_one(&self, step: &Step, node: Node, archive: &Path) -> Result<()> {
        let tree = self.tree(&node.name())?;
        step.note(&format!(
            "{} on {}",
            archive.file_stem().unwrap_or_default().to_string_lossy(),
            node.name()
        ));
        self.wait(
            Duration::from_mins(1),
            "containerd",
            &format!("{}-containerd", node.name()),
            || command::succeeds(namespaces::inside(&tree, true).args(["ctr", "version"])),
        )?;
        let mut import = namespaces::inside(&tree, true);
        import.args(["ctr", "--namespace", "k8s.io", "images", "import", "--local", "-"]);
        let output = import
            .stdin(File::open(archive)?)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .context("failed to start nsenter")?;
        ensure!(
            output.status.success(),
            "{} failed to load the image {}: {}",
            node.name(),
            archive.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    fn wait_until_usable(&self, progress: &Progress) -> Result<()> {
        if self.spec.nodes == 0 {
            return Ok(());
        }
        progress.step("cluster DNS, storage class, nodes ready", |step| {
            self.apply(&manifests::cluster(image::COREDNS))?;
            step.note("waiting for nodes");
            let names: Vec<String> = self
                .spec
                .nodes()
                .map(|node| format!("node/{}", node.name()))
                .collect();
            for name in &names {
                self.wait(
                    Duration::from_secs(90),
                    name,
                    &format!("{}-kubelet", &name[5..]),
                    || command::succeeds(self.kubectl().args(["get", name])),
                )?;
            }
            let log = self.layout.log("wait");
            command::run(
                self.kubectl()
                    .args(["wait", "--for=condition=Ready", "--timeout=120s"])
                    .args(&names),
                &log,
            )
            .with_context(|| {
                format!(
                    "the nodes did not become ready; the kubelet logs are in {}",
                    self.layout.logs().display()
                )
            })?;
            step.note("waiting for CoreDNS");
            command::run(
                self.kubectl().args([
                    "-n",
                    "kube-system",
                    "rollout",
                    "status",
                    "deploy/coredns",
                    "--timeout=180s",
                ]),
                &log,
            )
            .context("CoreDNS did not start")
        })
    }

    /// Applies manifests as cluster administrator.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let mut child = self
            .kubectl()
            .args(["apply", "--server-side", "--force-conflicts", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(manifest.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "kubectl apply: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    /// kubectl as cluster administrator.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.spec.binaries.component("kubectl"));
        command.env("KUBECONFIG", self.layout.kubeconfig());
        command
    }

    /// helm as cluster administrator.
    pub fn helm(&self) -> Command {
        let mut command = Command::new(&self.spec.binaries.helm);
        command.env("KUBECONFIG", self.layout.kubeconfig());
        command
    }

    /// A command in the network of the control plane, where the API server is `https://198.18.0.1:6443` and pods are
    /// reachable at their own addresses.
    pub fn in_control_plane(&self) -> Result<Command> {
        Ok(namespaces::inside(&self.tree(CONTROL_PLANE)?, false))
    }

    /// A command inside a node.
    pub fn in_node(&self, node: Node) -> Result<Command> {
        Ok(namespaces::inside(&self.tree(&node.name())?, true))
    }

    /// The files of the cluster.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The specification of the cluster.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    fn tree(&self, role: &str) -> Result<Tree> {
        namespaces::trees(&self.layout)?
            .into_iter()
            .find(|tree| tree.role == role)
            .with_context(|| {
                format!(
                    "{role} is not running; see {}",
                    self.layout.log(&format!("{role}-init")).display()
                )
            })
    }

    fn wait(&self, limit: Duration, what: &str, component: &str, done: impl Fn() -> bool) -> Result<()> {
        let begun = Instant::now();
        while !done() {
            if begun.elapsed() > limit {
                let log = self.layout.log(component);
                bail!(
                    "timed out waiting for {what} after {} s; see {}:\n{}",
                    limit.as_secs(),
                    log.display(),
                    command::tail(&log)
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

/// Checks the parameters of a cluster.
pub fn check(name: &str, nodes: u8) -> Result<()> {
    Layout::of(name)?;
    ensure!(
        (0..=NODES_MAX).contains(&nodes),
        "--nodes {nodes}: a cluster supports up to {NODES_MAX} real nodes; use --kwok for more"
    );
    Ok(())
}

/// The layout of the cluster with this name. All commands return the same error if the cluster does not exist.
pub fn known(name: &str) -> Result<Layout> {
    let layout = Layout::of(name)?;
    if state(&layout)? == State::Absent {
        let others = names()?;
        let others = if others.is_empty() {
            "there are no clusters".to_owned()
        } else {
            format!("existing clusters: {}", others.join(", "))
        };
        bail!(
            "cluster {name:?} does not exist; {others}. To start it, run `cargo xtask up{}`",
            name_flag(name)
        );
    }
    Ok(layout)
}

/// Returns the state of the cluster.
pub fn state(layout: &Layout) -> Result<State> {
    let trees = namespaces::trees(layout)?;
    let Some(spec) = layout.spec()? else {
        return Ok(if trees.is_empty() && !layout.root().exists() {
            State::Absent
        } else {
            State::Broken
        });
    };
    if trees.is_empty() {
        return Ok(State::Stopped);
    }
    let alive = |role: &str| trees.iter().any(|tree| tree.role == role);
    let whole =
        alive(CONTROL_PLANE) && spec.nodes().all(|node| alive(&node.name())) && ready_file(layout).exists();
    Ok(if whole { State::Running } else { State::Broken })
}

/// Removes a cluster: processes, mounts, interfaces, control groups and files.
pub fn down(name: &str) -> Result<()> {
    let layout = known(name)?;
    let _lock = lock(&layout)?;
    remove(&layout, Host::inspect()?)?;
    // Remove the lock file while holding the lock, so that no other command loses its lock.
    let path = lock_path(&layout)?;
    fs::remove_file(&path).with_context(|| format!("failed to remove {}", path.display()))
}

/// The names of the clusters that have files on this machine.
pub fn names() -> Result<Vec<String>> {
    let state = Layout::state()?;
    let Ok(entries) = fs::read_dir(&state) else {
        return Ok(Vec::new());
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

fn remove(layout: &Layout, host: Host) -> Result<()> {
    namespaces::end(layout)?;
    cgroups::remove(layout, host.cgroups)?;
    remove_tree(layout.root())
}

fn ready_file(layout: &Layout) -> PathBuf {
    layout.root().join("ready")
}

fn lock_path(layout: &Layout) -> Result<PathBuf> {
    Ok(Layout::state()?.join(format!("{}.lock", layout.name())))
}

/// A lock that is held while a cluster is started or removed.
fn lock(layout: &Layout) -> Result<File> {
    let state = Layout::state()?;
    fs::create_dir_all(&state).with_context(|| {
        format!(
            "failed to create {}; set KEELSON_STATE to a writable directory",
            state.display()
        )
    })?;
    let path = lock_path(layout)?;
    loop {
        let file = File::create(&path).with_context(|| format!("failed to create {}", path.display()))?;
        if file.try_lock().is_err() {
            bail!(
                "another command is currently starting or stopping cluster {:?}: wait for it, or choose another --name",
                layout.name()
            );
        }
        // Another command may have removed the cluster and its lock file, and a lock on a deleted file protects nothing.
        let held = file.metadata()?.ino();
        if fs::metadata(&path).is_ok_and(|there| there.ino() == held) {
            return Ok(file);
        }
    }
}

fn write_credentials(layout: &Layout, spec: &Spec) -> Result<()> {
    let pki = Pki::ensure(&layout.pki(), API_ADDRESS.into(), API_SERVICE.into())?;
    for component in ["admin", "kube-controller-manager", "kube-scheduler", "kube-proxy"] {
        write_kubeconfig(layout, component)?;
    }
    let server = format!("https://127.0.0.1:{}", spec.api_port);
    pki.kubeconfig(
        &layout.kubeconfig(),
        &format!("keelson-{}", layout.name()),
        &server,
        "admin",
    )
}

fn write_kubeconfig(layout: &Layout, component: &str) -> Result<()> {
    let pki = Pki::ensure(&layout.pki(), API_ADDRESS.into(), API_SERVICE.into())?;
    let server = format!("https://{API_ADDRESS}:{API_PORT}");
    pki.kubeconfig(
        &layout.component_kubeconfig(component),
        layout.name(),
        &server,
        component,
    )
}

/// The flag that selects this cluster in a command.
pub fn name_flag(name: &str) -> String {
    if name == crate::DEFAULT_NAME {
        String::new()
    } else {
        format!(" --name {name}")
    }
}
