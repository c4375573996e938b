//! Ctrl-C in `up`: says what is left on the machine and how to go on, instead of ending in silence.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Result;
use testbed::cluster::{self, State, name_flag};
use testbed::layout::Layout;

/// The exit status of a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// How long the work under way may take to end: the programs that it runs get the same signal, and helm notes in the cluster that its
/// release is not complete.
const GRACE: Duration = Duration::from_secs(5);

/// How much later than the programs that this one runs it may learn of the signal.
const LATER: Duration = Duration::from_millis(300);

/// Does work on a cluster; Ctrl-C meanwhile ends the program with a message. Where signals cannot be watched, it ends as ever.
pub fn watched<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let (ends, ended) = channel();
    watch(name.to_owned(), Arc::clone(&interrupted), ended);
    let result = work();
    if result.is_err() {
        // A program that the same signal ended is no error to tell: the message is.
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
    // A message never comes: the channel breaks when the work has ended.
    let unwound = ended.recv_timeout(GRACE) == Err(RecvTimeoutError::Disconnected);
    let state = Layout::of(name).and_then(|layout| cluster::state(&layout));
    eprintln!("\n{}", message(name, state.ok().as_ref(), unwound));
    std::process::exit(INTERRUPTED);
}

/// What a person needs to know.
fn message(name: &str, state: Option<&State>, unwound: bool) -> String {
    let flag = name_flag(name);
    let left = match state {
        Some(State::Absent) => {
            format!(
                "Nothing of cluster {name:?} was started. What was built is kept in the cache.\n  go on    cargo xtask up{flag}"
            )
        }
        Some(State::Running) => format!(
            "Kubernetes of cluster {name:?} is running; Slurm may not be installed on it completely.\n  go on    cargo xtask up{flag}\n  look     cargo xtask status{}\n  stop it  cargo xtask down{flag}",
            only(name)
        ),
        Some(State::Broken | State::Stopped) | None => format!(
            "Cluster {name:?} is started in part. `up` removes that and starts it anew; what was built is kept in the cache.\n  go on    cargo xtask up{flag}\n  stop it  cargo xtask down{flag}"
        ),
    };
    let at_work = if unwound {
        ""
    } else {
        " A program that it had started may take a few seconds more to end."
    };
    format!("Interrupted.{at_work} {left}")
}

/// `status` shows all clusters unless it is told a name.
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
        assert!(message("mine", None, false).contains("a few seconds more"));
    }
}
