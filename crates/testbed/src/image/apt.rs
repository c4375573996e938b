//! Access to the Debian archive through apt: finding the mirror, resolving a list of packages, fetching files.
//!
//! Packages are resolved in a private apt state in which nothing is installed. It must never change the packages of
//! this machine, so the private configuration also replaces dpkg with a program that always fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use super::packages::{Lock, Package, Wanted};
use crate::cache::hex;
use crate::command;

/// The first Debian mirror in the package sources of this machine.
pub fn mirror() -> Result<String> {
    let directory = Path::new("/etc/apt");
    let mut files = vec![
        directory.join("sources.list.d/debian.sources"),
        directory.join("sources.list"),
    ];
    if let Ok(entries) = fs::read_dir(directory.join("sources.list.d")) {
        let mut more: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .collect();
        more.sort();
        files.extend(more);
    }
    files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .find_map(|text| first_mirror(&text))
        .context("no Debian mirror found in /etc/apt: add one to the package sources")
}

/// The first address in a sources file of either format that looks like the main Debian archive.
fn first_mirror(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| {
            if let Some(addresses) = line.strip_prefix("URIs:") {
                return addresses.split_whitespace().next();
            }
            let mut words = line.strip_prefix("deb ")?.split_whitespace();
            let first = words.next()?;
            // Options are in brackets before the address.
            if first.starts_with('[') && !first.ends_with(']') {
                words.find(|word| word.ends_with(']'))?;
            }
            if first.starts_with('[') {
                words.next()
            } else {
                Some(first)
            }
        })
        .map(|address| address.trim_end_matches('/'))
        .find(|address| address.ends_with("/debian"))
        .map(str::to_owned)
}

/// A private view of one Debian release, and of another one for packages that the first does not contain.
#[derive(Debug)]
pub struct Release {
    suite: String,
    also: Option<String>,
    state: tempfile::TempDir,
}

impl Release {
    /// Fetches the indexes of the releases.
    pub fn open(suite: &str, also: Option<&str>, log: &Path) -> Result<Self> {
        let state = tempfile::tempdir().context("failed to create a directory for apt")?;
        let root = state.path();
        for directory in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(root.join(directory))?;
        }
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        fs::write(root.join("status"), "")?;
        let mirror = mirror()?;
        let sources: Vec<String> = std::iter::once(suite)
            .chain(also)
            .map(|suite| format!("deb [signed-by={keyring}] {mirror} {suite} main\n"))
            .collect();
        fs::write(root.join("sources.list"), sources.concat())?;
        fs::write(root.join("preferences"), preferences(also))?;
        let at = root.display();
        fs::write(
            root.join("apt.conf"),
            format!(
                "Dir::State \"{at}/state\";\nDir::State::status \"{at}/status\";\nDir::Cache \"{at}/cache\";\n\
                 Dir::Etc::SourceList \"{at}/sources.list\";\nDir::Etc::SourceParts \"/dev/null\";\n\
                 Dir::Etc::Preferences \"{at}/preferences\";\nDir::Etc::PreferencesParts \"/dev/null\";\n\
                 Dir::Bin::dpkg \"/bin/false\";\nAPT::Install-Recommends \"false\";\nAPT::Sandbox::User \"root\";\n\
                 Acquire::Languages \"none\";\n"
            ),
        )?;
        let release = Self {
            suite: suite.to_owned(),
            also: also.map(str::to_owned),
            state,
        };
        command::run(release.apt("apt-get").args(["--quiet", "update"]), log).with_context(|| {
            format!("failed to fetch the package index of {suite}: check the network and the mirror")
        })?;
        Ok(release)
    }

    /// The latest packages that satisfy the list.
    pub fn resolve(&self, wanted: &Wanted) -> Result<Lock> {
        ensure!(
            wanted.suite == self.suite && wanted.also == self.also,
            "failed to resolve a package list for {} in {}",
            wanted.suite,
            self.suite
        );
        let mut names = wanted.names.clone();
        if wanted.essential {
            names = self.closure(&wanted.names)?;
        }
        names.sort();
        names.dedup();
        let stanzas = command::output(
            self.apt("apt-cache")
                .args(["--no-all-versions", "show"])
                .args(&names),
        )?;
        let mut packages: Vec<Package> = stanzas.split("\n\n").filter_map(package).collect();
        packages.sort();
        packages.dedup();
        for name in &names {
            ensure!(
                packages.iter().any(|package| package.name == *name),
                "{} does not contain the package {name}",
                self.suite
            );
        }
        Ok(Lock {
            suite: self.suite.clone(),
            packages,
        })
    }

    /// The names of all packages that apt would install for `names` in addition to the essential packages.
    fn closure(&self, names: &[String]) -> Result<Vec<String>> {
        // apt considers itself essential, but an image that is never changed in place does not need a package manager.
        let plan = command::output(
            self.apt("apt-get")
                .args([
                    "--quiet=2",
                    "--yes",
                    "--simulate",
                    "install",
                    "?and(?essential, ?not(?exact-name(apt)))",
                ])
                .args(names),
        )?;
        Ok(plan
            .lines()
            .filter_map(|line| line.strip_prefix("Inst ")?.split_whitespace().next())
            .map(|name| name.split(':').next().unwrap_or(name).to_owned())
            .collect())
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("APT_CONFIG", self.state.path().join("apt.conf"))
            .env("LC_ALL", "C");
        command
    }
}

