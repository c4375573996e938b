//! `up`, `down`, `status` and the commands that reach into a cluster.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use testbed::binaries::{Binaries, KUBERNETES};
use testbed::cache::Cache;
use testbed::cluster::{self, Cluster, State, Wanted, name_flag};
use testbed::host::{self, Host};
use testbed::image;
use testbed::layout::Layout;
use testbed::progress::Progress;

use crate::slurm::{self, Target};
use crate::workspace::{self, Build};
use crate::{Pass, Up};

pub fn up(options: &Up) -> Result<()> {
    let begun = Instant::now();
    let progress = Progress::new(options.verbose);
    if let Some(kubeconfig) = &options.kubeconfig {
        return up_elsewhere(kubeconfig, &progress);
    }
    let build = if options.quick {
        Build::Quick
    } else {
        Build::Release
    };
    ensure!(
        options.nodes > 0 || options.no_slurm,
        "--nodes 0: Slurm needs a node; add --no-slurm for a control plane alone"
    );
    let cluster = start(&progress, &options.named.name, options.nodes, options.kwok, build)?;
    let name = &options.named.name;
    let mut lines = vec![
        format!(
            "cluster      {name}: Kubernetes {KUBERNETES}, {} nodes, {} simulated",
            options.nodes, options.kwok
        ),
        format!("this machine {}", Host::inspect()?.describe()),
        format!(
            "kubeconfig   export KUBECONFIG={}",
            cluster.layout().kubeconfig().display()
        ),
        format!("look at it   cargo xtask kubectl{} get pods -A", name_flag(name)),
    ];
    if !options.no_slurm {
        let target = Target::testbed(&cluster).with_operator(build)?;
        slurm::install(&target, &progress)?;
        lines.push(format!("first job    {}", slurm::first_job(&target, &progress)?));
        lines.push(format!("login node   cargo xtask shell{}", name_flag(name)));
    }
    lines.push(format!("stop it      cargo xtask down{}", name_flag(name)));
    println!("\nUp in {} s.\n", begun.elapsed().as_secs());
    for line in lines {
        println!("  {line}");
    }
    Ok(())
}

/// Builds what a cluster needs and starts it; a running one is checked.
pub fn start(progress: &Progress, name: &str, nodes: u8, kwok: u32, build: Build) -> Result<Cluster> {
    // Before anything that takes minutes.
    cluster::check(name, nodes)?;
    let cache = Cache::open()?;
    host::require(&cache)?;
    let packages: Vec<&str> = host::PACKAGES.iter().chain(image::PACKAGES).copied().collect();
    host::ensure_packages(progress, &cache.root().join("logs/apt.log"), &packages)?;
    host::require_network()?;
    let binaries = Binaries::build(&cache, progress)?;
    let images = if nodes == 0 {
        // Nobody would run them.
        Vec::new()
    } else {
        let mut archives = workspace::build_images(&cache, progress, build)?.archives();
        archives.push(image::coredns(&cache, &binaries.coredns)?.archive);
        archives
    };
    let wanted = Wanted {
        name: name.to_owned(),
        nodes,
        kwok,
        node_root: image::node_root(&cache, progress, &workspace::root()?.join("images"))?,
        images,
        binaries,
        program: workspace::program()?,
    };
    let (cluster, new) = Cluster::start(&wanted, progress)?;
    if !new {
        progress.line(&format!("cluster {name:?} was running already and is healthy"));
    }
    Ok(cluster)
}

fn up_elsewhere(kubeconfig: &Path, progress: &Progress) -> Result<()> {
    ensure!(
        kubeconfig.is_file(),
        "--kubeconfig {}: there is no such file",
        kubeconfig.display()
    );
    let cache = Cache::open()?;
    let binaries = Binaries::build(&cache, progress)?;
    let target = Target::elsewhere(kubeconfig, &binaries)?;
    slurm::install(&target, progress)?;
    println!("\n  first job    {}", slurm::first_job(&target, progress)?);
    Ok(())
}

pub fn down(name: &str) -> Result<()> {
    if cluster::down(name)? {
        println!("cluster {name:?} is gone");
    } else {
        println!("there is no cluster {name:?}");
    }
    Ok(())
}

pub fn status(only: Option<&str>) -> Result<()> {
    let mut names = cluster::names()?;
    names.retain(|name| only.is_none_or(|only| only == name));
    if names.is_empty() {
        match only {
            None => println!("no clusters; start one with `cargo xtask up`"),
            Some(name) => println!("no cluster {name}; start it with `cargo xtask up --name {name}`"),
        }
    }
    for name in names {
        let layout = Layout::of(&name)?;
        match cluster::state(&layout)? {
            State::Running => {
                println!("{name}: running, kubeconfig {}", layout.kubeconfig().display());
                let cluster = Cluster::open(&name)?;
                cluster.kubectl().args(["get", "nodes"]).status()?;
                cluster
                    .kubectl()
                    .args(["get", "pods", "--all-namespaces"])
                    .status()?;
            }
            State::Absent => {}
            State::Stopped => println!(
                "{name}: stopped; `cargo xtask up{}` starts it anew",
                name_flag(&name)
            ),
            State::Broken => println!(
                "{name}: broken (a start was interrupted, or a part died); `cargo xtask up{0}` or `cargo xtask down{0}`; logs in {1}",
                name_flag(&name),
                layout.logs().display()
            ),
        }
    }
    Ok(())
}

pub fn kubectl(pass: &Pass) -> Result<ExitCode> {
    let cluster = Cluster::open(&pass.named.name)?;
    become_program(cluster.kubectl().args(&pass.words))
}

pub fn helm(pass: &Pass) -> Result<ExitCode> {
    let cluster = Cluster::open(&pass.named.name)?;
    become_program(cluster.helm().args(&pass.words))
}

/// Replaces this process, so that signals, terminal and exit status are the program's own.
pub fn become_program(command: &mut Command) -> Result<ExitCode> {
    Err(command.exec()).with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))
}

pub fn logs(name: &str, component: Option<&str>) -> Result<()> {
    let layout = Layout::of(name)?;
    if cluster::state(&layout)? == State::Absent {
        let names = cluster::names()?;
        let others = if names.is_empty() {
            format!("start it with `cargo xtask up{}`", name_flag(name))
        } else {
            format!("there are: {}", names.join(", "))
        };
        bail!("there is no cluster {name:?}; {others}");
    }
    let mut known: Vec<String> = std::fs::read_dir(layout.logs())
        .with_context(|| format!("cluster {name:?} has no logs"))?
        .flatten()
        .filter_map(|file| file.file_name().to_str()?.strip_suffix(".log").map(str::to_owned))
        .collect();
    known.sort();
    match component {
        None => println!("{}", known.join("\n")),
        Some(component) if known.iter().any(|name| name == component) => {
            let mut file = std::fs::File::open(layout.log(component))?;
            std::io::copy(&mut file, &mut std::io::stdout())?;
        }
        Some(component) => bail!(
            "no log of {component:?}; there are: {}\nWhat runs in pods, as Slurm's daemons do, Kubernetes keeps the logs of: `cargo xtask kubectl{1} get pods -A` and `cargo xtask kubectl{1} logs -n NAMESPACE POD`",
            known.join(", "),
            name_flag(name)
        ),
    }
    Ok(())
}
