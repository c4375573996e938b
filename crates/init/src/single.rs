//! One daemon that needs no more than a service manager.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::files::Files;
use crate::process::{Event, Manager, find};
use crate::{MOUNTED, RUN, RUN_CONF, slurmctld};

/// slurmdbd. Its files are copied, because it refuses a slurmdbd.conf that is not its own user's alone, and a mounted
/// Secret never is.
pub fn slurmdbd(args: &[String]) -> std::io::Result<i32> {
    Files::read(Path::new(MOUNTED))?.write(Path::new(RUN_CONF))?;
    let args: Vec<String> = ["--systemd".to_owned()]
        .into_iter()
        .chain(args.iter().cloned())
        .collect();
    run(&find("slurmdbd"), &args, &slurmctld::environment())
}

/// slurmrestd.
pub fn slurmrestd(args: &[String]) -> std::io::Result<i32> {
    run(&find("slurmrestd"), args, &[])
}

/// Runs a daemon to its end and returns its exit status.
pub fn run(program: &Path, args: &[String], environment: &[(String, String)]) -> std::io::Result<i32> {
    let mut manager = Manager::new(Path::new(RUN))?;
    manager.start(program, args, environment)?;
    loop {
        match manager.next(Duration::from_mins(1)) {
            Some(Event::Stop) => manager.signal(Signal::TERM),
            Some(Event::Reload) => manager.signal(Signal::HUP),
            Some(Event::Ended { pid, code }) if Some(pid) == manager.main() => return Ok(code),
            _ => {}
        }
    }
}
