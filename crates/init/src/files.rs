//! Configuration files: reads them from the mount and writes them where the daemon reads them.
//!
//! **The hash** identifies a configuration in the status report, so that the operator can tell whether its files have
//! arrived: SHA-256 over the files in the byte order of their names, each as its name, a zero byte, its length as 8
//! bytes little endian, and its content. A name is the path below the mount, parts joined by `/`. The hash excludes
//! keys: files whose names end in `.key`, and `slurm.jwks`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use slurm_conf::catalogue::File;
use slurm_conf::container::file;
use slurm_conf::fingerprint;
use slurm_conf::precheck::{self, MissingFile};
use slurm_conf::syntax;

/// The size limit of a directory. ConfigMaps and Secrets are limited to 1 MiB each; more than this is a mistake, which
/// must not take slurmctld down by running out of memory.
const LARGEST: u64 = 32 << 20;

/// How deep directories may be nested, so that a link to a parent directory is not followed forever.
const DEEPEST: usize = 8;

/// Files by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    /// Reads a directory and its subdirectories.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let found = find(directory)?;
        if found.values().map(|file| file.size).sum::<u64>() > LARGEST {
            let limit = LARGEST >> 20;
            return Err(io::Error::other(format!("the files are larger than {limit} MiB")));
        }
        let read = |name: String| {
            let content = fs::read(directory.join(&name))
                .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
            Ok((name, content))
        };
        found.into_keys().map(read).collect::<io::Result<_>>().map(Self)
    }

    /// Splits off the keys. They are secret, so they are never stored and not part of the hash.
    pub fn split_keys(self) -> (Self, Self) {
        let (keys, others) = self.0.into_iter().partition(|(name, _)| is_key(name));
        (Self(others), Self(keys))
    }

    /// Removes and returns the file of this name, if it exists.
    pub fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        self.0.remove(name)
    }

    /// Adds or replaces a file.
    pub fn put(&mut self, name: &str, content: Vec<u8>) {
        self.0.insert(name.to_owned(), content);
    }

    /// Returns these files together with `others`.
    pub fn with(mut self, others: &Self) -> Self {
        self.0.extend(others.0.clone());
        self
    }

    /// Returns a file's text; invalid UTF-8 is replaced.
    pub fn text(&self, name: &str) -> Option<String> {
        self.0
            .get(name)
            .map(|content| String::from_utf8_lossy(content).into_owned())
    }

    /// Returns all files that are valid UTF-8.
    pub fn texts(&self) -> BTreeMap<String, String> {
        let text = |(name, content): (&String, &Vec<u8>)| {
            Some((name.clone(), String::from_utf8(content.clone()).ok()?))
        };
        self.0.iter().filter_map(text).collect()
    }

    /// Returns the hash that identifies this configuration.
    pub fn hash(&self) -> String {
        fingerprint::of_files(self.0.iter().filter(|(name, _)| !is_key(name)))
    }

    /// Returns a MAC of one file, keyed with the content of another: without that content nobody can check guesses.
    pub fn named_under(&self, key: &str, name: &str) -> Option<String> {
        let (key, content) = (self.0.get(key)?, self.0.get(name)?);
        Some(fingerprint::keyed(key, name, content))
    }

    /// Makes a directory contain exactly these files. Each file is replaced atomically. Only their owner may read them:
    /// Slurm rejects keys and slurmdbd.conf that others can read, and no other user needs the rest.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        for (name, content) in &self.0 {
            let path = directory.join(name);
            let parent = path.parent().unwrap_or(directory);
            fs::create_dir_all(parent)?;
            let partial = parent.join("..partial");
            let _ = fs::remove_file(&partial);
            let script = content.starts_with(b"#!");
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(if script { 0o700 } else { 0o600 })
                .open(&partial)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&partial, &path)?;
        }
        for name in find(directory)?.keys().filter(|name| !self.0.contains_key(*name)) {
            fs::remove_file(directory.join(name))?;
        }
        Ok(())
    }

    /// Returns the values of a slurm.conf parameter, in order.
    pub fn parameters(&self, name: &str) -> Vec<String> {
        let text = self.text(file::SLURM_CONF).unwrap_or_default();
        let (document, _) = syntax::read(File::Slurm, &text, &self.texts());
        document
            .all(name)
            .map(|statement| statement.head.value.clone())
            .collect()
    }

    /// Returns why these files must not even be tried, if there is a reason. slurmctld waits a minute for a missing
    /// file and handles no requests meanwhile.
    pub fn flaw(&self) -> Option<String> {
        if !self.0.contains_key(file::SLURM_CONF) {
            return Some(format!("there is no {}", file::SLURM_CONF));
        }
        let texts = self.texts();
        [
            (file::SLURM_CONF, File::Slurm),
            (file::GRES_CONF, File::Gres),
            (file::CGROUP_CONF, File::Cgroup),
        ]
        .into_iter()
        .filter_map(|(name, kind)| Some((name, kind, texts.get(name)?)))
        .find_map(|(name, kind, text)| {
            // slurmctld itself reports everything else immediately.
            let (document, _) = syntax::read(kind, text, &texts);
            let missing = precheck::missing_files(&document, |file| self.has(file));
            missing.first().map(|missing| flaw(name, missing))
        })
    }

    /// Reports whether slurmctld finds the file: next to the others, or by an absolute path in its container.
    fn has(&self, file: &str) -> bool {
        self.0.contains_key(file) || (file.starts_with('/') && Path::new(file).exists())
    }
}

