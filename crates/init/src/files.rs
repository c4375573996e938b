//! Configuration files: read from where they are mounted, written to where the daemon reads them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use sha2::{Digest, Sha256};

/// A directory's files by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    /// Reads a directory. Hidden entries are the kubelet's own (`..data`) and are passed over.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') && entry.path().is_file() {
                files.insert(name, fs::read(entry.path())?);
            }
        }
        Ok(Self(files))
    }

    /// A file's content.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// Splits off what is secret: keys are taken from their mount every time and never kept anywhere else.
    pub fn without_keys(&self) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(name, _)| !is_key(name))
                .map(|(n, c)| (n.clone(), c.clone()))
                .collect(),
        )
    }

    /// These files with the keys of `other`.
    pub fn with_keys_of(&self, other: &Self) -> Self {
        let keys = other.0.iter().filter(|(name, _)| is_key(name));
        Self(
            self.without_keys()
                .0
                .into_iter()
                .chain(keys.map(|(n, c)| (n.clone(), c.clone())))
                .collect(),
        )
    }

    /// sha256 over every file but keys, in order of names: name, zero byte, length as 8 bytes little endian, content.
    pub fn hash(&self) -> String {
        use std::fmt::Write as _;
        let mut hasher = Sha256::new();
        for (name, content) in self.0.iter().filter(|(name, _)| !is_key(name)) {
            hasher.update(name);
            hasher.update([0]);
            hasher.update((content.len() as u64).to_le_bytes());
            hasher.update(content);
        }
        hasher.finalize().iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Makes a directory hold these files and no others. Each file appears whole or not at all.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        for (name, content) in &self.0 {
            let partial = directory.join(format!(".{name}.partial"));
            let _ = fs::remove_file(&partial);
            // Slurm refuses keys and slurmdbd.conf that others can read; scripts have to be executable.
            let mode = match () {
                () if is_key(name) || name == "slurmdbd.conf" => 0o600,
                () if content.starts_with(b"#!") => 0o755,
                () => 0o644,
            };
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&partial)?;
            io::Write::write_all(&mut file, content)?;
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.sync_all()?;
            fs::rename(&partial, directory.join(name))?;
        }
        for name in Self::read(directory)?
            .0
            .keys()
            .filter(|name| !self.0.contains_key(*name))
        {
            fs::remove_file(directory.join(name))?;
        }
        Ok(())
    }

    /// The value of a parameter of slurm.conf.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let text = String::from_utf8_lossy(self.get("slurm.conf")?).into_owned();
        text.lines().rev().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            key.trim()
                .eq_ignore_ascii_case(name)
                .then(|| value.trim().trim_matches('"').to_owned())
        })
    }
}

impl FromIterator<(String, Vec<u8>)> for Files {
    fn from_iter<T: IntoIterator<Item = (String, Vec<u8>)>>(files: T) -> Self {
        Self(files.into_iter().collect())
    }
}

fn is_key(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|extension| extension == "key")
        || name == "slurm.jwks"
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn files(list: &[(&str, &str)]) -> Files {
        list.iter()
            .map(|(name, content)| ((*name).to_owned(), content.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn a_directory_ends_up_with_exactly_these_files() {
        let directory = tempfile::tempdir().unwrap();
        files(&[("old.conf", "x"), ("slurm.conf", "1")])
            .write(directory.path())
            .unwrap();
        let wanted = files(&[("slurm.conf", "2"), ("slurm.key", "k"), ("prolog", "#!/bin/sh\n")]);
        wanted.write(directory.path()).unwrap();
        assert_eq!(Files::read(directory.path()).unwrap(), wanted);
        let mode = |name: &str| {
            fs::metadata(directory.path().join(name))
                .unwrap()
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!(
            (mode("slurm.key"), mode("prolog"), mode("slurm.conf")),
            (0o600, 0o755, 0o644)
        );
    }

    #[test]
    fn keys_are_neither_hashed_nor_kept() {
        let plain = files(&[("slurm.conf", "1")]);
        let with_key = files(&[("slurm.conf", "1"), ("slurm.key", "a"), ("jwt.key", "b")]);
        assert_eq!(plain.hash(), with_key.hash());
        assert_eq!(with_key.without_keys(), plain);
        assert_eq!(plain.with_keys_of(&with_key), with_key);
        assert_ne!(plain.hash(), files(&[("slurm.conf", "2")]).hash());
        assert_ne!(files(&[("a", "bc")]).hash(), files(&[("ab", "c")]).hash());
    }

    #[test]
    fn a_parameter_is_found_whatever_its_case() {
        let files = files(&[("slurm.conf", "ClusterName=x\nstatesavelocation = /var/spool\n")]);
        assert_eq!(
            files.parameter("StateSaveLocation").as_deref(),
            Some("/var/spool")
        );
        assert_eq!(files.parameter("Nope"), None);
    }
}
