//! Starts a daemon, tracks it across hand-overs to a new process, and collects its exit status.
//!
//! One thread starts and reaps all children, so that no other thread takes an exit status. Other threads send signals,
//! notify messages and log lines over one channel. A daemon that hands over waits until its message was received (the
//! barrier) before it exits, so the message is in the channel before the exit is seen.

use std::collections::VecDeque;
use std::io::{ErrorKind, PipeReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, test_kill_process, wait};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::log::{Log, LogLine};
use crate::notify::{Message, Socket};
use crate::service::Service;

/// An event of a daemon or its manager.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The container must stop.
    Stop,
    /// A reload of the configuration was requested (SIGHUP).
    Reload,
    /// The daemon has started, or has handed over to a new process.
    Ready,
    /// The daemon continues with the configuration that it had.
    Resumed,
    /// The daemon ended with this status.
    Ended(i32),
}

/// A message from one of the threads.
#[derive(Debug)]
enum Incoming {
    Signal(i32),
    Notify(Message),
    LogLine(LogLine),
    LogEnded,
}

/// How long to wait for a daemon's last log lines. Its children may keep the pipe open, so there may be no end of file.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The daemon and its sidecar programs, and a source of events about them.
#[derive(Debug)]
pub struct Manager {
    incoming: Receiver<Incoming>,
    sender: Sender<Incoming>,
    notify: Option<PathBuf>,
    events: VecDeque<Event>,
    main: Option<i32>,
    fatal: Option<String>,
    error: Option<String>,
    beside: Vec<Service>,
    /// The signal that makes the daemon exit gracefully.
    stop_signal: Signal,
    stopping: bool,
}

