//! The development tasks of the project, such as `cargo xtask up` and `cargo xtask test`.
//!
//! It contains the command line and the tasks; clusters and images are built by `testbed`. No other crate may depend on
//! it.

mod advisories;
mod audit;
mod bench;
mod cluster;
mod first_job;
mod interrupt;
mod permissions;
mod previous_release;
mod slurm;
mod slurm_cluster;
mod slurm_status;
mod test;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Development tasks for this project"
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start a real Kubernetes cluster with Slurm on this machine and run a first job
    Up(Up),
    /// Remove a cluster: processes, mounts, namespaces, control groups and files
    Down(Named),
    /// Show the status of the clusters on this machine: nodes, pods, and Slurm nodes, queue and accounting
    Status {
        /// Show only the cluster with this name
        #[arg(long)]
        name: Option<String>,
    },
    /// Run kubectl as cluster administrator
    Kubectl(Pass),
    /// Run helm as cluster administrator
    Helm(Pass),
    /// Show the log of a Kubernetes component, or list the available logs. For pods, including slurmctld, use kubectl logs
    Logs {
        #[command(flatten)]
        named: Named,
        /// Name of the component, for example kube-apiserver or node-1-kubelet
        component: Option<String>,
    },
    /// Open a shell on the Slurm login node, or run a command there
    Shell(Pass),
    /// Build the container images
    Images {
        /// Update the lock files to the latest package versions
        #[arg(long)]
        update_lock: bool,
        /// Print the details of each step
        #[arg(long, short)]
        verbose: bool,
    },
    /// Generate the CRDs and write them to their chart
    Crds,
    /// Run the tests
    Test(test::Options),
    /// Check the linked crates against the advisory database, if it is available
    Audit(advisories::Options),
    /// Run the benchmarks
    Bench(bench::Options),
    #[command(hide = true)]
    TestbedInit { directory: PathBuf, role: String },
}

#[derive(Args)]
struct Named {
    /// Name of the cluster
    #[arg(long, default_value = testbed::DEFAULT_NAME)]
    name: String,
}

#[derive(Args)]
struct Up {
    #[command(flatten)]
    named: Named,
    /// Number of real nodes; 0 (with --no-slurm) runs only a control plane
    #[arg(long, default_value_t = 2)]
    nodes: u8,
    /// Number of simulated nodes
    #[arg(long, default_value_t = 0)]
    kwok: u32,
    /// Do not install Slurm
    #[arg(long)]
    no_slurm: bool,
    /// The Slurm cluster to install
    #[arg(long, value_enum, default_value_t, conflicts_with = "no_slurm")]
    example: Example,
    /// Use an existing cluster instead of starting one; it must have access to the images
    #[arg(long, value_name = "PATH", conflicts_with_all = ["nodes", "kwok", "no_slurm", "example", "name"])]
    kubeconfig: Option<PathBuf>,
    /// Compile the operator without optimizations, for faster builds during development
    #[arg(long)]
    quick: bool,
    /// Print the details of each step
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Example {
    /// Chart slurm with examples/quickstart.yaml
    #[default]
    Quickstart,
    /// One SlurmCluster, examples/slurm-cluster.yaml
    SlurmCluster,
}

#[derive(Args)]
struct Pass {
    #[command(flatten)]
    named: Named,
    /// Arguments, passed on unchanged
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Up(up) => cluster::up(&up)?,
        Task::Down(named) => cluster::down(&named.name)?,
        Task::Status { name } => cluster::status(name.as_deref())?,
        Task::Kubectl(pass) => return cluster::kubectl(&pass),
        Task::Helm(pass) => return cluster::helm(&pass),
        Task::Logs { named, component } => cluster::logs(&named.name, component.as_deref())?,
        Task::Shell(pass) => return slurm::shell(&pass),
        Task::Images { update_lock, verbose } => workspace::images(update_lock, verbose)?,
        Task::Crds => workspace::write_crds()?,
        Task::Test(options) => return test::run(&options),
        Task::Audit(options) => return advisories::run(&options),
        Task::Bench(options) => bench::run(&options)?,
        Task::TestbedInit { directory, role } => testbed::init::run(&directory, &role)?,
    }
    Ok(ExitCode::SUCCESS)
}
