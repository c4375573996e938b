//! The previous release of the project, from which upgrades are tested: its charts and examples, and its programs in images with
//! separate names.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use testbed::cache::{Cache, Key, remove_tree};
use testbed::image::{self, OurPrograms};
use testbed::progress::Progress;

use crate::workspace;

/// The file that contains its commit.
const NAMED_IN: &str = "tests/e2e/previous-release";

/// The images that a cluster with workers and users runs.
const IMAGES: &[&str] = &["slurm-operator", "slurmctld", "slurmd", "slurmrestd", "login"];

/// The build of the previous release.
#[derive(Debug)]
pub struct Previous {
    /// The directory that contains `charts` and `examples`.
    pub files: PathBuf,
    /// Its images.
    pub archive: PathBuf,
}

/// Builds the previous release once per machine, because it never changes.
pub fn build(cache: &Cache, progress: &Progress) -> Result<Previous> {
    let root = workspace::root()?;
    let named =
        std::fs::read_to_string(root.join(NAMED_IN)).with_context(|| format!("failed to read {NAMED_IN}"))?;
    let commit = named.trim();
    let key = Key::new("previous-1").text(commit).finish();
    let files = cache.get_or_build("previous", &key, |place| {
        let source = place.join("source");
        check_out(&root, commit, &source)?;
        for program in ["init", "keelson"] {
            let title =
                format!("building {program} of the previous release, {commit:.10} (once, a few minutes)");
            workspace::build_program(cache, progress, &source, program, &title, &place.join(program))?;
        }
        for folder in ["charts", "examples"] {
            std::fs::rename(source.join(folder), place.join(folder))
                .with_context(|| format!("commit {commit} has no {folder}"))?;
        }
        remove_tree(&source)
    })?;
    let programs = OurPrograms {
        init: files.join("init"),
        keelson: files.join("keelson"),
    };
    // Its programs on top of the current packages: the old packages may no longer be in the archives.
    let log = cache.root().join("logs/apt.log");
    testbed::host::ensure_packages(progress, &log, image::PACKAGES)?;
    let recipes = root.join("images");
    let images = image::build(cache, progress, &recipes, &programs, IMAGES, image::previous_name)?;
    let archive = images.all.into_iter().next().context("no image")?.archive;
    Ok(Previous { files, archive })
}

fn check_out(root: &Path, commit: &str, place: &Path) -> Result<()> {
    let git = || {
        let mut git = Command::new("git");
        git.arg("-C").arg(root);
        git
    };
    let known = git()
        .args(["cat-file", "-e", &format!("{commit}^{{commit}}")])
        .output();
    let known = known.context("failed to start git")?;
    ensure!(
        known.status.success(),
        "this clone does not contain commit {commit:?}, from which upgrades are tested ({NAMED_IN}): {}; in a shallow clone, run `git fetch --unshallow`",
        String::from_utf8_lossy(&known.stderr).trim()
    );
    std::fs::create_dir_all(place)?;
    let mut archive = git()
        .args(["archive", "--format=tar", commit])
        .stdout(Stdio::piped())
        .spawn()?;
    let packed = archive.stdout.take().context("git archive has no output")?;
    let unpacked = Command::new("tar").arg("-xC").arg(place).stdin(packed).status()?;
    ensure!(
        archive.wait()?.success() && unpacked.success(),
        "failed to extract commit {commit} from the repository to {}",
        place.display()
    );
    Ok(())
}
