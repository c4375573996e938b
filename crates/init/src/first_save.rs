//! Lets a slurmctld start again that ended before it saved its whole state for the first time.
//!
//! slurmctld writes the file `clustername` in its first seconds. From then on it refuses to start if any file of its state is
//! missing, and it first writes all of them after five minutes or when it stops. If it is killed earlier, or loses slurmdbd
//! while it registers, it could never start again. Without `clustername` it reads the files that exist, tolerates that others
//! do not, and takes its cluster ID from slurmdbd again.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Written in slurmctld's first seconds.
const CLUSTERNAME: &str = "clustername";

/// The last file that slurmctld writes when it saves its whole state, and its previous version.
const LAST_WRITTEN: [&str; 2] = ["fed_mgr_state", "fed_mgr_state.old"];

/// Removes `clustername` if the whole state was never saved. Only for a slurmctld that no other one stands in for.
pub fn allow_restart(state: &Path) {
    let missing = |name: &str| matches!(state.join(name).symlink_metadata(), Err(error) if error.kind() == ErrorKind::NotFound);
    if !LAST_WRITTEN.into_iter().all(missing) {
        return;
    }
    match fs::remove_file(state.join(CLUSTERNAME)) {
        Ok(()) => println!(
            "init: slurmctld ended before it first saved its whole state: it starts with what is there"
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => eprintln!(
            "init: failed to remove {}: {error}",
            state.join(CLUSTERNAME).display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts_anew(files: &[&str]) -> bool {
        let state = tempfile::tempdir().unwrap();
        for file in files {
            fs::write(state.path().join(file), "x").unwrap();
        }
        allow_restart(state.path());
        let kept = |file: &&str| state.path().join(file).exists();
        assert!(files.iter().filter(|file| **file != CLUSTERNAME).all(kept));
        !state.path().join(CLUSTERNAME).exists()
    }

    #[test]
    fn only_a_state_that_was_never_saved_may_be_incomplete() {
        assert!(starts_anew(&[]));
        assert!(starts_anew(&["clustername", "job_state", "assoc_usage"]));
        assert!(!starts_anew(&["clustername", "fed_mgr_state"]));
        assert!(!starts_anew(&["clustername", "fed_mgr_state.old"]));
    }

    #[test]
    fn a_state_that_cannot_be_read_is_left_alone() {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join("file");
        fs::write(&file, "x").unwrap();
        allow_restart(&file);
        assert!(file.exists());
    }
}