/// The apt preferences: with a priority below 500, packages of the other release are used only if there is no alternative.
fn preferences(also: Option<&str>) -> String {
    also.map(|suite| format!("Package: *\nPin: release n={suite}\nPin-Priority: 100\n"))
        .unwrap_or_default()
}

/// Parses the index entry of a package.
fn package(stanza: &str) -> Option<Package> {
    let field = |name: &str| {
        stanza
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(|value| value.trim().to_owned())
    };
    Some(Package {
        name: field("Package")?,
        version: field("Version")?,
        architecture: field("Architecture")?,
        size: field("Size")?.parse().ok()?,
        sha256: field("SHA256")?,
        path: field("Filename")?,
    })
}

/// Ensures that `directory` contains all packages in the lock, fetching missing ones.
pub fn fetch(lock: &Lock, directory: &Path, log: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("failed to create {}", directory.display()))?;
    let mirror = mirror()?;
    for package in &lock.packages {
        let place = directory.join(package.file());
        if place.exists() && sha256(&place)? == package.sha256 {
            continue;
        }
        // Two runs may fetch the same file: each uses its own temporary name, and the rename is atomic.
        let partial = directory.join(format!(".{}.{}", package.file(), std::process::id()));
        let address = format!("{mirror}/{}", package.path);
        let fetched = command::run(
            Command::new("/usr/lib/apt/apt-helper")
                .args([
                    "-o",
                    "Acquire::Retries=3",
                    "-o",
                    "APT::Sandbox::User=root",
                    "download-file",
                    &address,
                ])
                .arg(&partial),
            log,
        );
        if let Err(error) = fetched {
            let _ = fs::remove_file(&partial);
            if error.to_string().contains("404") {
                bail!(
                    "the mirror no longer contains {} {}: update the lock with `cargo xtask images --update-lock`",
                    package.name,
                    package.version
                );
            }
            return Err(error.context(format!("failed to fetch {}: check the network", package.file())));
        }
        let found = sha256(&partial)?;
        ensure!(
            found == package.sha256,
            "rejected {} from the mirror: its sha256 is {found}, but the lock requires {}",
            package.file(),
            package.sha256
        );
        fs::rename(&partial, &place).with_context(|| format!("failed to write {}", place.display()))?;
    }
    Ok(())
}

/// The hash of a file, in hexadecimal.
pub fn sha256(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path).with_context(|| format!("failed to read {}", path.display()))?;
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut HashWriter(&mut hasher))
        .with_context(|| format!("failed to read {}", path.display()))?;
    Ok(hex(&hasher.finalize()))
}

struct HashWriter<'a>(&'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(
        "Types: deb\nURIs: http://deb.example/debian\nSuites: bookworm\n",
        Some("http://deb.example/debian")
    )]
    #[case("Types: deb\nURIs: http://x/debian-security/ http://y/debian\n", None)]
    #[case(
        "deb http://a.example/debian/ bookworm main\n",
        Some("http://a.example/debian")
    )]
    #[case(
        "deb [arch=amd64 signed-by=/k] http://a.example/debian bookworm main\n",
        Some("http://a.example/debian")
    )]
    #[case(
        "deb [trusted=yes] http://a.example/other x main\n# deb http://b/debian x\n",
        None
    )]
    fn the_mirror_is_read_from_both_forms_of_sources(#[case] text: &str, #[case] mirror: Option<&str>) {
        assert_eq!(first_mirror(text).as_deref(), mirror);
    }

    #[test]
    fn an_index_entry_becomes_a_package() {
        let stanza = "Package: tini\nVersion: 0.19.0-6+b2\nArchitecture: amd64\nFilename: pool/main/t/tini/tini_0.19.0-6+b2_amd64.deb\nSize: 12\nSHA256: ff\n";
        let package = package(stanza).unwrap();
        assert_eq!((package.name.as_str(), package.size), ("tini", 12));
        assert_eq!(super::package("Package: half\n"), None);
    }
}
