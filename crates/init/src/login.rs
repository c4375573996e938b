//! The login pod: sackd, plus sshd and SSSD if they are configured.

use std::fs;
use std::path::Path;
use std::time::Duration;

use slurm_conf::container::{SLURM_UID, dir, env};

use crate::process::{Event, Manager};
use crate::service::Service;
use crate::{MOUNTED, live_files, munge, shell_args, sshd, sssd};

/// Keeps the login programs running until the container stops.
pub fn run() -> std::io::Result<i32> {
    let options = std::env::var(env::SACKD_OPTIONS).unwrap_or_default();
    let options =
        shell_args::split(&[options], |name| std::env::var(name).ok()).map_err(std::io::Error::other)?;
    fs::create_dir_all(dir::SACKD_RUN)?;
    std::os::unix::fs::chown(dir::SACKD_RUN, Some(SLURM_UID), Some(SLURM_UID))?;

    live_files::link();

    let mut manager = Manager::new(None)?;
    munge::add(&mut manager, Path::new(MOUNTED))?;
    let sackd = ["-D".to_owned()].into_iter().chain(options);
    manager.add_beside(Service::new("sackd", sackd).run_as(SLURM_UID));
    if let Some(sssd) = sssd::service()? {
        manager.add_beside(sssd);
    }
    if Path::new(sshd::CONFIG).exists() {
        manager.add_beside(sshd::service()?);
    }
    while manager.next(Duration::from_mins(1)) != Some(Event::Stop) {}
    // No new logins from here on. Sessions have the pod's grace period to end, and need sackd and SSSD until then.
    manager.stop_beside(sshd::NAME);
    while manager.has_orphans() {
        manager.next(Duration::from_secs(1));
    }
    manager.stop();
    Ok(0)
}
