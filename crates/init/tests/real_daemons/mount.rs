//! The files of a projected volume.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;

use anyhow::Result;

/// The files mounted at /etc/slurm.
#[derive(Debug, Clone, Default)]
pub struct Mount(BTreeMap<String, String>);

impl Mount {
    /// Returns the files with one added or replaced.
    pub fn with(&self, name: &str, content: &str) -> Self {
        let mut files = self.0.clone();
        files.insert(name.to_owned(), content.to_owned());
        Self(files)
    }

    /// Returns only this file.
    pub fn only(&self, name: &str) -> Self {
        Self(
            self.0
                .clone()
                .into_iter()
                .filter(|(file, _)| file == name)
                .collect(),
        )
    }

    /// Writes the files as the kubelet does: into a new directory, reached by links through `..data`, which is replaced
    /// atomically. Root owns them, and the pod's group may read them.
    pub fn deliver(&self, directory: &Path, group: u32) -> Result<()> {
        let old = fs::read_link(directory.join("..data")).ok();
        let number = old
            .as_ref()
            .and_then(|old| old.to_str()?.strip_prefix("..v")?.parse().ok())
            .unwrap_or(0_u32);
        let version = format!("..v{}", number + 1);
        for (name, content) in &self.0 {
            let path = directory.join(&version).join(name);
            fs::create_dir_all(path.parent().unwrap_or(directory))?;
            fs::write(&path, content)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o650))?;
            chown(&path, Some(0), Some(group))?;
        }
        symlink(&version, directory.join("..data_tmp"))?;
        fs::rename(directory.join("..data_tmp"), directory.join("..data"))?;
        let tops = |name: &str| name.split('/').next().unwrap_or(name).to_owned();
        for top in self.0.keys().map(|name| tops(name)) {
            match symlink(format!("..data/{top}"), directory.join(&top)) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
                _ => {}
            }
        }
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if fs::metadata(&path).is_err() {
                fs::remove_file(&path)?;
            }
        }
        if let Some(old) = old {
            fs::remove_dir_all(directory.join(old))?;
        }
        Ok(())
    }
}
