//! The first process of the Slurm images: a service manager for one daemon.
//!
//! `init slurmctld|slurmd|slurmdbd|slurmrestd|login ARGS…` (shell words, see [`shell_args`]) starts the daemon, offers
//! the notify socket that `--systemd` daemons use, follows the daemon across hand-overs to a new process, reaps
//! orphans, forwards signals, copies the log to standard output and exits with the daemon's status. For slurmctld it
//! also applies configuration changes (see [`transaction`]). `init pause` only reaps orphans, as the first process of a
//! pod sandbox. `init` must not run its arguments through a shell and must not call the Kubernetes API.

mod database;
mod failback;
mod files;
mod first_save;
mod groups;
mod live_files;
mod log;
mod login;
mod munge;
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

use slurm_conf::container::dir;

/// Where the pod mounts configuration and keys.
const MOUNTED: &str = dir::SLURM_ETC;
/// Where the pod mounts users and groups from files.
const EXTRA_USERS: &str = slurm_conf::sshd_config::EXTRA_USERS;
/// The directory of `init` itself.
const RUN: &str = "/run/init";
/// Where daemons read copies of the mounted files, with the owner and modes that they require.
const RUN_CONF: &str = "/run/slurm-conf";

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

/// Keeps the pod's namespaces alive and reaps orphans.
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
