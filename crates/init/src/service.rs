//! Sidecar programs that run next to the daemon and are restarted when they exit.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::find;

/// How long to wait before a program is restarted.
const PAUSE: Duration = Duration::from_secs(1);

/// One program.
#[derive(Debug)]
pub struct Service {
    name: &'static str,
    args: Vec<String>,
    user: Option<u32>,
    outlasts_daemon: bool,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running(i32),
    /// To be started at this time.
    Due(Instant),
    /// Not to be started again.
    Stopped,
}

impl Service {
    /// Creates a service for the program of this name.
    pub fn new(name: &'static str, args: impl IntoIterator<Item = String>) -> Self {
        Self {
            name,
            args: args.into_iter().collect(),
            user: None,
            outlasts_daemon: false,
            state: State::Due(Instant::now()),
        }
    }

    /// Runs the program as this user, which only root can do.
    #[must_use]
    pub fn run_as(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// Keeps the program running while the daemon stops, because the daemon needs it until then.
    #[must_use]
    pub fn until_the_end(mut self) -> Self {
        self.outlasts_daemon = true;
        self
    }

    /// Reports whether it must run until the container ends.
    pub fn outlasts_daemon(&self) -> bool {
        self.outlasts_daemon
    }

    /// Returns the program's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns its process ID, if it runs.
    pub fn pid(&self) -> Option<i32> {
        match self.state {
            State::Running(pid) => Some(pid),
            State::Due(_) | State::Stopped => None,
        }
    }

    /// Returns when it must be started, if it must.
    pub fn due(&self) -> Option<Instant> {
        match self.state {
            State::Due(at) => Some(at),
            State::Running(_) | State::Stopped => None,
        }
    }

    /// Starts it if it is due.
    pub fn start_if_due(&mut self, now: Instant) {
        if self.due().is_none_or(|at| at > now) {
            return;
        }
        self.state = match self.spawn() {
            Ok(pid) => State::Running(pid),
            Err(error) => {
                eprintln!("init: failed to start {}: {error}", self.name);
                State::Due(now + PAUSE)
            }
        };
    }

    fn spawn(&self) -> io::Result<i32> {
        let mut command = Command::new(find(self.name));
        command.args(&self.args).stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        i32::try_from(command.spawn()?.id()).map_err(io::Error::other)
    }

    /// Schedules a restart if the process that ended was this program's. Returns whether it was.
    pub fn ended(&mut self, pid: i32, code: i32, now: Instant) -> bool {
        if self.pid() != Some(pid) {
            return false;
        }
        println!("init: {} exited with status {code}, restarting it", self.name);
        self.state = State::Due(now + PAUSE);
        true
    }

    /// Prevents further starts. Returns the process, if it runs, which the caller must stop.
    pub fn stop(&mut self) -> Option<i32> {
        let pid = self.pid();
        self.state = State::Stopped;
        pid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_is_started_again_after_a_pause() {
        let now = Instant::now();
        let mut service = Service::new("sleep", ["60".to_owned()]);
        service.start_if_due(now + PAUSE);
        let pid = service.pid().unwrap();
        assert!(!service.ended(pid + 1, 0, now), "another's process");
        assert!(service.ended(pid, 1, now));
        assert_eq!((service.pid(), service.due()), (None, Some(now + PAUSE)));
        service.start_if_due(now);
        assert_eq!(service.pid(), None, "too early");
        service.start_if_due(now + PAUSE);
        let second = service.pid().unwrap();
        assert_eq!(service.stop(), Some(second));
        assert_eq!((service.pid(), service.due()), (None, None));
        for pid in [pid, second] {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_started_is_tried_again() {
        let now = Instant::now();
        let mut service = Service::new("no-such-program", []).run_as(rustix::process::getuid().as_raw());
        service.start_if_due(now + PAUSE);
        assert_eq!((service.pid(), service.due()), (None, Some(now + PAUSE + PAUSE)));
    }
}
