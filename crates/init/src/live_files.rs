//! Files that change while the pod runs. The kubelet keeps a mounted directory up to date, but not a single mounted file, so
//! the files are in one directory and their paths are links to it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;

use slurm_conf::container::{dir, file_path};

/// Creates the links. A file that cannot be linked is reported and must not keep the daemon from starting.
pub fn link() {
    for (path, error) in link_below(Path::new(dir::LIVE_FILES), Path::new("/")) {
        eprintln!("init: failed to link {path} to its current content: {error}");
    }
}

fn link_below(files: &Path, root: &Path) -> Vec<(String, std::io::Error)> {
    let Ok(entries) = fs::read_dir(files) else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    // The kubelet's own entries start with two dots.
    names
        .filter(|name| !name.starts_with(".."))
        .filter_map(|key| {
            let path = file_path(&key);
            let at = root.join(path.trim_start_matches('/'));
            replace(&files.join(&key), &at).err().map(|error| (path, error))
        })
        .collect()
}

fn replace(content: &Path, at: &Path) -> std::io::Result<()> {
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::remove_file(at) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(content, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_linked_from_its_path_also_after_a_restart() {
        let (files, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(files.path().join("etc__motd"), "first").unwrap();
        fs::create_dir(files.path().join("..2026_11_19")).unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/motd"), "of the image").unwrap();
        for content in ["first", "second"] {
            fs::write(files.path().join("etc__motd"), content).unwrap();
            assert!(link_below(files.path(), root.path()).is_empty());
            assert_eq!(fs::read_to_string(root.path().join("etc/motd")).unwrap(), content);
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_in_the_way_is_reported_and_kept() {
        let (files, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(files.path().join("etc"), "x").unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let failed = link_below(files.path(), root.path());
        assert_eq!(failed[0].0, "/etc");
        assert!(root.path().join("etc").is_dir());
    }

    #[test]
    fn a_pod_without_such_files_has_nothing_to_do() {
        assert!(link_below(Path::new("/nonexistent"), Path::new("/")).is_empty());
    }
}
