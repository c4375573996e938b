//! Slurm on a cluster: installation of the charts in the same way as a user, and a shell on the login node.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use testbed::binaries::Binaries;
use testbed::cluster::Cluster;
use testbed::command;
use testbed::image;
use testbed::progress::Progress;

use crate::Pass;
use crate::cluster::become_program;
use crate::workspace::{self, Build};

/// The namespace of the operator.
const OPERATOR_NAMESPACE: &str = "slurm-operator";
/// The namespace of the quick start's Slurm cluster.
pub const SLURM_NAMESPACE: &str = "slurm";

/// A cluster to install on.
#[derive(Debug)]
pub struct Target {
    kubectl: PathBuf,
    helm: PathBuf,
    kubeconfig: PathBuf,
    log: PathBuf,
    /// The hash of the operator image, if it was built here: images keep their name when they change.
    program: Option<String>,
}

impl Target {
    /// A testbed cluster.
    pub fn testbed(cluster: &Cluster) -> Self {
        Self {
            kubectl: cluster.spec().binaries.component("kubectl"),
            helm: cluster.spec().binaries.helm.clone(),
            kubeconfig: cluster.layout().kubeconfig(),
            log: cluster.layout().log("install"),
            program: None,
        }
    }

    /// Sets the most recently built operator program. A running operator with another program is replaced.
    pub fn with_operator(mut self, build: Build) -> Result<Self> {
        self.program = Some(image::sha256(&workspace::keelson(build)?)?);
        Ok(self)
    }

    /// An existing cluster of the user.
    pub fn elsewhere(kubeconfig: &Path, binaries: &Binaries) -> Result<Self> {
        Ok(Self {
            kubectl: binaries.component("kubectl"),
            helm: binaries.helm.clone(),
            kubeconfig: kubeconfig.to_owned(),
            log: workspace::root()?.join("target/install.log"),
            program: None,
        })
    }

    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// Instructions for the case that Slurm does not start.
    pub fn where_to_look(&self) -> String {
        format!(
            "run `KUBECONFIG={} {} -n {SLURM_NAMESPACE} get pods` and see the logs in {}",
            self.kubeconfig.display(),
            self.kubectl.display(),
            self.log.display()
        )
    }

    fn helm(&self) -> Command {
        let mut command = Command::new(&self.helm);
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }
}

/// Objects in `examples/` that the quick start's Slurm cluster requires.
const BESIDE: [&str; 2] = ["mariadb.yaml", "home.yaml"];

/// Installs the CRDs, the operator and the quick start's Slurm cluster.
pub fn install(target: &Target, progress: &Progress) -> Result<()> {
    // First, so that the database is created while the operator starts.
    progress.step("database and home directories for the quick start", |_| {
        beside(target)
    })?;
    install_operator(target, progress)?;
    progress.step("chart: slurm, with examples/quickstart.yaml", |_| {
        install_slurm(target, SLURM_NAMESPACE, &[])
    })
}

/// Creates the namespace of the Slurm cluster unless it exists.
pub fn ensure_namespace(target: &Target) -> Result<()> {
    let namespace = target
        .kubectl()
        .args(["get", "namespace", SLURM_NAMESPACE])
        .output()?;
    if !namespace.status.success() {
        command::run(
            target.kubectl().args(["create", "namespace", SLURM_NAMESPACE]),
            &target.log,
        )?;
    }
    Ok(())
}

fn beside(target: &Target) -> Result<()> {
    ensure_namespace(target)?;
    let examples = workspace::root()?.join("examples");
    let mut apply = target.kubectl();
    apply.args([
        "--namespace",
        SLURM_NAMESPACE,
        "apply",
        "--server-side",
        "--force-conflicts",
    ]);
    for file in BESIDE {
        apply.arg("--filename").arg(examples.join(file));
    }
    command::run(&mut apply, &target.log)
}

/// Installs the CRDs and the operator.
pub fn install_operator(target: &Target, progress: &Progress) -> Result<()> {
    progress.step("charts: slurm-operator-crds, slurm-operator", |_| {
        chart(target, "slurm-operator-crds", OPERATOR_NAMESPACE, &[])?;
        let mut values = vec!["--set".to_owned(), "certManager.enabled=false".to_owned()];
        for part in ["operator", "webhook"] {
            if let Some(program) = &target.program {
                let annotation = format!("{part}.podAnnotations.keelson\\.dev/program={program}");
                values.extend(["--set-string".to_owned(), annotation]);
            }
        }
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        chart(target, "slurm-operator", OPERATOR_NAMESPACE, &values)
    })
}

/// Installs the quick start's Slurm cluster in a namespace, with additional arguments for helm.
pub fn install_slurm(target: &Target, namespace: &str, more: &[&str]) -> Result<()> {
    let quickstart = workspace::root()?.join("examples/quickstart.yaml");
    let quickstart = quickstart
        .to_str()
        .context("the path of the checkout is not valid UTF-8")?;
    chart(
        target,
        "slurm",
        namespace,
        &[&["--values", quickstart], more].concat(),
    )
}

fn chart(target: &Target, release: &str, namespace: &str, more: &[&str]) -> Result<()> {
    let mut helm = target.helm();
    helm.args(["upgrade", "--install", release])
        .arg(workspace::root()?.join("charts").join(release))
        .args([
            "--namespace",
            namespace,
            "--create-namespace",
            "--wait",
            // Overwrite fields that were changed by hand in the meantime, such as replica counts.
            "--force-conflicts",
            "--timeout",
            "5m",
        ])
        .args(more);
    command::run(&mut helm, &target.log)
}

/// The login pod of the quick start.
pub fn login(target: &Target) -> Result<String> {
    let selector = "app.kubernetes.io/name=login";
    let names = command::output(target.kubectl().args([
        "-n",
        SLURM_NAMESPACE,
        "get",
        "pods",
        "--selector",
        selector,
        "--field-selector=status.phase=Running",
        "--output=name",
    ]))?;
    names
        .lines()
        .next()
        .map(str::to_owned)
        .context("no login pod is running")
}

/// `cargo xtask shell`: an interactive shell, or the given command, on the login node.
pub fn shell(pass: &Pass) -> Result<ExitCode> {
    let target = Target::testbed(&Cluster::open(&pass.named.name)?);
    let pod = login(&target).context("no login node found: Slurm is not installed, or it has no LoginSet; to install both, run `cargo xtask up`")?;
    let mut exec = target.kubectl();
    exec.args(["-n", SLURM_NAMESPACE, "exec", "--stdin"]);
    if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        exec.arg("--tty");
    }
    exec.arg(&pod).arg("--");
    if pass.words.is_empty() {
        exec.args(["bash", "--login"]);
    } else {
        exec.args(&pass.words);
    }
    become_program(&mut exec)
}
