//! Ctrl-C in `up`: prints what remains on the machine and how to continue, instead of exiting silently.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Result;
use testbed::cluster::{self, State, name_flag};
use testbed::layout::Layout;

/// The exit status of a program terminated by SIGINT.
const INTERRUPTED: i32 = 130;

/// How long the current work may take to end. The programs that it runs receive the same signal, and helm marks its release as
/// incomplete in the cluster.
const GRACE: Duration = Duration::from_secs(5);

/// The maximum delay between the arrival of the signal in child programs and in this program.
const LATER: Duration = Duration::from_millis(300);

/// Runs work on a cluster; Ctrl-C ends the program with a message. If signals cannot be watched, Ctrl-C ends it as usual.
pub fn watched<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let (ends, ended) = channel();
    watch(name.to_owned(), Arc::clone(&interrupted), ended);
    let result = work();
    if result.is_err() {
        // The error of a program that was ended by the same signal is not shown; the message replaces it.
        std::thread::sleep(LATER);
        if interrupted.load(Ordering::SeqCst) {
            drop(ends);
            std::thread::sleep(GRACE);
        }
    }
    result
}

fn watch(name: String, interrupted: Arc<AtomicBool>, ended: Receiver<()>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    std::thread::spawn(move || {
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            interrupted.store(true, Ordering::SeqCst);
            leave(&name, &ended);
        }
    });
}

fn leave(name: &str, ended: &Receiver<()>) {
    // No message is ever sent: the channel disconnects when the work has ended.
    let unwound = ended.recv_timeout(GRACE) == Err(RecvTimeoutError::Disconnected);
    let state = Layout::of(name).and_then(|layout| cluster::state(&layout));
    eprintln!("\n{}", message(name, state.ok().as_ref(), unwound));
    std::process::exit(INTERRUPTED);
}

/// The message for the user.
fn message(name: &str, state: Option<&State>, unwound: bool) -> String {
    let flag = name_flag(name);
    let left = match state {
        Some(State::Absent) => {
            format!(
                "Cluster {name:?} was not started. Build results are kept in the cache.\n  continue  cargo xtask up{flag}"
            )
        }
        Some(State::Running) => format!(
            "Kubernetes cluster {name:?} is running; Slurm may not be installed completely.\n  continue  cargo xtask up{flag}\n  inspect   cargo xtask status{}\n  remove    cargo xtask down{flag}",
            only(name)
        ),
        Some(State::Broken | State::Stopped) | None => format!(
            "Cluster {name:?} is partially started. `up` removes and recreates it; build results are kept in the cache.\n  continue  cargo xtask up{flag}\n  remove    cargo xtask down{flag}"
        ),
    };
    let at_work = if unwound {
        ""
    } else {
        " A program that it started may take a few more seconds to exit."
    };
    format!("Interrupted.{at_work} {left}")
}

/// `status` shows all clusters unless a name is given.
fn only(name: &str) -> String {
    format!(" --name {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_a_way_on_that_names_the_cluster() {
        for state in [State::Absent, State::Broken, State::Stopped, State::Running] {
            let told = message("mine", Some(&state), true);
            assert!(told.contains("cargo xtask up --name mine"), "{state:?}: {told}");
            let there = state != State::Absent;
            assert_eq!(
                told.contains("cargo xtask down --name mine"),
                there,
                "{state:?}: {told}"
            );
        }
        assert!(message("mine", None, false).contains("a few more seconds"));
    }
}
