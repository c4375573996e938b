//! sshd, running next to the pod's main daemon.

use std::path::Path;
use std::process::Command;

use crate::process::find;
use crate::service::Service;

/// The name of the program.
pub const NAME: &str = "sshd";

/// sshd runs only if this file is mounted.
pub const CONFIG: &str = "/etc/ssh/sshd_config";

/// Returns sshd in the foreground. Generates host keys unless they are mounted: the image has none, so that no two pods
/// share them.
pub fn service() -> std::io::Result<Service> {
    std::fs::create_dir_all("/run/sshd")?;
    if !Path::new("/etc/ssh/ssh_host_ed25519_key").exists() {
        // If this fails, sshd itself reports what is missing.
        let _ = Command::new(find("ssh-keygen")).arg("-A").status();
    }
    Ok(Service::new(NAME, ["-D", "-e"].map(str::to_owned)))
}
