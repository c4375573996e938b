//! A cache for build results, stored outside the repository and shared by all checkouts.
//!
//! An entry is a directory named after the hash of its inputs. It is built next to its final location and renamed
//! when complete, under a file lock. An interrupted build leaves nothing that could be mistaken for a result, and if
//! two runs need the same entry, one builds it and the other waits.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// The cache directory.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `KEELSON_CACHE`, or `keelson` in the user's cache directory.
    pub fn open() -> Result<Self> {
        let root = match std::env::var_os("KEELSON_CACHE") {
            Some(path) => PathBuf::from(path),
            None => user_directory("XDG_CACHE_HOME", ".cache")?.join("keelson"),
        };
        Self::at(root)
    }

    /// Opens a cache in a given directory.
    pub fn at(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root).with_context(|| {
            format!(
                "failed to create the cache directory {}; set KEELSON_CACHE to a writable directory",
                root.display()
            )
        })?;
        Ok(Self { root })
    }

    /// The directory of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether an entry of this kind was ever built.
    pub fn has_any(&self, kind: &str) -> bool {
        fs::read_dir(self.root.join(kind))
            .is_ok_and(|entries| entries.flatten().any(|entry| entry.path().is_dir()))
    }

    /// Removes all entries of this kind except the most recently used ones; the others belong to old versions of the project.
    pub fn keep_newest(&self, kind: &str, count: usize) -> Result<()> {
        let folder = self.root.join(kind);
        let mut entries = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("failed to read {}", folder.display()))? {
            let entry = entry?;
            // A partial entry belongs to a running build.
            if entry.path().is_dir() && !entry.file_name().to_string_lossy().starts_with('.') {
                entries.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        entries.sort();
        let surplus = entries.len().saturating_sub(count);
        for (_, path) in entries.into_iter().take(surplus) {
            remove_tree(&path)?;
        }
        Ok(())
    }

    /// Returns the entry for `key`. If it does not exist, `build` builds it in an empty directory.
    pub fn get_or_build(
        &self,
        kind: &str,
        key: &str,
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let folder = self.root.join(kind);
        let entry = folder.join(key);
        if entry.is_dir() {
            mark_used(&entry);
            return Ok(entry);
        }
        fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
        let lock_path = folder.join(format!("{key}.lock"));
        let lock =
            File::create(&lock_path).with_context(|| format!("failed to create {}", lock_path.display()))?;
        lock.lock()
            .with_context(|| format!("failed to lock {}", lock_path.display()))?;
        if entry.is_dir() {
            return Ok(entry);
        }
        let partial = folder.join(format!(".{key}.partial"));
        remove_tree(&partial)?;
        fs::create_dir(&partial).with_context(|| format!("failed to create {}", partial.display()))?;
        if let Err(error) = build(&partial) {
            // A partial build only takes up disk space, because the next attempt starts from scratch.
            let _ = remove_tree(&partial);
            return Err(error);
        }
        fs::rename(&partial, &entry)
            .with_context(|| format!("failed to move {} into place", entry.display()))?;
        Ok(entry)
    }
}

/// Marks an entry as used, so that [`Cache::keep_newest`] removes it last.
#[allow(
    clippy::disallowed_methods,
    reason = "the time is compared only with that of other files"
)]
fn mark_used(entry: &Path) {
    // A read-only cache works as well.
    let _ = File::open(entry).and_then(|entry| entry.set_modified(SystemTime::now()));
}

/// Removes a directory tree that may not exist.
pub fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// An XDG directory: the variable if it is set, otherwise `fallback` in the home directory.
pub(crate) fn user_directory(variable: &str, fallback: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    let home =
        std::env::var_os("HOME").context("HOME is not set; set it, or KEELSON_CACHE and KEELSON_STATE")?;
    Ok(Path::new(&home).join(fallback))
}

/// The hash of all inputs of a build.
#[derive(Debug, Default)]
pub struct Key {
    hasher: Sha256,
}

impl Key {
    /// A key for builds of this kind; change `recipe` when the build process changes.
    pub fn new(recipe: &str) -> Self {
        Self::default().text(recipe)
    }

    /// Adds a string.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        // The length distinguishes ("ab", "c") from ("a", "bc").
        self.hasher.update(text.len().to_le_bytes());
        self.hasher.update(text);
        self
    }

    /// Adds the content of a file.
    pub fn file(mut self, path: &Path) -> Result<Self> {
        let content = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
        self.hasher.update(content.len().to_le_bytes());
        self.hasher.update(&content);
        Ok(self)
    }

    /// The key, short enough for a file name.
    pub fn finish(self) -> String {
        hex(&self.hasher.finalize())[..20].to_owned()
    }
}

/// All files below a directory that may not exist, sorted.
pub fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if !directory.exists() {
        return Ok(files);
    }
    let entries =
        fs::read_dir(directory).with_context(|| format!("failed to read {}", directory.display()))?;
    let mut entries: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            files.extend(files_below(&entry)?);
        } else {
            files.push(entry);
        }
    }
    Ok(files)
}

/// Lowercase hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_finished_entry_is_not_built_again() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let built = AtomicUsize::new(0);
        for _ in 0..3 {
            let entry = cache
                .get_or_build("kind", "key", |place| {
                    built.fetch_add(1, Ordering::SeqCst);
                    Ok(fs::write(place.join("x"), "1")?)
                })
                .unwrap();
            assert_eq!(fs::read_to_string(entry.join("x")).unwrap(), "1");
        }
        assert_eq!(built.load(Ordering::SeqCst), 1);
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "files with different ages")]
    fn old_entries_go_and_a_build_under_way_stays() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        assert!(!cache.has_any("kind"));
        for (key, age) in [("old", 30), ("older", 40), ("new", 10)] {
            let entry = cache.get_or_build("kind", key, |_| Ok(())).unwrap();
            let built = SystemTime::now() - std::time::Duration::from_secs(age);
            File::open(entry).unwrap().set_modified(built).unwrap();
        }
        fs::create_dir(directory.path().join("kind/.next.partial")).unwrap();
        cache.keep_newest("kind", 2).unwrap();
        let left = |name: &str| directory.path().join("kind").join(name).is_dir();
        assert!(left("new") && left("old") && left(".next.partial") && !left("older"));
        assert!(cache.has_any("kind"));
    }

    #[test]
    fn a_failed_or_interrupted_build_leaves_no_entry() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        // The remains of a killed build.
        fs::create_dir_all(directory.path().join("kind/.key.partial/rubbish")).unwrap();
        let failed = cache.get_or_build("kind", "key", |place| {
            fs::write(place.join("half"), "")?;
            anyhow::bail!("no")
        });
        assert!(failed.is_err());
        let entry = cache
            .get_or_build("kind", "key", |place| Ok(fs::write(place.join("whole"), "")?))
            .unwrap();
        let names: Vec<_> = fs::read_dir(entry)
            .unwrap()
            .map(|file| file.unwrap().file_name())
            .collect();
        assert_eq!(names, ["whole"]);
    }

    #[test]
    fn two_runs_at_once_build_once() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let built = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    cache
                        .get_or_build("kind", "key", |_| {
                            std::thread::yield_now();
                            built.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        })
                        .unwrap();
                });
            }
        });
        assert_eq!(built.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn parts_of_a_key_do_not_run_together() {
        assert_ne!(
            Key::new("x").text("ab").text("c").finish(),
            Key::new("x").text("a").text("bc").finish()
        );
    }
}
