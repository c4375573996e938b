//! `up`, `down`, `status` and the commands that run against a cluster.

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

use crate::first_job::{self, USER};
use crate::slurm::{self, Target};
use crate::workspace::{self, Build};
use crate::{Example, Pass, Up, interrupt, slurm_cluster, slurm_status};

pub fn up(options: &Up) -> Result<()> {
    let progress = Progress::new(options.verbose);
    if let Some(kubeconfig) = &options.kubeconfig {
        return up_elsewhere(kubeconfig, &progress);
    }
    ensure!(
        options.nodes > 0 || options.no_slurm,
        "--nodes 0: Slurm requires at least one node; add --no-slurm to run only a control plane"
    );
    interrupt::watched(&options.named.name, || up_here(options, &progress))
}

fn up_here(options: &Up, progress: &Progress) -> Result<()> {
    let begun = Instant::now();
    let build = if options.quick {
        Build::Quick
    } else {
        Build::Release
    };
    let name = &options.named.name;
    let cluster = start(progress, name, options.nodes, options.kwok, build)?;
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
        format!("inspect it   cargo xtask kubectl{} get pods -A", name_flag(name)),
    ];
    if !options.no_slurm {
        let target = Target::testbed(&cluster).with_operator(build)?;
        match options.example {
            Example::Quickstart => {
                slurm::install(&target, progress)?;
                lines.push(format!("first job    {}", first_job::run(&target, progress)?));
                lines.extend(day(&format!("cargo xtask shell{}", name_flag(name))));
            }
            Example::SlurmCluster => {
                lines.push(format!("first job    {}", slurm_cluster::run(&target, progress)?));
                lines.push(format!(
                    "look at it   cargo xtask kubectl{} -n slurm get slurmclusters",
                    name_flag(name)
                ));
            }
        }
        lines.push(format!("as root      cargo xtask shell{}", name_flag(name)));
    }
    lines.push(format!("stop it      cargo xtask down{}", name_flag(name)));
    println!("\nUp in {} s.\n", begun.elapsed().as_secs());
    for line in lines {
        println!("  {line}");
    }
    Ok(())
}

/// Instructions to repeat the first job: how to log in, and the commands to run.
fn day(shell: &str) -> Vec<String> {
    let mut lines = vec![format!("as {USER:<9} {shell} su --login {USER}")];
    lines.extend(
        first_job::COMMANDS
            .iter()
            .map(|command| format!("             {command}")),
    );
    lines
}

/// Builds and starts a cluster. If it is already running, only checks it.
pub fn start(progress: &Progress, name: &str, nodes: u8, kwok: u32, build: Build) -> Result<Cluster> {
    // Check this first, because the following steps take minutes.
    cluster::check(name, nodes)?;
    let cache = Cache::open()?;
    host::require(&cache)?;
    let packages: Vec<&str> = host::PACKAGES.iter().chain(image::PACKAGES).copied().collect();
    host::ensure_packages(progress, &cache.root().join("logs/apt.log"), &packages)?;
    host::require_network()?;
    let binaries = Binaries::build(&cache, progress)?;
    let images = if nodes == 0 {
        // Without nodes, no image is used.
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
        progress.line(&format!("cluster {name:?} is already running and healthy"));
    }
    Ok(cluster)
}

fn up_elsewhere(kubeconfig: &Path, progress: &Progress) -> Result<()> {
    ensure!(
        kubeconfig.is_file(),
        "--kubeconfig {}: no such file",
        kubeconfig.display()
    );
    let cache = Cache::open()?;
    let binaries = Binaries::build(&cache, progress)?;
    let target = Target::elsewhere(kubeconfig, &binaries)?;
    slurm::install(&target, progress)?;
    println!("\n  first job    {}", first_job::run(&target, progress)?);
    for line in day("kubectl --namespace slurm exec --stdin --tty deployment/slurm-login-users --") {
        println!("  {line}");
    }
    Ok(())
}

pub fn down(name: &str) -> Result<()> {
    cluster::down(name)?;
    println!("cluster {name:?} removed");
    Ok(())
}

