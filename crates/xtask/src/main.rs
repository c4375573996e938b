//! The project's tasks: `cargo xtask up`, `cargo xtask test` and what they are made of.

mod advisories;
mod audit;
mod bench;
mod cluster;
mod first_job;
mod interrupt;
mod permissions;
mod previous_release;
mod slurm;
mod slurm_status;
mod test;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The project's tasks")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start a real Kubernetes with a real Slurm on this machine and run a user's first job
    Up(Up),
    /// Take a cluster away: processes, mounts, namespaces, control groups, files
    Down(Named),
    /// Show the clusters on this machine and how they are doing: nodes, pods, Slurm's nodes, queue and accounting
    Status {
        /// Only the cluster of this name
        #[arg(long)]
        name: Option<String>,
    },
    /// kubectl as the cluster's administrator
    Kubectl(Pass),
    /// helm as the cluster's administrator
    Helm(Pass),
    /// Show the log of a component of Kubernetes; without a name, list them. For pods, slurmctld's too: kubectl logs
    Logs {
        #[command(flatten)]
        named: Named,
        /// For example kube-apiserver, node-1-kubelet
        component: Option<String>,
    },
    /// A shell on the Slurm login node
    Shell(Pass),
    /// Build the container images
    Images {
        /// Take the newest package versions into the lock files
        #[arg(long)]
        update_lock: bool,
        /// Show what each step does
        #[arg(long, short)]
        verbose: bool,
    },
    /// Write the generated CRDs into their chart
    Crds,
    /// Run the tests
    Test(test::Options),
    /// Check the crates that we link against the advisory database, where it can be had
    Audit(advisories::Options),
    /// Measure what has a budget
    Bench(bench::Options),
    #[command(hide = true)]
    TestbedInit { directory: PathBuf, role: String },
}

#[derive(Args)]
struct Named {
    /// The cluster's name
    #[arg(long, default_value = testbed::DEFAULT_NAME)]
    name: String,
}

#[derive(Args)]
struct Up {
    #[command(flatten)]
    named: Named,
    /// Real nodes; 0 (with --no-slurm) for a control plane alone
    #[arg(long, default_value_t = 2)]
    nodes: u8,
    /// Simulated nodes
    #[arg(long, default_value_t = 0)]
    kwok: u32,
    /// Only Kubernetes, no Slurm
    #[arg(long)]
    no_slurm: bool,
    /// Use a cluster that you already have: nothing local is started; it must be able to get the images
    #[arg(long, value_name = "PATH", conflicts_with_all = ["nodes", "kwok", "no_slurm", "name"])]
    kubeconfig: Option<PathBuf>,
    /// Compile the operator without optimisation: for trying changes
    #[arg(long)]
    quick: bool,
    /// Show what each step does
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Args)]
struct Pass {
    #[command(flatten)]
    named: Named,
    /// Passed on as they are
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
