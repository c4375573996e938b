//! The Keelson binary, with a subcommand for each component that runs in a cluster.
//!
//! It contains only flags, logging and wiring. It must not decide anything about Slurm or Kubernetes objects.

mod flags;
mod logging;
mod operator;
mod process;
mod webhook;

use std::{
    ffi::OsString,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

// glibc does not return the memory of a large list to the system; jemalloc does.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Runs Slurm on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "keelson", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the controllers.
    Operator(Box<flags::Operator>),
    /// Runs the admission webhook for the custom resources.
    Webhook(Box<flags::Webhook>),
    /// Prints the custom resource definitions.
    Crds,
    /// Prints the version.
    Version,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    match Cli::parse_from(with_subcommand(std::env::args_os())).command {
        Command::Operator(flags) => operator::run(&flags),
        Command::Webhook(flags) => webhook::run(&flags),
        Command::Crds => print(&crds()?),
        Command::Version => print(&format!("keelson {}\n", env!("CARGO_PKG_VERSION"))),
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    io::stdout()
        .write_all(text.as_bytes())
        .context("failed to write to standard output")
}

fn crds() -> anyhow::Result<String> {
    let files = keelson_api::crds_yaml().context("failed to generate the custom resource definitions")?;
    Ok(files.into_iter().map(|(_, yaml)| yaml).collect())
}

/// Slinky's charts run the entrypoint of the image with flags only. The program name then selects the subcommand.
fn with_subcommand(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    let name = args
        .first()
        .and_then(|program| Path::new(program).file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let subcommand = match name.as_str() {
        "slurm-operator" | "manager" => "operator",
        "slurm-operator-webhook" | "webhook" => "webhook",
        _ => return args,
    };
    args.insert(1, subcommand.into());
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Command, clap::Error> {
        let args = with_subcommand(args.iter().map(OsString::from));
        Cli::try_parse_from(args).map(|cli| cli.command)
    }

    #[test]
    fn the_name_it_is_started_under_says_what_to_do() {
        assert!(matches!(
            parse(&["/usr/bin/manager", "--leader-elect"]),
            Ok(Command::Operator(_))
        ));
        assert!(matches!(parse(&["slurm-operator"]), Ok(Command::Operator(_))));
        assert!(matches!(
            parse(&["webhook", "--server-addr", ":9443"]),
            Ok(Command::Webhook(_))
        ));
        assert!(matches!(parse(&["keelson", "crds"]), Ok(Command::Crds)));
        assert!(parse(&["keelson"]).is_err());
    }

    #[test]
    fn the_peers_flags_are_understood() {
        let command = parse(&[
            "slurm-operator",
            "--zap-log-level",
            "info",
            "--health-addr",
            ":8081",
            "--metrics-addr=:8080",
            "--leader-elect=false",
            "--leader-elect-namespace",
            "slinky",
            "--namespaces=a,b",
            "--nodeset-workers=4",
            "--slurmclient-workers=2",
            "--propagated-node-conditions=GPUHealthy",
        ]);
        let Ok(Command::Operator(flags)) = command else {
            panic!("{command:?}")
        };
        assert!(!flags.leader_elect);
        assert_eq!(flags.namespaces, ["a", "b"]);
        assert_eq!(flags.workers.nodeset_workers, 4);
        assert_eq!(flags.propagated_node_conditions, ["GPUHealthy"]);
    }

    #[test]
    fn the_peers_webhook_flags_are_understood() {
        let command = parse(&[
            "slurm-operator-webhook",
            "--zap-log-level=info",
            "--health-addr=:8081",
            "--metrics-addr=0",
            "--metrics-secure=false",
            "--enable-http2",
            "--leader-elect",
            "--leader-elect-namespace=slinky",
            "--server-addr=:9443",
            "--namespaces=a,b",
        ]);
        let Ok(Command::Webhook(flags)) = command else {
            panic!("{command:?}")
        };
        assert_eq!(flags.namespaces, ["a", "b"]);
        assert_eq!(flags.certificate.cert_secret, None);
    }

    #[test]
    fn the_custom_resource_definitions_are_printed() {
        assert_eq!(
            crds().unwrap().matches("kind: CustomResourceDefinition").count(),
            7
        );
    }
}
