//! Configuration files: read from where they are mounted, written to where the daemon reads them.
//!
//! **The hash** by which a configuration is named in the status report, so that the operator can tell whether what it
//! wrote has arrived: sha256 over the files in the order of their names (bytes compared), each given as its name, a zero
//! byte, its length as 8 bytes little endian, and its content. A name is the path below the mount, parts joined by `/`.
//! Keys have no part in it: files whose names end in `.key`, and `slurm.jwks`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use slurm_conf::catalogue::File;
use slurm_conf::fingerprint;
use slurm_conf::precheck::{self, MissingFile};
use slurm_conf::syntax;

/// What a directory may hold. ConfigMaps and Secrets end at one MiB each; more than this is a mistake, and no reason to
/// take slurmctld down by running out of memory.
const LARGEST: u64 = 32 << 20;

/// How deep directories may be nested: a link that leads back up must not be followed for ever.
const DEEPEST: usize = 8;

/// Files by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    /// Reads a directory and those below it.
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

    /// Splits keys off. They are secret, so they are kept nowhere and are no part of the hash.
    pub fn split_keys(self) -> (Self, Self) {
        let (keys, others) = self.0.into_iter().partition(|(name, _)| is_key(name));
        (Self(others), Self(keys))
    }

    /// Takes the file of this name out, if it is there.
    pub fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        self.0.remove(name)
    }

    /// Puts a file in.
    pub fn put(&mut self, name: &str, content: Vec<u8>) {
        self.0.insert(name.to_owned(), content);
    }

    /// These files and those.
    pub fn with(mut self, others: &Self) -> Self {
        self.0.extend(others.0.clone());
        self
    }

    /// A file's text, whatever bytes are in it.
    pub fn text(&self, name: &str) -> Option<String> {
        self.0
            .get(name)
            .map(|content| String::from_utf8_lossy(content).into_owned())
    }

    /// All files that are text.
    pub fn texts(&self) -> BTreeMap<String, String> {
        let text = |(name, content): (&String, &Vec<u8>)| {
            Some((name.clone(), String::from_utf8(content.clone()).ok()?))
        };
        self.0.iter().filter_map(text).collect()
    }

    /// The hash that names this configuration.
    pub fn hash(&self) -> String {
        let mut hasher = Sha256::new();
        for (name, content) in self.0.iter().filter(|(name, _)| !is_key(name)) {
            hasher.update(name);
            hasher.update([0]);
            hasher.update((content.len() as u64).to_le_bytes());
            hasher.update(content);
        }
        hex(&hasher.finalize())
    }

    /// The name of one file under the content of another: nobody who does not have that one can try guesses against it.
    pub fn named_under(&self, key: &str, name: &str) -> Option<String> {
        let (key, content) = (self.0.get(key)?, self.0.get(name)?);
        Some(fingerprint::keyed(key, name, content))
    }

    /// Makes a directory hold these files and no others. Each file appears whole or not at all. Only their owner may read
    /// them: Slurm refuses keys and slurmdbd.conf that others can read, and nobody else needs the rest.
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

    /// The values of a parameter of slurm.conf, in order.
    pub fn parameters(&self, name: &str) -> Vec<String> {
        let text = self.text("slurm.conf").unwrap_or_default();
        let value = |line: &str| {
            let line = line.split('#').next()?;
            let (key, value) = line.split_once('=')?;
            let value = value.split_whitespace().next()?;
            key.trim()
                .eq_ignore_ascii_case(name)
                .then(|| value.trim_matches('"').to_owned())
        };
        text.lines().filter_map(value).collect()
    }

    /// Why it would be a mistake to even try these files. slurmctld waits a minute for a file that is missing, and serves
    /// nobody meanwhile.
    pub fn flaw(&self) -> Option<String> {
        if !self.0.contains_key("slurm.conf") {
            return Some("there is no slurm.conf".to_owned());
        }
        let texts = self.texts();
        [
            ("slurm.conf", File::Slurm),
            ("gres.conf", File::Gres),
            ("cgroup.conf", File::Cgroup),
        ]
        .into_iter()
        .filter_map(|(name, kind)| Some((name, kind, texts.get(name)?)))
        .find_map(|(name, kind, text)| {
            // What cannot be read slurmctld says itself, at once.
            let (document, _) = syntax::read(kind, text, &texts);
            let missing = precheck::missing_files(&document, |file| self.has(file));
            missing.first().map(|missing| flaw(name, missing))
        })
    }

    /// Whether slurmctld finds it: beside the others, or anywhere in its container.
    fn has(&self, file: &str) -> bool {
        self.0.contains_key(file) || (file.starts_with('/') && Path::new(file).exists())
    }
}

impl FromIterator<(String, Vec<u8>)> for Files {
    fn from_iter<T: IntoIterator<Item = (String, Vec<u8>)>>(files: T) -> Self {
        Self(files.into_iter().collect())
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
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

/// What tells one state of a file from another without reading it.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// The files of a directory, links followed. Names that start with two dots are the kubelet's own, and ours.
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
            // The kubelet takes a file away in two steps; in between its link leads nowhere.
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

/// A mounted directory that is looked at again and again.
#[derive(Debug)]
pub struct Mounted {
    directory: PathBuf,
    seen: Option<BTreeMap<String, Stamp>>,
}

impl Mounted {
    /// Not looked at yet.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            seen: None,
        }
    }

    /// The files, if they have changed since the last look. While the kubelet swaps them they are half old and half new:
    /// then there is nothing to see until the next look.
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
