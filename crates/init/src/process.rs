//! Starting a daemon, following it through hand-overs, and ending with its exit status.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::notify::{Message, Socket};

/// What happens to a daemon and its manager.
#[derive(Debug)]
pub enum Event {
    /// The container is to stop.
    Stop,
    /// Somebody asked for the configuration to be read again.
    Reload,
    /// The daemon said something on its socket.
    Notify(Message),
    /// A line of the daemon's log.
    Log(String),
    /// A process ended with this status.
    Ended {
        /// Which one.
        pid: i32,
        /// What the container would exit with.
        code: i32,
    },
}

/// Where a hand-over's message may still be on its way when the old process is already gone.
const HAND_OVER: Duration = Duration::from_secs(2);

/// How many log lines are kept to explain an end.
const KEPT_LINES: usize = 50;

/// A program that runs beside the daemon and is started again whenever it ends.
#[derive(Debug)]
pub struct Service {
    name: &'static str,
    args: Vec<String>,
    user: Option<u32>,
    running: Option<i32>,
}

/// How long a program stays down after it ended.
const PAUSE: Duration = Duration::from_secs(1);

impl Service {
    /// A program by its name.
    pub fn new(name: &'static str, args: impl IntoIterator<Item = String>) -> Self {
        Self {
            name,
            args: args.into_iter().collect(),
            user: None,
            running: None,
        }
    }

    /// Not as root.
    #[must_use]
    pub fn run_as(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    fn start(&mut self) {
        let mut command = Command::new(find(self.name));
        command.args(&self.args).stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        match command.spawn() {
            Ok(child) => self.running = i32::try_from(child.id()).ok(),
            Err(error) => eprintln!("init: cannot start {}: {error}", self.name),
        }
    }
}

/// A source of events, and the daemon that they are about.
#[derive(Debug)]
pub struct Manager {
    events: Receiver<Event>,
    sender: Sender<Event>,
    socket: Option<Arc<Socket>>,
    waiting: VecDeque<Event>,
    main: Option<i32>,
    lines: VecDeque<String>,
    beside: Vec<Service>,
}

impl Manager {
    /// Takes over signals, and offers a notify socket in `directory` to a daemon that speaks to one. Only its owner may
    /// enter the directory: jobs run beside slurmd, and whoever can write to the socket can name the main process.
    pub fn new(directory: Option<&Path>) -> std::io::Result<Self> {
        // In a pod with a shared process namespace we are not the first process, but orphans are still ours to reap.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let (sender, events) = channel();
        let socket = directory.map(offer).transpose()?.map(Arc::new);
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGCHLD])?;
        let to_signals = sender.clone();
        thread::spawn(move || {
            for signal in signals.forever() {
                match signal {
                    SIGCHLD => reap(&to_signals),
                    SIGHUP => drop(to_signals.send(Event::Reload)),
                    _ => drop(to_signals.send(Event::Stop)),
                }
            }
        });
        if let Some(socket) = socket.clone() {
            let to_notify = sender.clone();
            thread::spawn(move || {
                while let Ok(message) = socket.receive() {
                    if to_notify.send(Event::Notify(message)).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self {
            events,
            sender,
            socket,
            waiting: VecDeque::new(),
            main: None,
            lines: VecDeque::new(),
            beside: Vec::new(),
        })
    }

    /// Starts a daemon whose lines go to our standard output.
    pub fn start(
        &mut self,
        program: &Path,
        args: &[String],
        environment: &[(String, String)],
    ) -> std::io::Result<()> {
        self.lines.clear();
        let mut command = Command::new(program);
        command
            .args(args)
            .envs(environment.iter().map(|(name, value)| (name, value)));
        if let Some(socket) = &self.socket {
            command.env("NOTIFY_SOCKET", socket.path());
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        self.main = i32::try_from(child.id()).ok();
        if let Some(output) = child.stdout.take() {
            self.copy_lines(output);
        }
        if let Some(output) = child.stderr.take() {
            self.copy_lines(output);
        }
        Ok(())
    }

    fn copy_lines(&self, output: impl Read + Send + 'static) {
        let sender = self.sender.clone();
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let _ = std::io::stdout().write_all(&line);
                let _ = sender.send(Event::Log(String::from_utf8_lossy(&line).trim_end().to_owned()));
                line.clear();
            }
        });
    }

    /// Starts a program that is kept running beside the daemon.
    pub fn start_beside(&mut self, mut service: Service) {
        service.start();
        self.beside.push(service);
    }

    /// Asks the daemon and what runs beside it to end.
    pub fn stop(&self) {
        for pid in self
            .main
            .into_iter()
            .chain(self.beside.iter().filter_map(|service| service.running))
        {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
    }

    /// The daemon's process.
    pub fn main(&self) -> Option<i32> {
        self.main
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.main.and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// The last line that says why the daemon gave up.
    pub fn fatal_line(&self) -> Option<String> {
        let found = self.lines.iter().rev().find(|line| line.contains("fatal:"));
        found
            .and_then(|line| line.find("fatal:").and_then(|at| line.get(at..)))
            .map(str::to_owned)
    }

    /// Forgets the lines that were kept, so that an old reason is not taken for a new one.
    pub fn forget_lines(&mut self) {
        self.lines.clear();
    }

    /// The next event, if one comes within `limit`. The daemon's end is told only when no hand-over explains it.
    pub fn next(&mut self, limit: Duration) -> Option<Event> {
        let event = match self.waiting.pop_front() {
            Some(event) => event,
            None => self.receive(limit)?,
        };
        match &event {
            Event::Notify(Message {
                main_pid: Some(pid), ..
            }) => self.main = Some(*pid),
            Event::Ended { pid, .. } if Some(*pid) == self.main && self.handed_over(*pid) => return None,
            Event::Ended { pid, code } => {
                if let Some(service) = self
                    .beside
                    .iter_mut()
                    .find(|service| service.running == Some(*pid))
                {
                    println!(
                        "init: {} ended with status {code}, starting it again",
                        service.name
                    );
                    thread::sleep(PAUSE);
                    service.start();
                }
            }
            _ => {}
        }
        Some(event)
    }

    fn receive(&mut self, limit: Duration) -> Option<Event> {
        match self.events.recv_timeout(limit) {
            Ok(event) => {
                if let Event::Log(line) = &event {
                    self.lines.push_back(line.clone());
                    if self.lines.len() > KEPT_LINES {
                        self.lines.pop_front();
                    }
                }
                Some(event)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Whether the daemon lives on in another process. Signals and messages come by different ways, so the message may
    /// be behind.
    fn handed_over(&mut self, ended: i32) -> bool {
        let begun = Instant::now();
        while let Some(left) = HAND_OVER.checked_sub(begun.elapsed()) {
            let Some(event) = self.receive(left) else { break };
            if let Event::Notify(Message {
                main_pid: Some(pid), ..
            }) = &event
                && *pid != ended
            {
                self.main = Some(*pid);
                self.waiting.push_back(event);
                return true;
            }
            // A log's end says that nobody is left who could take over.
            self.waiting.push_back(event);
        }
        false
    }
}

fn offer(directory: &Path) -> std::io::Result<Socket> {
    std::fs::create_dir_all(directory)?;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))?;
    Socket::bind(&directory.join("notify"))
}

fn reap(sender: &Sender<Event>) {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        let code = status
            .exit_status()
            .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
            .unwrap_or(1);
        let _ = sender.send(Event::Ended {
            pid: pid.as_raw_nonzero().get(),
            code,
        });
    }
}

/// The first of the usual places where a program is.
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
