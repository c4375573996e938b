//! Programs that run beside the daemon and are started again whenever they end.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::find;

/// How long a program stays down after it ended.
const PAUSE: Duration = Duration::from_secs(1);

/// One program.
#[derive(Debug)]
pub struct Service {
    name: &'static str,
    args: Vec<String>,
    user: Option<u32>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running(i32),
    /// To be started then.
    Due(Instant),
    /// Not to be started any more.
    Stopped,
}

impl Service {
    /// A program by its name.
    pub fn new(name: &'static str, args: impl IntoIterator<Item = String>) -> Self {
        Self {
            name,
            args: args.into_iter().collect(),
            user: None,
            state: State::Due(Instant::now()),
        }
    }

    /// Not as root. Only root can become somebody else.
    #[must_use]
    pub fn run_as(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its process, if it runs.
    pub fn pid(&self) -> Option<i32> {
        match self.state {
            State::Running(pid) => Some(pid),
            State::Due(_) | State::Stopped => None,
        }
    }

    /// When it has to be started, if it has to.
    pub fn due(&self) -> Option<Instant> {
        match self.state {
            State::Due(at) => Some(at),
            State::Running(_) | State::Stopped => None,
        }
    }

    /// Starts it if that is due.
    pub fn start_if_due(&mut self, now: Instant) {
        if self.due().is_none_or(|at| at > now) {
            return;
        }
        self.state = match self.spawn() {
            Ok(pid) => State::Running(pid),
            Err(error) => {
                eprintln!("init: cannot start {}: {error}", self.name);
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

    /// A process has ended. Says whether it was this one's.
    pub fn ended(&mut self, pid: i32, code: i32, now: Instant) -> bool {
        if self.pid() != Some(pid) {
            return false;
        }
        println!("init: {} ended with status {code}, starting it again", self.name);
        self.state = State::Due(now + PAUSE);
        true
    }

    /// It is not started any more. Its process, if it runs, has to be ended by the caller.
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
