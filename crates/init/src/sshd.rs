//! sshd, beside the daemon that a pod is for.

use std::path::Path;
use std::process::Command;

use crate::process::find;
use crate::service::Service;

/// The program.
pub const NAME: &str = "sshd";

/// sshd runs where this is mounted, and nowhere else.
pub const CONFIG: &str = "/etc/ssh/sshd_config";

/// sshd in the foreground. Host keys that are not mounted are made: the image has none, so that no two pods share them.
pub fn service() -> std::io::Result<Service> {
    std::fs::create_dir_all("/run/sshd")?;
    if !Path::new("/etc/ssh/ssh_host_ed25519_key").exists() {
        // sshd itself says what is missing if this fails.
        let _ = Command::new(find("ssh-keygen")).arg("-A").status();
    }
    Ok(Service::new(NAME, ["-D", "-e"].map(str::to_owned)))
}
