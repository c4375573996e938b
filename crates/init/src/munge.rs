//! munged, next to the daemons of a cluster whose `AuthType` is auth/munge.
//!
//! It runs as Slurm's user, which may use the key anyway, and never as root: the kernel tells it who connects to its socket.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use slurm_conf::container::{SLURM_UID, dir, file};

use crate::process::{Manager, find};
use crate::service::Service;

/// How long munged may take to start, and how often we look.
const START: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// The directory of munged's copy of the key, which only its user may enter.
const KEY_COPY: &str = "/run/munge-key";

/// Starts munged next to the daemon if its key is mounted in `mounted`.
pub fn add(manager: &mut Manager, mounted: &Path) -> io::Result<()> {
    let key = match fs::read(mounted.join(file::MUNGE_KEY)) {
        Ok(key) => key,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(named(file::MUNGE_KEY, &error)),
    };
    if !find("munged").exists() {
        return Err(io::Error::other(
            "this image has no munged: use an image with munge, or auth.type: slurm",
        ));
    }
    let owner = rustix::process::getuid().is_root().then_some(SLURM_UID);
    make_directory(Path::new(dir::MUNGE_RUN), 0o755, owner).map_err(|error| named(dir::MUNGE_RUN, &error))?;
    let copy = copy_key(Path::new(KEY_COPY), &key, owner).map_err(|error| named(KEY_COPY, &error))?;
    let mut munged = Service::new("munged", arguments(&copy)).until_the_end();
    if let Some(user) = owner {
        munged = munged.run_as(user);
    }
    munged.start_if_due(Instant::now());
    manager.add_beside(munged);
    await_socket();
    Ok(())
}

/// Waits for the socket, so that the daemon's log does not begin with errors. Without it Slurm tries again.
fn await_socket() {
    let socket = Path::new(dir::MUNGE_SOCKET);
    let until = Instant::now() + START;
    while !socket.exists() && Instant::now() < until {
        thread::sleep(POLL);
    }
}

fn arguments(key: &Path) -> [String; 6] {
    let run = dir::MUNGE_RUN;
    [
        "--foreground".to_owned(),
        // /run is an emptyDir that everyone in the pod may write to; munged would refuse that.
        "--force".to_owned(),
        format!("--key-file={}", key.display()),
        format!("--socket={}", dir::MUNGE_SOCKET),
        format!("--pid-file={run}/munged.pid"),
        format!("--seed-file={run}/munged.seed"),
    ]
}

fn make_directory(path: &Path, mode: u32, owner: Option<u32>) -> io::Result<()> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    chown(path, owner, owner)
}

/// Writes the key to a directory that only the owner may enter, and returns its path. The container may have been
/// restarted after the key was replaced.
fn copy_key(directory: &Path, key: &[u8], owner: Option<u32>) -> io::Result<PathBuf> {
    // Ours until the key is in it: root cannot write to directories of others in every container.
    make_directory(directory, 0o700, owner.map(|_| 0))?;
    let path = directory.join(file::MUNGE_KEY);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o400)
        .open(&path)?;
    file.write_all(key)?;
    chown(&path, owner, owner)?;
    chown(directory, owner, owner)?;
    Ok(path)
}

fn named(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_its_user_reads_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("d");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for content in ["first", "second"] {
            let key = copy_key(&directory, content.as_bytes(), None).unwrap();
            assert_eq!(fs::read_to_string(&key).unwrap(), content);
            assert_eq!((mode(&directory), mode(&key)), (0o700, 0o400));
        }
    }
}