impl FromIterator<(String, Vec<u8>)> for Files {
    fn from_iter<T: IntoIterator<Item = (String, Vec<u8>)>>(files: T) -> Self {
        Self(files.into_iter().collect())
    }
}

fn flaw(main: &str, missing: &MissingFile) -> String {
    match missing {
        MissingFile::Included { origin, file } => {
            let by = origin.file.as_deref().unwrap_or(main);
            format!("{by} includes {file}, which is not there")
        }
        MissingFile::Topology { .. } => format!("{missing}, which is not there"),
    }
}

fn is_key(name: &str) -> bool {
    has_extension(name, "key") || name == "slurm.jwks"
}

fn has_extension(name: &str, wanted: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|extension| extension == wanted)
}

/// Metadata that changes when a file changes.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// Returns the files of a directory, following links. Names that start with two dots belong to the kubelet, or are
/// ours.
fn find(directory: &Path) -> io::Result<BTreeMap<String, Stamp>> {
    let mut found = BTreeMap::new();
    let mut left = vec![(String::new(), 0)];
    while let Some((prefix, depth)) = left.pop() {
        for entry in fs::read_dir(directory.join(&prefix))? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_name().as_encoded_bytes().starts_with(b"..") {
                continue;
            }
            // The kubelet removes a file in two steps; in between, its link is dangling.
            let metadata = match fs::metadata(entry.path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if metadata.is_dir() && depth < DEEPEST {
                left.push((format!("{name}/"), depth + 1));
            } else if metadata.is_file() {
                let stamp = Stamp {
                    inode: metadata.ino(),
                    size: metadata.size(),
                    changed: (metadata.ctime(), metadata.ctime_nsec()),
                };
                found.insert(name, stamp);
            }
        }
    }
    Ok(found)
}

/// A mounted directory that is polled for changes.
#[derive(Debug)]
pub struct Mounted {
    directory: PathBuf,
    seen: Option<BTreeMap<String, Stamp>>,
}

impl Mounted {
    /// Creates it without reading the directory.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            seen: None,
        }
    }

    /// Returns the files, if they have changed since the last call. While the kubelet replaces them, some are old and
    /// some new: then it returns `None` until the next call.
    pub fn changed(&mut self) -> io::Result<Option<Files>> {
        let before = find(&self.directory)?;
        if self.seen.as_ref() == Some(&before) {
            return Ok(None);
        }
        let files = Files::read(&self.directory)?;
        if find(&self.directory)? != before {
            return Ok(None);
        }
        self.seen = Some(before);
        Ok(Some(files))
    }
}

#[cfg(test)]
pub mod tests;
