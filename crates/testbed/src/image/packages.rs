//! The packages of a tree: the list of package names, and the lock with the exact files.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// The packages listed in `images/<name>/packages`, including those of included lists.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The Debian code name of the release.
    pub suite: String,
    /// Another release, for packages that the first does not contain.
    pub also: Option<String>,
    /// Whether the tree includes the essential packages of Debian; otherwise the list is used unchanged.
    pub essential: bool,
    /// Package names.
    pub names: Vec<String>,
    /// The list that this one includes. Its tree is the lower layer.
    pub parent: Option<String>,
}

impl Wanted {
    /// Reads the list of an image.
    pub fn read(images: &Path, name: &str) -> Result<Self> {
        let path = images.join(name).join("packages");
        let text = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        let mut wanted = Self::default();
        for line in text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let words: Vec<&str> = line.split_whitespace().collect();
            match *words {
                ["suite", suite] => suite.clone_into(&mut wanted.suite),
                ["also", suite] => wanted.also = Some(suite.to_owned()),
                ["include", parent] => {
                    ensure!(
                        wanted.parent.is_none(),
                        "{}: includes more than one list",
                        path.display()
                    );
                    let below = Self::read(images, parent)?;
                    wanted.suite = below.suite;
                    wanted.also = below.also;
                    wanted.essential = below.essential;
                    wanted.names.extend(below.names);
                    wanted.parent = Some(parent.to_owned());
                }
                ["essential"] => wanted.essential = true,
                [package] => wanted.names.push(package.to_owned()),
                _ => bail!("{}: cannot parse `{line}`", path.display()),
            }
        }
        ensure!(!wanted.suite.is_empty(), "{}: no suite specified", path.display());
        Ok(wanted)
    }
}

/// One file of the Debian archive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    /// Package name.
    pub name: String,
    /// Version, with its epoch.
    pub version: String,
    /// `amd64` or `all`.
    pub architecture: String,
    /// Size in bytes.
    pub size: u64,
    /// Hash of the file.
    pub sha256: String,
    /// The path, relative to the root of a mirror.
    pub path: String,
}

impl Package {
    /// The file name.
    pub fn file(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// The exact packages of one tree.
#[derive(Debug, PartialEq, Eq)]
pub struct Lock {
    /// The Debian code name of the release.
    pub suite: String,
    /// Sorted by name.
    pub packages: Vec<Package>,
}

impl Lock {
    /// Reads `images/<name>/lock`.
    pub fn read(images: &Path, name: &str) -> Result<Self> {
        let path = images.join(name).join("lock");
        let text = fs::read_to_string(&path).with_context(|| {
            format!(
                "failed to read {}: create it with `cargo xtask images --update-lock`",
                path.display()
            )
        })?;
        Self::parse(&text).with_context(|| format!("invalid file {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut suite = None;
        let mut packages = Vec::new();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix('#') {
                suite = suite.or(comment.trim().strip_prefix("suite ").map(str::to_owned));
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, version, architecture, size, sha256, path] = *words else {
                bail!("invalid line: {line}")
            };
            packages.push(Package {
                name: name.to_owned(),
                version: version.to_owned(),
                architecture: architecture.to_owned(),
                size: size.parse().with_context(|| format!("invalid size: {line}"))?,
                sha256: sha256.to_owned(),
                path: path.to_owned(),
            });
        }
        Ok(Self {
            suite: suite.context("no suite specified")?,
            packages,
        })
    }

    /// The contents of the lock file.
    pub fn text(&self) -> String {
        let mut text = format!(
            "# suite {}\n# Written by `cargo xtask images --update-lock`: name version architecture size sha256 path\n",
            self.suite
        );
        for Package {
            name,
            version,
            architecture,
            size,
            sha256,
            path,
        } in &self.packages
        {
            let _ = writeln!(text, "{name} {version} {architecture} {size} {sha256} {path}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(images: &Path, name: &str, text: &str) {
        fs::create_dir_all(images.join(name)).unwrap();
        fs::write(images.join(name).join("packages"), text).unwrap();
    }

    #[test]
    fn a_list_holds_what_it_includes() {
        let images = tempfile::tempdir().unwrap();
        write(
            images.path(),
            "base",
            "# why\nsuite forky\nalso sid\nessential\nprocps\n",
        );
        write(images.path(), "slurm", "include base\n\nslurm-client\n");
        let wanted = Wanted::read(images.path(), "slurm").unwrap();
        assert_eq!(
            wanted,
            Wanted {
                suite: "forky".into(),
                also: Some("sid".into()),
                essential: true,
                names: vec!["procps".into(), "slurm-client".into()],
                parent: Some("base".into()),
            }
        );
    }

    #[test]
    fn a_list_without_suite_or_with_an_unknown_line_is_refused() {
        let images = tempfile::tempdir().unwrap();
        write(images.path(), "a", "procps\n");
        assert!(
            Wanted::read(images.path(), "a")
                .unwrap_err()
                .to_string()
                .contains("no suite specified")
        );
        write(images.path(), "b", "suite forky\nprocps vim\n");
        assert!(
            Wanted::read(images.path(), "b")
                .unwrap_err()
                .to_string()
                .contains("procps vim")
        );
    }

    #[test]
    fn a_lock_reads_back_as_written() {
        let lock = Lock {
            suite: "forky".into(),
            packages: vec![Package {
                name: "tini".into(),
                version: "1:0.19.0-6+b2".into(),
                architecture: "amd64".into(),
                size: 262_144,
                sha256: "ab".repeat(32),
                path: "pool/main/t/tini/tini_0.19.0-6+b2_amd64.deb".into(),
            }],
        };
        assert_eq!(Lock::parse(&lock.text()).unwrap(), lock);
        assert_eq!(lock.packages[0].file(), "tini_0.19.0-6+b2_amd64.deb");
    }

    #[test]
    fn every_lock_in_the_repository_covers_its_list() {
        let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images");
        let mut seen = 0;
        for entry in fs::read_dir(&images).unwrap() {
            let entry = entry.unwrap();
            if !entry.path().join("packages").exists() {
                continue;
            }
            let name = entry.file_name().into_string().unwrap();
            let wanted = Wanted::read(&images, &name).unwrap();
            let lock = Lock::read(&images, &name).unwrap();
            assert_eq!(lock.suite, wanted.suite, "{name}");
            for package in &wanted.names {
                assert!(
                    lock.packages.iter().any(|locked| locked.name == *package),
                    "{name}: {package} is not locked"
                );
            }
            seen += 1;
        }
        assert!(seen > 5);
    }
}
