//! The first process of the Slurm images: a service manager for one daemon.
//!
//! `init slurmctld|slurmd|slurmdbd|slurmrestd|login ARGS…`, where ARGS are shell words in the form that every Slurm image
//! takes (see [`words`]). It offers the notify socket that `--systemd` daemons speak to, follows them through
//! hand-overs, reaps orphans, passes signals on, copies their log to standard output and ends with their status.
//! For slurmctld it also carries configuration changes in (see [`transaction`]). `init pause` does nothing, as the
//! first process of a pod's sandbox.

mod failback;
mod files;
mod groups;
mod log;
mod login;
mod notify;
mod plain_daemon;
mod process;
mod process_start;
mod registration;
mod role;
mod service;
mod shell_args;
mod slurmctld;
mod slurmd;
mod sshd;
mod sssd;
mod status;
mod store;
mod transaction;
mod users;

use std::process::ExitCode;

/// Where the pod mounts configuration and keys.
const MOUNTED: &str = "/etc/slurm";
/// Where the pod mounts users and groups that come from files.
const EXTRA_USERS: &str = slurm_conf::sshd_config::EXTRA_USERS;
/// Our own directory.
const RUN: &str = "/run/init";
/// Where daemons read what was mounted, with the owner and modes that they insist on.
const RUN_CONF: &str = "/run/slurm-conf";

/// Slurm's own user in every image.
const SLURM_USER: u32 = 401;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(daemon) = args.next() else {
        eprintln!("usage: init slurmctld|slurmd|slurmdbd|slurmrestd|login|pause ARGS…");
        return ExitCode::from(64);
    };
    let args: Vec<String> = args.collect();
    let words = match shell_args::split(&args, |name| std::env::var(name).ok()) {
        Ok(words) => words,
        Err(error) => {
            eprintln!("init: {error}: {args:?}");
            return ExitCode::from(64);
        }
    };
    let ended = match daemon.as_str() {
        "slurmctld" => slurmctld::run(&words),
        "slurmd" => slurmd::run(words),
        "slurmdbd" => plain_daemon::slurmdbd(&words),
        "slurmrestd" => plain_daemon::slurmrestd(&words),
        "login" => login::run(),
        "pause" => pause(),
        other => {
            eprintln!("init: unknown daemon {other:?}");
            return ExitCode::from(64);
        }
    };
    match ended {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            eprintln!("init: {daemon}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Holds a pod's namespaces and reaps its orphans.
fn pause() -> std::io::Result<i32> {
    use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGCHLD])?;
    for signal in signals.forever() {
        if signal != SIGCHLD {
            break;
        }
        while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
    }
    Ok(0)
}
