//! The login pod: sackd, sshd, and sssd where it is set up.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::process::{Event, Manager, Service, find};
use crate::{SLURM_USER, sshd, words};

/// Keeps the login programs running until the container stops.
pub fn run() -> std::io::Result<i32> {
    let options = std::env::var("SACKD_OPTIONS").unwrap_or_default();
    let options = words::split(&[options], |name| std::env::var(name).ok()).map_err(std::io::Error::other)?;
    fs::create_dir_all("/run/slurm")?;
    std::os::unix::fs::chown("/run/slurm", Some(SLURM_USER), Some(SLURM_USER))?;

    let mut services =
        vec![Service::new("sackd", ["-D".to_owned()].into_iter().chain(options)).run_as(SLURM_USER)];
    if Path::new(sshd::CONFIG).exists() {
        services.push(sshd::service()?);
    }
    if find("sssd").exists() && Path::new("/etc/sssd/sssd.conf").exists() {
        services.push(Service::new("sssd", ["-i", "--logger=stderr"].map(str::to_owned)));
    }
    let mut manager = Manager::new(None)?;
    for service in services {
        manager.start_beside(service);
    }
    loop {
        // Sessions end with the container: the pod's grace period is the time to leave.
        if let Some(Event::Stop) = manager.next(Duration::from_mins(1)) {
            manager.stop();
            return Ok(0);
        }
    }
}