impl Manager {
    /// Installs signal handlers and, if a `directory` is given, creates a notify socket in it for the daemon.
    pub fn new(directory: Option<&Path>) -> std::io::Result<Self> {
        // In a pod with a shared process namespace we are not the first process, but must still reap orphans.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let (sender, incoming) = channel();
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGCHLD])?;
        let to_signals = sender.clone();
        thread::spawn(move || {
            for signal in signals.forever() {
                let _ = to_signals.send(Incoming::Signal(signal));
            }
        });
        let socket = directory.map(Socket::bind).transpose()?;
        let notify = socket.as_ref().map(|socket| socket.path().to_owned());
        if let Some(socket) = socket {
            let to_notify = sender.clone();
            thread::spawn(move || receive(&socket, &to_notify));
        }
        Ok(Self {
            incoming,
            sender,
            notify,
            events: VecDeque::new(),
            main: None,
            fatal: None,
            error: None,
            beside: Vec::new(),
            stop_signal: Signal::TERM,
            stopping: false,
        })
    }

    /// Sets the signal that makes the daemon exit gracefully; the default is SIGTERM.
    #[must_use]
    pub fn stopped_by(mut self, signal: Signal) -> Self {
        self.stop_signal = signal;
        self
    }

    /// Starts a daemon and copies its output to our standard output.
    pub fn start(
        &mut self,
        program: &Path,
        args: &[String],
        environment: &[(String, String)],
    ) -> std::io::Result<()> {
        self.forget_reasons();
        // One pipe for both streams, so that lines stay complete and in order.
        let (output, input) = std::io::pipe()?;
        let mut command = Command::new(program);
        command
            .args(args)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(input.try_clone()?)
            .stderr(input);
        if let Some(path) = &self.notify {
            command.env("NOTIFY_SOCKET", path);
        }
        let child = command.spawn()?;
        self.main = i32::try_from(child.id()).ok();
        let sender = self.sender.clone();
        thread::spawn(move || copy(output, &sender));
        Ok(())
    }

    /// Adds a sidecar program that is kept running.
    pub fn add_beside(&mut self, service: Service) {
        self.beside.push(service);
    }

    /// Asks the daemon, and the sidecar programs that it does not need, to exit.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.signal(self.stop_signal);
        let needless = self
            .beside
            .iter_mut()
            .filter(|service| !service.outlasts_daemon());
        for pid in needless.filter_map(Service::stop) {
            signal(pid, Signal::TERM);
        }
    }

    /// Asks one sidecar program to exit.
    pub fn stop_beside(&mut self, name: &str) {
        let service = self.beside.iter_mut().find(|service| service.name() == name);
        if let Some(pid) = service.and_then(Service::stop) {
            signal(pid, Signal::TERM);
        }
    }

    /// Reports whether the kernel lists children other than the daemon and the sidecar programs.
    pub fn has_orphans(&self) -> bool {
        let known: Vec<i32> = self
            .beside
            .iter()
            .filter_map(Service::pid)
            .chain(self.main)
            .collect();
        children().iter().any(|child| !known.contains(child))
    }

    /// Returns the daemon's process ID, if it runs.
    pub fn main(&self) -> Option<i32> {
        self.main
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, which: Signal) {
        if let Some(pid) = self.main {
            signal(pid, which);
        }
    }

    /// Returns the daemon's log message about why it exited or could not hand over.
    pub fn reason(&self) -> Option<&str> {
        self.fatal.as_deref().or(self.error.as_deref())
    }

    /// Clears earlier reasons, so that an old one is not reported for a new failure.
    pub fn forget_reasons(&mut self) {
        self.fatal = None;
        self.error = None;
    }

    /// Returns the next event, if one arrives within `limit`.
    pub fn next(&mut self, limit: Duration) -> Option<Event> {
        let until = Instant::now() + limit;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let now = Instant::now();
            for service in &mut self.beside {
                service.start_if_due(now);
            }
            let due = self
                .beside
                .iter()
                .filter_map(Service::due)
                .fold(until, Instant::min);
            match self.incoming.recv_timeout(due.saturating_duration_since(now)) {
                Ok(incoming) => self.take(incoming),
                Err(_) if Instant::now() >= until => return None,
                Err(_) => {}
            }
        }
    }

    fn take(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Signal(SIGCHLD) => self.reap(),
            Incoming::Signal(SIGHUP) => self.events.push_back(Event::Reload),
            Incoming::Signal(_) => self.events.push_back(Event::Stop),
            // Only the daemon itself may name its successor. Jobs run next to slurmd, some as root.
            Incoming::Notify(message) if message.sender == self.main => self.follow(&message),
            Incoming::Notify(message) if message.main_pid.is_some() => {
                eprintln!("init: ignored a notify message that did not come from the daemon: {message:?}");
            }
            Incoming::LogLine(line) => self.handle_log_line(line),
            Incoming::Notify(_) | Incoming::LogEnded => {}
        }
    }

    fn follow(&mut self, message: &Message) {
        if let Some(pid) = message.main_pid {
            self.main = Some(pid);
            // The stop signal may have reached the old process too late.
            if self.stopping {
                self.signal(self.stop_signal);
            }
            // The new process may already have been reaped as an orphan.
            if !exists(pid) {
                self.main = None;
                self.events.push_back(Event::Ended(1));
            }
        }
        if message.ready {
            self.events.push_back(Event::Ready);
        }
    }

    fn handle_log_line(&mut self, line: LogLine) {
        match line {
            LogLine::Fatal(text) => self.fatal = Some(text),
            LogLine::Error(text) => self.error = Some(text),
            LogLine::Resumed => self.events.push_back(Event::Resumed),
        }
    }

    fn reap(&mut self) {
        let mut ended = Vec::new();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let code = status
                .exit_status()
                .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
                .unwrap_or(1);
            ended.push((pid.as_raw_nonzero().get(), code));
        }
        self.account_for(&ended);
    }

    fn account_for(&mut self, ended: &[(i32, i32)]) {
        // The daemon may already have handed over to another process, and the message is still in the channel.
        self.listen(Duration::ZERO);
        for &(pid, code) in ended {
            if Some(pid) == self.main {
                // The reason comes from the log, which may arrive after the exit.
                if code != 0 && !self.stopping && self.fatal.is_none() {
                    self.listen(LAST_WORDS);
                }
                self.main = None;
                self.events.push_back(Event::Ended(code));
            } else {
                let now = Instant::now();
                self.beside
                    .iter_mut()
                    .any(|service| service.ended(pid, code, now));
            }
        }
    }

    /// Handles the messages in the channel, and those that arrive within `limit` until a fatal error or the end of the
    /// log. Signals are sent back to the channel for later.
    fn listen(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut signals = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.incoming.recv_timeout(left) {
                Ok(signal @ Incoming::Signal(_)) => signals.push(signal),
                Ok(Incoming::LogEnded) if !limit.is_zero() => break,
                Ok(incoming) => self.take(incoming),
                Err(_) => break,
            }
            if !limit.is_zero() && self.fatal.is_some() {
                break;
            }
        }
        for signal in signals {
            let _ = self.sender.send(signal);
        }
    }
}

fn exists(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

fn children() -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let of_thread = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children")).ok();
    let lists: Vec<String> = threads.flatten().filter_map(of_thread).collect();
    lists
        .iter()
        .flat_map(|list| list.split_whitespace())
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

fn receive(socket: &Socket, sender: &Sender<Incoming>) {
    loop {
        match socket.receive() {
            Ok(message) => drop(sender.send(Incoming::Notify(message))),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                eprintln!("init: failed to read the notify socket: {error}");
                return;
            }
        }
    }
}

/// Copies a daemon's output and scans it. If the reader of our output blocks, so does the daemon, as with any pipe.
fn copy(mut output: PipeReader, sender: &Sender<Incoming>) {
    let mut log = Log::default();
    let mut buffer = [0; 16 * 1024];
    loop {
        let piece = match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => buffer.get(..read).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(piece).and_then(|()| stdout.flush());
        drop(stdout);
        for line in log.read(piece) {
            let _ = sender.send(Incoming::LogLine(line));
        }
    }
    let _ = sender.send(Incoming::LogEnded);
}

/// Returns the path of a program in the usual directories, or only its name if it is in none of them.
pub fn find(program: &str) -> PathBuf {
    [
        "/usr/sbin",
        "/usr/bin",
        "/usr/local/sbin",
        "/usr/local/bin",
        "/sbin",
        "/bin",
    ]
    .iter()
    .map(|directory| Path::new(directory).join(program))
    .find(|path| path.exists())
    .unwrap_or_else(|| PathBuf::from(program))
}

#[cfg(test)]
mod tests;
