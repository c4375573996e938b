//! cert-manager, built from its Go module, with its own chart. It issues the webhook certificate in clusters that use cert-manager.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::binaries::Go;
use crate::cache::{Cache, Key};
use crate::command;
use crate::image;
use crate::progress::Progress;

const VERSION: &str = "1.21.2";

/// The programs, by the names used in the chart.
const PROGRAMS: &[&str] = &["controller", "cainjector", "webhook"];

const MAIN_GO: &str = include_str!("../certmanager/main.go");
const GO_MOD: &str = include_str!("../certmanager/go.mod");
const GO_SUM: &str = include_str!("../certmanager/go.sum");

/// The files to install cert-manager.
#[derive(Debug)]
pub struct CertManager {
    /// The chart, including the CRDs.
    pub chart: PathBuf,
    /// The image archive for a container runtime.
    pub archive: PathBuf,
}

/// The image of one of the programs: `controller`, `cainjector` or `webhook`.
pub fn image(program: &str) -> String {
    format!("{}/cert-manager-{program}:dev", image::REGISTRY)
}

/// Returns the files from the cache, building missing ones.
pub fn build(cache: &Cache, progress: &Progress) -> Result<CertManager> {
    let logs = cache.root().join("logs");
    fs::create_dir_all(&logs)?;
    let go = Go::find()?;
    let key = Key::new("cert-manager-1")
        .text(&go.version)
        .text(MAIN_GO)
        .text(GO_MOD)
        .text(GO_SUM)
        .finish();
    let place = cache.get_or_build("cert-manager", &key, |place| {
        progress.step(
            &format!("building cert-manager {VERSION} (once, a few minutes)"),
            |_| build_in(&go, place, &logs.join("cert-manager.log")),
        )
    })?;
    let images: Vec<(String, &str)> = PROGRAMS
        .iter()
        .map(|&program| (image(program), program))
        .collect();
    Ok(CertManager {
        chart: place.join("chart"),
        archive: image::of_program(cache, &place.join("cert-manager"), &images)?,
    })
}

fn build_in(go: &Go, place: &Path, log: &Path) -> Result<()> {
    let source = tempfile::tempdir().context("failed to create a build directory")?;
    for (name, content) in [("main.go", MAIN_GO), ("go.mod", GO_MOD), ("go.sum", GO_SUM)] {
        fs::write(source.path().join(name), content)?;
    }
    let mut build = go.command();
    build
        .current_dir(source.path())
        .args(["build", "-ldflags", "-s -w", "-o"])
        .arg(place.join("cert-manager"))
        .arg(".");
    go.run(&mut build, log)?;
    let module = go.module(&format!("github.com/cert-manager/cert-manager@v{VERSION}"))?;
    // Module files are read-only, but files in a cache entry must be writable so that the entry can be removed.
    let mut copy = std::process::Command::new("cp");
    copy.args(["--recursive", "--no-preserve=mode"])
        .arg(module.join("deploy/charts/cert-manager"))
        .arg(place.join("chart"));
    command::run(&mut copy, log)
}
