//! Keeps the programs of a namespace running, and reaps orphaned processes.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{WaitOptions, wait};

/// A program that is restarted when it exits.
#[derive(Debug, Clone)]
pub struct Service {
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub log: PathBuf,
}

impl Service {
    pub fn new(name: &str, program: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        Self {
            name: name.to_owned(),
            program: program.into(),
            args: Vec::new(),
            log: log.into(),
        }
    }

    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    fn spawn(&self) -> Result<i32> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("failed to write {}", self.log.display()))?;
        let child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("failed to start {}", self.program.display()))?;
        i32::try_from(child.id()).context("process id out of range")
    }
}

/// The programs of this namespace. It is intentionally single-threaded: the first process of a namespace inherits
/// orphans, so one loop waits for all children, and only that loop starts services.
#[derive(Debug, Default)]
pub struct Supervisor {
    running: HashMap<i32, Service>,
}

impl Supervisor {
    pub fn start(&mut self, service: Service) -> Result<()> {
        self.running.insert(service.spawn()?, service);
        Ok(())
    }

    /// Restarts programs that exit, indefinitely.
    pub fn run(mut self) -> Result<()> {
        loop {
            let Some((pid, status)) = wait(WaitOptions::empty()).context("waiting for children")? else {
                continue;
            };
            let Some(service) = self.running.remove(&pid.as_raw_nonzero().get()) else {
                continue;
            };
            eprintln!("{} exited ({status:?}); restarting it", service.name);
            // Do not restart a failing program in a busy loop.
            std::thread::sleep(Duration::from_secs(1));
            self.start(service)?;
        }
    }
}
