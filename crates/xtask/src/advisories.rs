//! `cargo xtask audit`: checks the linked crates for known vulnerable, unmaintained or yanked versions.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use testbed::cache::Cache;
use testbed::progress::Progress;

use crate::test::{Check, deny};
use crate::workspace;

#[derive(Args)]
pub struct Options {
    /// Fail if the advisory database is unavailable, instead of printing a message
    #[arg(long)]
    require_database: bool,
}

/// The source of the advisories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Database {
    /// Just fetched.
    Fresh,
    /// A copy that was fetched earlier; the database is unavailable now.
    Kept,
    Missing,
}

impl Database {
    fn found(fetched: bool, kept: bool) -> Self {
        match (fetched, kept) {
            (true, _) => Self::Fresh,
            (false, true) => Self::Kept,
            (false, false) => Self::Missing,
        }
    }
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let cache = Cache::open()?;
    let progress = Progress::new(false);
    let deny = deny(&cache, &progress)?;
    let command = |words: &[&str]| -> Result<Command> {
        let mut command = Command::new(&deny);
        command.current_dir(workspace::root()?).args(words);
        Ok(command)
    };
    let fetched = command(&["--log-level", "off", "fetch", "db"])?
        .status()
        .with_context(|| format!("failed to start {}", deny.display()))?
        .success();
    let check = ["--log-level", "error", "check"];
    match Database::found(fetched, has_entries(&kept_at())) {
        Database::Fresh => {
            command(&[&check[..], &["advisories"]].concat())?.check()?;
            println!("no advisories for the crates in Cargo.lock");
        }
        Database::Kept => {
            command(&[&check[..], &["--disable-fetch", "advisories"]].concat())?.check()?;
            println!(
                "no advisories for the crates in Cargo.lock, according to the copy in {}; newer advisories could not be fetched",
                kept_at().display()
            );
        }
        Database::Missing => {
            println!(
                "NOT CHECKED: the advisory database (github.com/rustsec/advisory-db) is unreachable, and there is no copy in {}",
                kept_at().display()
            );
            if options.require_database {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The directory in which cargo-deny stores fetched databases.
fn kept_at() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cargo"))
    });
    home.unwrap_or_default().join("advisory-dbs")
}

fn has_entries(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    // The directory also contains a lock file.
    entries.filter(|entry| entry.path().is_dir()).count() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_used_only_when_nothing_newer_can_be_had() {
        assert_eq!(Database::found(true, true), Database::Fresh);
        assert_eq!(Database::found(false, true), Database::Kept);
        assert_eq!(Database::found(false, false), Database::Missing);
    }

    #[test]
    fn a_lock_alone_is_no_copy() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("db.lock"), "").unwrap();
        assert!(!has_entries(directory.path()));
        std::fs::create_dir(directory.path().join("advisory-db-1")).unwrap();
        assert!(has_entries(directory.path()));
        assert!(!has_entries(&directory.path().join("nowhere")));
    }
}