pub fn status(only: Option<&str>) -> Result<()> {
    let names = match only {
        Some(name) => {
            cluster::known(name)?;
            vec![name.to_owned()]
        }
        None => cluster::names()?,
    };
    if names.is_empty() {
        println!("no clusters found; to start one, run `cargo xtask up`");
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
                for line in slurm_status::lines(&cluster) {
                    println!("{line}");
                }
            }
            State::Absent => {}
            State::Stopped => println!(
                "{name}: stopped; to recreate it, run `cargo xtask up{}`",
                name_flag(&name)
            ),
            State::Broken => println!(
                "{name}: broken (the start was interrupted or a process died); run `cargo xtask up{0}` to recreate it or `cargo xtask down{0}` to remove it; logs are in {1}",
                name_flag(&name),
                layout.logs().display()
            ),
        }
    }
    Ok(())
}

pub fn kubectl(pass: &Pass) -> Result<ExitCode> {
    // These two subcommands have their own --name flag.
    if !pass
        .words
        .iter()
        .any(|word| word == "expose" || word == "autoscale")
    {
        name_comes_first("kubectl", &pass.words)?;
    }
    let cluster = Cluster::open(&pass.named.name)?;
    become_program(cluster.kubectl().args(&pass.words))
}

pub fn helm(pass: &Pass) -> Result<ExitCode> {
    name_comes_first("helm", &pass.words)?;
    let cluster = Cluster::open(&pass.named.name)?;
    become_program(cluster.helm().args(&pass.words))
}

/// All words after the first one are passed to the program. It would reject a cluster name there with an unhelpful message, or the
/// command would run against the wrong cluster. Words after `--` are for a program in a pod.
fn name_comes_first(program: &str, words: &[String]) -> Result<()> {
    let own: Vec<&str> = words
        .iter()
        .map(String::as_str)
        .take_while(|&word| word != "--")
        .collect();
    let Some(place) = own
        .iter()
        .position(|word| *word == "--name" || word.starts_with("--name="))
    else {
        return Ok(());
    };
    let (flag, after) = own.split_at(place);
    let (name, rest) = match after.split_first() {
        Some((word, rest)) => match (word.strip_prefix("--name="), rest.split_first()) {
            (Some(name), _) => (name, rest),
            (None, Some((name, rest))) => (*name, rest),
            (None, None) => ("NAME", rest),
        },
        None => ("NAME", after),
    };
    bail!(
        "--name must come before the arguments of {program}: `cargo xtask {program} --name {name} {}`",
        [flag, rest].concat().join(" ")
    )
}

/// Replaces this process with the program, so that it gets the signals and the terminal and sets the exit status.
pub fn become_program(command: &mut Command) -> Result<ExitCode> {
    Err(command.exec())
        .with_context(|| format!("failed to start {}", command.get_program().to_string_lossy()))
}

pub fn logs(name: &str, component: Option<&str>) -> Result<()> {
    let layout = cluster::known(name)?;
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
            "no log for component {component:?}; available logs: {}\nFor programs that run in pods, such as the Slurm daemons, use `cargo xtask kubectl{1} get pods -A` and `cargo xtask kubectl{1} logs -n NAMESPACE POD`",
            known.join(", "),
            name_flag(name)
        ),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> Option<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        name_comes_first("kubectl", &words)
            .err()
            .map(|error| error.to_string())
    }

    #[test]
    fn a_name_behind_the_programs_words_is_refused_with_the_right_order() {
        for line in [
            "get --name mine pods",
            "get pods --name=mine",
            "get pods --name mine",
        ] {
            let told = refused(line).unwrap_or_default();
            assert!(
                told.contains("`cargo xtask kubectl --name mine get pods`"),
                "{line}: {told}"
            );
        }
        assert!(refused("get pods --name").is_some());
    }

    #[test]
    fn what_a_program_in_a_pod_is_told_is_nobodys_business() {
        assert_eq!(refused("exec pod -- squeue --name mine"), None);
        assert_eq!(refused("get pods --namespace mine"), None);
    }
}
