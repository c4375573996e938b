//! slurmctld: started as a service, with configuration changes carried in one at a time.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::files::Files;
use crate::process::{Event, Manager, find};
use crate::transaction::{Report, Step, Transaction};
use crate::{MOUNTED, RUN, RUN_CONF};

/// Where the report is served.
const PORT: u16 = 6816;

/// How often the mounted files are looked at. The kubelet swaps them in one go.
const LOOK: Duration = Duration::from_millis(500);

/// How long slurmctld may take to say what it thinks of a candidate.
const VERDICT: Duration = Duration::from_mins(2);

/// What the log says when a candidate did not work.
const RESUMING: &str = "Resuming operation, reconfigure failed";

/// Runs slurmctld to its end and returns its exit status.
pub fn run(args: &[String]) -> std::io::Result<i32> {
    let mut manager = Manager::new(Some(Path::new(RUN)))?;
    let mounted = Files::read(Path::new(MOUNTED))?;
    let store = Store::of(&mounted);
    let (transaction, steps) = Transaction::begin(mounted, store.load());
    let status = Status::serve();
    let mut daemon = Daemon {
        manager: &mut manager,
        transaction,
        store,
        args,
        tried: Instant::now(),
        status,
    };
    if let Some(code) = daemon.act(steps, 1)? {
        return Ok(code);
    }
    daemon.run()
}

struct Daemon<'a> {
    manager: &'a mut Manager,
    transaction: Transaction,
    store: Store,
    args: &'a [String],
    tried: Instant,
    status: Status,
}

impl Daemon<'_> {
    fn run(&mut self) -> std::io::Result<i32> {
        let mut looked = Instant::now();
        loop {
            self.status.set(self.manager.main(), self.transaction.report());
            let (steps, code) = match self.manager.next(LOOK) {
                Some(Event::Stop) => {
                    self.manager.signal(Signal::TERM);
                    return Ok(self.wait_for_end());
                }
                Some(Event::Notify(message)) if message.ready => (self.transaction.ready(), 0),
                Some(Event::Log(line)) if line.contains(RESUMING) => {
                    let why = self.manager.fatal_line().unwrap_or(line);
                    (self.transaction.refused(&why), 0)
                }
                Some(Event::Ended { pid, code }) if Some(pid) == self.manager.main() => {
                    let why = self
                        .manager
                        .fatal_line()
                        .unwrap_or_else(|| format!("slurmctld ended with status {code}"));
                    (self.transaction.ended(&why), code)
                }
                None if self.transaction.is_trying() && self.tried.elapsed() > VERDICT => (
                    self.transaction
                        .refused("slurmctld did not say what it thinks of this configuration"),
                    0,
                ),
                _ => (Vec::new(), 0),
            };
            if let Some(code) = self.act(steps, code)? {
                return Ok(code);
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                let steps = self.look();
                self.act(steps, 0)?;
            }
        }
    }

    /// Sees whether the mounted files, or those that the primary accepted, have changed.
    fn look(&mut self) -> Vec<Step> {
        // In the middle of the kubelet's swap a file may be missing: the next look sees the whole.
        let Ok(mounted) = Files::read(Path::new(MOUNTED)) else {
            return Vec::new();
        };
        let report = self.transaction.report();
        if mounted.hash() == report.candidate && report.candidate == report.active {
            return Vec::new();
        }
        let primary = is_primary();
        let steps = self.transaction.mounted(mounted, primary);
        if !steps.is_empty() || primary {
            return steps;
        }
        self.store
            .load()
            .map(|accepted| self.transaction.accepted_elsewhere(&accepted))
            .unwrap_or_default()
    }

    fn act(&mut self, steps: Vec<Step>, code: i32) -> std::io::Result<Option<i32>> {
        for step in steps {
            match step {
                Step::Install(files) => files.write(Path::new(RUN_CONF))?,
                Step::Keep(files) => self.store.keep(&files),
                Step::Start => {
                    let mut args = vec!["--systemd".to_owned()];
                    args.extend_from_slice(self.args);
                    self.manager.start(&find("slurmctld"), &args, &environment())?;
                }
                Step::Hangup => {
                    self.manager.forget_lines();
                    self.tried = Instant::now();
                    self.manager.signal(Signal::HUP);
                }
                Step::GiveUp => return Ok(Some(code.max(1))),
            }
        }
        Ok(None)
    }

    fn wait_for_end(&mut self) -> i32 {
        loop {
            if let Some(Event::Ended { pid, code }) = self.manager.next(Duration::from_secs(1))
                && Some(pid) == self.manager.main()
            {
                return code;
            }
        }
    }
}

