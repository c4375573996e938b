//! The last good configuration, stored next to slurmctld's state: it outlives the pod and is shared with standbys.
//!
//! `<StateSaveLocation>/.keelson` holds a directory per configuration, named by its hash, and a link `last-good` to one of
//! them. The link is replaced atomically, so a reader sees either the old or the new configuration.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::files::Files;

/// How long to wait after a failed attempt to store files. Slurm runs meanwhile; only a later restart lacks the
/// fallback.
const PAUSE: Duration = Duration::from_secs(30);

const LINK: &str = "last-good";

/// The store of the last good files.
#[derive(Debug)]
pub struct Store {
    directory: Option<PathBuf>,
    failed: Option<Instant>,
}

impl Store {
    /// Returns the store for a slurm.conf. `spool` is the parent of state directories: if the configuration is too
    /// broken to name one, the only one with a store is used.
    pub fn of(mounted: &Files, spool: &Path) -> Self {
        let written = mounted.parameters("StateSaveLocation").pop().map(PathBuf::from);
        Self {
            directory: written
                .or_else(|| only_store(spool))
                .map(|state| state.join(".keelson")),
            failed: None,
        }
    }

    /// Returns the hash of the last good files.
    pub fn hash(&self) -> Option<String> {
        let target = fs::read_link(self.directory.as_ref()?.join(LINK)).ok()?;
        Some(target.to_str()?.to_owned())
    }

    /// Returns the last good files, if they match their hash.
    pub fn load(&self) -> Option<Files> {
        let hash = self.hash()?;
        let files = Files::read(&self.directory.as_ref()?.join(&hash)).ok()?;
        (files.hash() == hash).then_some(files)
    }

    /// Stores files as the last good ones. Returns whether it succeeded.
    pub fn keep(&mut self, files: &Files) -> bool {
        let Some(directory) = &self.directory else {
            return false;
        };
        if self.failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return false;
        }
        match replace(directory, files) {
            Ok(()) => {
                self.failed = None;
                true
            }
            Err(error) => {
                eprintln!(
                    "init: failed to save the configuration in {}: {error}",
                    directory.display()
                );
                self.failed = Some(Instant::now());
                false
            }
        }
    }
}

/// Returns the state directory that has a store, if there is exactly one.
fn only_store(spool: &Path) -> Option<PathBuf> {
    let states = fs::read_dir(spool).ok()?.flatten().map(|entry| entry.path());
    let mut stores = states.filter(|state| state.join(".keelson").join(LINK).exists());
    stores.next().filter(|_| stores.next().is_none())
}

fn replace(directory: &Path, files: &Files) -> io::Result<()> {
    let hash = files.hash();
    files.write(&directory.join(&hash))?;
    let link = directory.join(format!("{LINK}.new"));
    let _ = fs::remove_file(&link);
    symlink(&hash, &link)?;
    fs::rename(&link, directory.join(LINK))?;
    // Not every file system supports this; then the write is merely later.
    let _ = fs::File::open(directory)?.sync_all();
    for entry in fs::read_dir(directory)?.flatten() {
        let name = entry.file_name();
        if name != *hash && entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::files;

    fn store(state: &Path) -> Store {
        let conf = format!("StateSaveLocation={}", state.display());
        Store::of(&files(&[("slurm.conf", &conf)]), Path::new("/nowhere"))
    }

    #[test]
    fn what_is_kept_is_found_again() {
        let state = tempfile::tempdir().unwrap();
        let mut store = store(state.path());
        assert_eq!(store.load(), None);
        for text in ["1", "2"] {
            let good = files(&[("slurm.conf", text), ("sub/a.conf", text)]);
            assert!(store.keep(&good));
            assert_eq!(store.hash(), Some(good.hash()));
            assert_eq!(store.load(), Some(good));
        }
        // The link and one configuration.
        assert_eq!(fs::read_dir(state.path().join(".keelson")).unwrap().count(), 2);
    }

    #[test]
    fn damaged_files_are_not_good_ones() {
        let state = tempfile::tempdir().unwrap();
        let mut store = store(state.path());
        let good = files(&[("slurm.conf", "1"), ("gres.conf", "2")]);
        assert!(store.keep(&good));
        fs::remove_file(state.path().join(".keelson").join(good.hash()).join("gres.conf")).unwrap();
        assert_eq!(store.load(), None);
    }

    #[test]
    fn an_interrupted_attempt_leaves_the_old_files() {
        let state = tempfile::tempdir().unwrap();
        let mut store = store(state.path());
        let good = files(&[("slurm.conf", "1")]);
        assert!(store.keep(&good));
        let next = files(&[("slurm.conf", "2"), ("gres.conf", "2")]);
        files(&[("gres.conf", "2")])
            .write(&state.path().join(".keelson").join(next.hash()))
            .unwrap();
        assert_eq!(store.load(), Some(good));
        assert!(store.keep(&next));
        assert_eq!(store.load(), Some(next));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_tried_again_later() {
        let state = tempfile::tempdir().unwrap();
        let place = state.path().join("state");
        let mut store = store(&place);
        fs::write(&place, "in the way").unwrap();
        let good = files(&[("slurm.conf", "1")]);
        assert!(!store.keep(&good));
        fs::remove_file(&place).unwrap();
        assert!(!store.keep(&good), "not at once");
        store.failed = Some(Instant::now().checked_sub(PAUSE).unwrap());
        assert!(store.keep(&good));
    }

    #[test]
    fn a_broken_configuration_still_finds_the_only_store() {
        let spool = tempfile::tempdir().unwrap();
        let good = files(&[("slurm.conf", "1")]);
        let broken = files(&[("slurm.conf", "")]);
        assert_eq!(Store::of(&broken, spool.path()).load(), None);
        assert!(store(&spool.path().join("a")).keep(&good));
        assert_eq!(Store::of(&broken, spool.path()).load(), Some(good.clone()));
        assert!(store(&spool.path().join("b")).keep(&good));
        assert_eq!(Store::of(&broken, spool.path()).load(), None, "which one?");
    }
}
