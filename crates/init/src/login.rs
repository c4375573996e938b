//! The login pod: sackd, sshd, and sssd where it is set up.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::process::find;
use crate::words;

/// How long a program stays down after it ended.
const PAUSE: Duration = Duration::from_secs(1);

struct Service {
    name: &'static str,
    args: Vec<String>,
    running: Option<i32>,
}

/// Keeps the login programs running until the container stops.
pub fn run(args: &[String]) -> std::io::Result<i32> {
    let sackd = std::env::var("SACKD_OPTIONS").unwrap_or_default();
    let sackd = words::split(&[sackd], |name| std::env::var(name).ok()).map_err(std::io::Error::other)?;
    let mut services = vec![
        Service::new("sackd", ["-D".to_owned()].into_iter().chain(sackd)),
        Service::new(
            "sshd",
            ["-D".to_owned(), "-e".to_owned()]
                .into_iter()
                .chain(args.iter().cloned()),
        ),
    ];
    if find("sssd").exists() && Path::new("/etc/sssd/sssd.conf").exists() {
        services.push(Service::new("sssd", ["-i", "--logger=stderr"].map(str::to_owned)));
    }
    prepare()?;

    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let (sender, events) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGCHLD])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    });
    for service in &mut services {
        service.start();
    }
    loop {
        match events.recv() {
            Ok(SIGCHLD) => {}
            // Sessions end with the container: the pod's grace period is the time to leave.
            Ok(_) | Err(_) => return Ok(stop(&services)),
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get();
            if let Some(service) = services.iter_mut().find(|service| service.running == Some(pid)) {
                println!("init: {} ended ({status:?}), starting it again", service.name);
                thread::sleep(PAUSE);
                service.start();
            }
        }
    }
}

impl Service {
    fn new(name: &'static str, args: impl IntoIterator<Item = String>) -> Self {
        Self {
            name,
            args: args.into_iter().collect(),
            running: None,
        }
    }

    fn start(&mut self) {
        match Command::new(find(self.name))
            .args(&self.args)
            .stdin(Stdio::null())
            .spawn()
        {
            Ok(child) => self.running = i32::try_from(child.id()).ok(),
            Err(error) => eprintln!("init: cannot start {}: {error}", self.name),
        }
    }
}

/// Directories that the programs expect and a fresh `/run` lacks.
fn prepare() -> std::io::Result<()> {
    fs::create_dir_all("/run/sshd")?;
    fs::create_dir_all("/run/slurm")
}

fn stop(services: &[Service]) -> i32 {
    for pid in services
        .iter()
        .filter_map(|service| service.running)
        .filter_map(Pid::from_raw)
    {
        let _ = kill_process(pid, Signal::TERM);
    }
    0
}
