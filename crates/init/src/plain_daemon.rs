//! One daemon that needs no more than a service manager.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::files::Files;
use crate::process::{Event, Manager, find};
use crate::{MOUNTED, RUN_CONF, slurmctld};

/// slurmdbd, which speaks to no service manager. Its files are copied, because it refuses a slurmdbd.conf that is not its
/// own user's alone, and a mounted Secret never is.
pub fn slurmdbd(args: &[String]) -> std::io::Result<i32> {
    Files::read(Path::new(MOUNTED))?.write(Path::new(RUN_CONF))?;
    let args: Vec<String> = ["-D".to_owned()]
        .into_iter()
        .chain(args.iter().cloned())
        .collect();
    run(
        Manager::new(None)?,
        &find("slurmdbd"),
        &args,
        &slurmctld::environment(),
    )
}

/// slurmrestd. It notifies nobody, its pod has nothing writable, and SIGTERM would kill it.
pub fn slurmrestd(args: &[String]) -> std::io::Result<i32> {
    run(
        Manager::new(None)?.stopped_by(Signal::INT),
        &find("slurmrestd"),
        args,
        &[],
    )
}

/// Runs a daemon to its end and returns its exit status.
pub fn run(
    mut manager: Manager,
    program: &Path,
    args: &[String],
    environment: &[(String, String)],
) -> std::io::Result<i32> {
    manager.start(program, args, environment)?;
    loop {
        match manager.next(Duration::from_mins(1)) {
            Some(Event::Stop) => manager.stop(),
            Some(Event::Reload) => manager.signal(Signal::HUP),
            Some(Event::Ended(code)) => return Ok(code),
            Some(Event::Ready | Event::Resumed) | None => {}
        }
    }
}
