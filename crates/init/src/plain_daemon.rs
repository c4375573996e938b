//! Daemons that need only a service manager: slurmdbd and slurmrestd.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::files::Files;
use crate::process::{Event, Manager, find};
use crate::{MOUNTED, RUN_CONF, database, munge, slurmctld};

/// Runs slurmdbd, which sends no notify messages. Its files are copied, because it requires a slurmdbd.conf that only
/// its own user owns and can read, and a mounted Secret never is.
pub fn slurmdbd(args: &[String]) -> std::io::Result<i32> {
    let files = Files::read(Path::new(MOUNTED))?;
    files.write(Path::new(RUN_CONF))?;
    let mut manager = Manager::new(None)?;
    munge::add(&mut manager, Path::new(MOUNTED))?;
    if !database::await_tls(&mut manager, &files) {
        return Ok(0);
    }
    let args: Vec<String> = ["-D".to_owned()]
        .into_iter()
        .chain(args.iter().cloned())
        .collect();
    run(manager, &find("slurmdbd"), &args, &slurmctld::environment())
}

/// Runs slurmrestd, which sends no notify messages. Its pod has no writable directory. It is stopped by SIGINT, because
/// SIGTERM would kill it.
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
