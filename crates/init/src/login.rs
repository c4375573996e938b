//! The login pod: sackd, sshd, and SSSD where it is set up.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::process::{Event, Manager};
use crate::service::Service;
use crate::{SLURM_USER, shell_args, sshd, sssd};

/// Keeps the login programs running until the container stops.
pub fn run() -> std::io::Result<i32> {
    let options = std::env::var("SACKD_OPTIONS").unwrap_or_default();
    let options =
        shell_args::split(&[options], |name| std::env::var(name).ok()).map_err(std::io::Error::other)?;
    fs::create_dir_all("/run/slurm")?;
    std::os::unix::fs::chown("/run/slurm", Some(SLURM_USER), Some(SLURM_USER))?;

    let mut manager = Manager::new(None)?;
    let sackd = ["-D".to_owned()].into_iter().chain(options);
    manager.add_beside(Service::new("sackd", sackd).run_as(SLURM_USER));
    if let Some(sssd) = sssd::service()? {
        manager.add_beside(sssd);
    }
    if Path::new(sshd::CONFIG).exists() {
        manager.add_beside(sshd::service()?);
    }
    while manager.next(Duration::from_mins(1)) != Some(Event::Stop) {}
    // Nobody comes in any more. Whoever is in has the pod's grace period to leave, and needs sackd and SSSD until
    // then.
    manager.stop_beside(sshd::NAME);
    while manager.has_orphans() {
        manager.next(Duration::from_secs(1));
    }
    manager.stop();
    Ok(0)
}