/// Where daemons find their files.
pub fn environment() -> Vec<(String, String)> {
    vec![("SLURM_CONF".to_owned(), format!("{RUN_CONF}/slurm.conf"))]
}

/// Whether this slurmctld is in charge. Only then does it answer this with success.
fn is_primary() -> bool {
    let ask = || -> std::io::Result<bool> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 6817));
        let mut connection = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(2)))?;
        connection.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = [0; 32];
        let read = connection.read(&mut answer)?;
        Ok(answer
            .get(..read)
            .is_some_and(|start| start.starts_with(b"HTTP/1.1 2")))
    };
    ask().unwrap_or(false)
}

/// The last good files, beside slurmctld's own state so that they outlive the pod and are shared by standbys.
#[derive(Debug)]
struct Store {
    directory: Option<PathBuf>,
}

impl Store {
    fn of(mounted: &Files) -> Self {
        let state = mounted.parameter("StateSaveLocation");
        Self {
            directory: state.map(|state| Path::new(&state).join(".keelson/last-good")),
        }
    }

    fn load(&self) -> Option<Files> {
        Files::read(self.directory.as_ref()?)
            .ok()
            .filter(|files| files.get("slurm.conf").is_some())
    }

    fn keep(&self, files: &Files) {
        let Some(directory) = &self.directory else { return };
        if let Err(error) = files.write(directory) {
            // Slurm runs; only the fallback of a later restart is poorer.
            eprintln!(
                "init: cannot keep the configuration in {}: {error}",
                directory.display()
            );
        }
    }
}

/// The report, served to the operator.
#[derive(Debug, Clone, Default)]
struct Status {
    body: Arc<Mutex<(Option<Report>, String)>>,
}

impl Status {
    /// Serving is a courtesy: a taken port must not keep slurmctld from running.
    fn serve() -> Self {
        let status = Self::default();
        match TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)) {
            Ok(listener) => {
                let status = status.clone();
                thread::spawn(move || {
                    for connection in listener.incoming().flatten() {
                        let _ = status.answer(connection);
                    }
                });
            }
            Err(error) => eprintln!("init: no status on port {PORT}: {error}"),
        }
        status
    }

    fn answer(&self, mut connection: TcpStream) -> std::io::Result<()> {
        connection.set_read_timeout(Some(Duration::from_secs(2)))?;
        connection.set_write_timeout(Some(Duration::from_secs(2)))?;
        let mut request = [0; 1024];
        let read = connection.read(&mut request)?;
        let wanted = request
            .get(..read)
            .is_some_and(|start| start.starts_with(b"GET /v1/status "));
        let (code, body) = match self.body.lock() {
            Ok(body) if wanted => ("200 OK", body.1.clone()),
            _ => ("404 Not Found", "{}".to_owned()),
        };
        write!(
            connection,
            "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    fn set(&self, main: Option<i32>, report: Report) {
        let Ok(mut body) = self.body.lock() else { return };
        if body.0.as_ref() == Some(&report)
            && body
                .1
                .contains(&format!("\"mainPid\":{}", main.unwrap_or_default()))
        {
            return;
        }
        let text = serde_json::json!({
            "daemon": "slurmctld",
            "mainPid": main,
            "config": {
                "candidate": report.candidate,
                "active": report.active,
                "lastGood": report.last_good,
                "verdict": report.verdict.word(),
                "message": report.message,
                "at": now(),
            },
        })
        .to_string();
        *body = (Some(report), text);
    }
}

#[expect(clippy::disallowed_methods, reason = "the report carries when it was made")]
fn now() -> String {
    format!("{:.0}", jiff::Timestamp::now())
}
