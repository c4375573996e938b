//! Compares the start of a process with a point in time.

use std::thread;

/// Returns the start time of a process or thread in the kernel's clock ticks.
fn began(stat: &str) -> Option<u64> {
    let text = std::fs::read_to_string(stat).ok()?;
    // The name, in parentheses, may contain any characters.
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// A point in time on the same clock as the start times of processes.
#[derive(Debug, Clone, Copy)]
pub struct Moment(Option<u64>);

impl Moment {
    /// Returns the current time, measured as the start time of a new thread.
    pub fn now() -> Self {
        let now = thread::spawn(|| began("/proc/thread-self/stat"));
        Self(now.join().ok().flatten())
    }

    /// Reports whether a process started before this moment.
    pub fn is_after_start_of(self, pid: i32) -> bool {
        began(&format!("/proc/{pid}/stat")).is_some_and(|began| self.0.is_some_and(|moment| began < moment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn a_process_that_runs_began_before_now_and_not_after() {
        let us = rustix::process::getpid().as_raw_nonzero().get();
        // The kernel's clock tick is a hundredth of a second.
        thread::sleep(Duration::from_millis(30));
        let moment = Moment::now();
        assert!(moment.is_after_start_of(us));
        thread::sleep(Duration::from_millis(30));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!moment.is_after_start_of(i32::try_from(child.id()).unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            !moment.is_after_start_of(i32::MAX),
            "who is gone began at any time"
        );
    }
}
