//! SSSD, running next to the pod's main daemon: looks up users in a directory service.

use std::io;
use std::path::{Path, PathBuf};

use slurm_conf::sssd_conf;

use crate::process::find;
use crate::service::Service;

/// SSSD runs only if this file is mounted.
const CONFIG: &str = "/etc/sssd/sssd.conf";

/// The directory of files that extend it.
const CONF_D: &str = "/etc/sssd/conf.d";

/// Directories of SSSD's providers on Debian and other distributions.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/sssd",
    "/usr/lib/aarch64-linux-gnu/sssd",
    "/usr/lib64/sssd",
];

/// Returns SSSD in the foreground, if its configuration is mounted. Without SSSD users could not log in, and jobs would
/// run as users without a name, so a configuration that SSSD cannot run with is an error.
pub fn service() -> io::Result<Option<Service>> {
    let config = Path::new(CONFIG);
    if !config.exists() {
        return Ok(None);
    }
    let refused = |why: String| io::Error::other(format!("{CONFIG}: {why}"));
    if !find("sssd").exists() {
        return Err(refused(
            "this image has no sssd: set sssd.enabled to false".to_owned(),
        ));
    }
    let text = std::fs::read(config)?;
    let conf_d = conf_d(Path::new(CONF_D))?;
    if let Err(fault) = sssd_conf::read(&text)
        && fault.may_be_mended_in_conf_d()
        && !conf_d.is_empty()
    {
        eprintln!("init: warning: {CONFIG} alone: {fault}; using the domains in {CONF_D}");
    }
    let providers = sssd_conf::read_with(&text, &conf_d).map_err(|fault| refused(fault.to_string()))?;
    for (domain, provider) in &providers {
        let files = LIBRARIES.map(|place| PathBuf::from(place).join(format!("libsss_{provider}.so")));
        if !files.iter().any(|file| file.exists()) {
            return Err(refused(format!(
                "[domain/{domain}]: the sssd of this image has no id_provider {provider:?}"
            )));
        }
    }
    Ok(Some(Service::new(
        "sssd",
        ["-i", "--logger=stderr"].map(str::to_owned),
    )))
}

/// Returns the contents of the files that SSSD reads, in its order: those that end in `.conf` and are not hidden, by
/// name.
fn conf_d(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<PathBuf>>>()?;
    paths.retain(|path| {
        let hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        path.extension().is_some_and(|end| end == "conf") && !hidden && path.is_file()
    });
    paths.sort();
    paths.into_iter().map(std::fs::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_conf_d_are_read_as_sssd_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["20-b.conf", "10-a.conf", ".hidden.conf", "notes.txt"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        std::fs::create_dir(folder.path().join("30-folder.conf")).unwrap();
        assert_eq!(conf_d(folder.path()).unwrap(), [b"10-a.conf", b"20-b.conf"]);
        assert!(conf_d(&folder.path().join("missing")).unwrap().is_empty());
    }
}
