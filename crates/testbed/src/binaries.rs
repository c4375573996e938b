//! The Kubernetes programs, CoreDNS, kwok and helm, built from pinned Go modules.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cache::{Cache, Key};
use crate::command;
use crate::progress::Progress;

/// The Kubernetes version that the testbed runs.
pub const KUBERNETES: &str = "1.37.1";
const COREDNS: &str = "1.14.6";
const KWOK: &str = "0.8.0";
/// `cargo xtask helm`.
const HELM: &str = "4.3.1";
/// The charts are also tested with the previous major version of helm.
const HELM_3: &str = "3.22.0";

/// The minimum Go version for these modules.
const GO_MINIMUM: (u32, u32) = (1, 26);

/// The cache name of the Kubernetes programs, by far the largest build.
pub const KUBERNETES_BUILD: &str = "kubernetes";

/// The components in the single Kubernetes binary. The program name selects the component.
const COMPONENTS: &[&str] = &[
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
];

/// The paths of the built programs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Binaries {
    /// Directory with a link for each component.
    pub kubernetes: PathBuf,
    /// The `CoreDNS` program.
    pub coredns: PathBuf,
    /// The kwok program.
    pub kwok: PathBuf,
    /// The stages that simulate the life cycle of nodes and pods.
    pub kwok_stages: PathBuf,
    /// The helm program.
    pub helm: PathBuf,
}

impl Binaries {
    /// Returns the programs from the cache, building missing ones.
    pub fn build(cache: &Cache, progress: &Progress) -> Result<Self> {
        let logs = cache.root().join("logs");
        fs::create_dir_all(&logs)?;
        let go = Go::find()?;
        let kubernetes = cache.get_or_build(KUBERNETES_BUILD, &kubernetes_key(&go), |place| {
            progress.step(
                &format!("building Kubernetes {KUBERNETES} (once, about 10 minutes)"),
                |_| build_kubernetes(&go, place, &logs.join("kubernetes.log")),
            )
        })?;
        let tool =
            |name: &str, package: &str, version: &str| go.tool(cache, progress, name, package, version);
        let helm = tool("helm", "helm.sh/helm/v4/cmd/helm", HELM)?;
        let coredns = tool("coredns", "github.com/coredns/coredns", COREDNS)?;
        let kwok = tool("kwok", "sigs.k8s.io/kwok/cmd/kwok", KWOK)?;
        let stages_key = Key::new("kwok-stages-1").text(KWOK).finish();
        let stages = cache.get_or_build("kwok-stages", &stages_key, |place| kwok_stages(&go, place))?;
        Ok(Self {
            kubernetes,
            coredns: coredns.join("coredns"),
            kwok: kwok.join("kwok"),
            kwok_stages: stages.join("stages.yaml"),
            helm: helm.join("helm"),
        })
    }

    /// The program of a Kubernetes component.
    pub fn component(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }
}

/// The previous major version of helm, which only tests use.
pub fn helm_3(cache: &Cache, progress: &Progress) -> Result<PathBuf> {
    let place = Go::find()?.tool(cache, progress, "helm3", "helm.sh/helm/v3/cmd/helm", HELM_3)?;
    Ok(place.join("helm"))
}

const MAIN_GO: &str = include_str!("../kubelite/main.go");
const GO_MOD: &str = include_str!("../kubelite/go.mod");
const GO_SUM: &str = include_str!("../kubelite/go.sum");

fn kubernetes_key(go: &Go) -> String {
    Key::new("kubernetes-1")
        .text(KUBERNETES)
        .text(&go.version)
        .text(MAIN_GO)
        .text(GO_MOD)
        .text(GO_SUM)
        .finish()
}

fn build_kubernetes(go: &Go, place: &Path, log: &Path) -> Result<()> {
    let source = tempfile::tempdir().context("failed to create a build directory")?;
    for (name, content) in [("main.go", MAIN_GO), ("go.mod", GO_MOD), ("go.sum", GO_SUM)] {
        fs::write(source.path().join(name), content)?;
    }
    // Without these, the version variables are placeholders that clients cannot compare.
    let (major, minor) = KUBERNETES
        .split_once('.')
        .context("the Kubernetes version has no dot")?;
    let minor = minor.split_once('.').map_or(minor, |(minor, _)| minor);
    let mut flags = String::from("-s -w");
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (variable, value) in [
            ("gitVersion", format!("v{KUBERNETES}").as_str()),
            ("gitMajor", major),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
            ("buildDate", "1970-01-01T00:00:00Z"),
        ] {
            flags.extend([" -X ", package, ".", variable, "=", value]);
        }
    }
    let program = place.join("kubelite");
    let mut build = go.command();
    build
        .current_dir(source.path())
        .args(["build", "-ldflags", &flags, "-o"])
        .arg(&program)
        .arg(".");
    go.run(&mut build, log)?;
    for component in COMPONENTS {
        std::os::unix::fs::symlink("kubelite", place.join(component))?;
    }
    Ok(())
}

/// The kwok module contains the stage files that the program requires.
fn kwok_stages(go: &Go, place: &Path) -> Result<()> {
    let directory = go.module(&format!("sigs.k8s.io/kwok@v{KWOK}"))?;
    let mut stages = String::new();
    for folder in ["node/fast", "node/heartbeat-with-lease", "pod/fast"] {
        let folder = directory.join("kustomize/stage").join(folder);
        let mut files: Vec<PathBuf> = fs::read_dir(&folder)?
            .map(|file| file.map(|file| file.path()))
            .collect::<std::io::Result<_>>()?;
        files.sort();
        let is_stage = |file: &&PathBuf| {
            file.extension().is_some_and(|extension| extension == "yaml")
                && !file.ends_with("kustomization.yaml")
        };
        for file in files.iter().filter(is_stage) {
            stages.push_str("---\n");
            stages.push_str(&fs::read_to_string(file)?);
        }
    }
    Ok(fs::write(place.join("stages.yaml"), stages)?)
}

/// The Go toolchain of this machine.
#[derive(Debug)]
pub(crate) struct Go {
    program: PathBuf,
    pub(crate) version: String,
}

impl Go {
    pub(crate) fn find() -> Result<Self> {
        let wanted = format!("Go {}.{} or newer", GO_MINIMUM.0, GO_MINIMUM.1);
        for program in ["go", "/usr/local/go/bin/go", "/usr/lib/go/bin/go"] {
            let Ok(text) = command::output(Command::new(program).arg("version")) else {
                continue;
            };
            let version = text
                .split_whitespace()
                .nth(2)
                .unwrap_or_default()
                .trim_start_matches("go")
                .to_owned();
            if parse_version(&version).is_some_and(|found| found >= GO_MINIMUM) {
                return Ok(Self {
                    program: program.into(),
                    version,
                });
            }
            bail!(
                "{program} is version {version}, but {wanted} is required to build Kubernetes: install it and put it first in PATH"
            );
        }
        bail!(
            "no Go toolchain found; {wanted} is required to build Kubernetes: install it and add it to PATH"
        )
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-trimpath -buildvcs=false")
            .env("GOTOOLCHAIN", "local");
        command
    }

    /// Builds a program once from a module that supports `go install`.
    fn tool(
        &self,
        cache: &Cache,
        progress: &Progress,
        name: &str,
        package: &str,
        version: &str,
    ) -> Result<PathBuf> {
        let key = Key::new("go-tool-1")
            .text(package)
            .text(version)
            .text(&self.version)
            .finish();
        let log = cache.root().join("logs").join(format!("{name}.log"));
        cache.get_or_build(name, &key, |place| {
            progress.step(
                &format!("building {name} {version} (once, a few minutes)"),
                |_| self.install(package, version, place, &log),
            )
        })
    }

    /// The directory of a module.
    pub(crate) fn module(&self, module: &str) -> Result<PathBuf> {
        let answer = command::output(self.command().args(["mod", "download", "-json", module]))?;
        let answer: serde_json::Value =
            serde_json::from_str(&answer).context("failed to parse the output of go mod download")?;
        let directory = answer.get("Dir").and_then(|dir| dir.as_str());
        Ok(directory
            .context("the output of go mod download contains no directory")?
            .into())
    }

    fn install(&self, package: &str, version: &str, place: &Path, log: &Path) -> Result<()> {
        let mut install = self.command();
        install
            .env("GOBIN", place)
            .args(["install", "-ldflags", "-s -w"])
            .arg(format!("{package}@v{version}"));
        self.run(&mut install, log)
    }

    #[expect(clippy::unused_self, reason = "an action of the toolchain")]
    pub(crate) fn run(&self, command: &mut Command, log: &Path) -> Result<()> {
        command::run(command, log).map_err(|error| {
            let text = error.to_string();
            if ["dial tcp", "no such host", "i/o timeout", "connection refused"]
                .iter()
                .any(|sign| text.contains(sign))
            {
                error.context(
                    "failed to fetch Go modules: check the network and GOPROXY, then run the command again",
                )
            } else {
                error
            }
        })
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts
        .next()?
        .trim_end_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .ok()?;
    Some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn go_versions_are_compared_by_number() {
        assert_eq!(parse_version("1.26.8"), Some((1, 26)));
        assert!(parse_version("1.9") < parse_version("1.26"));
        assert_eq!(parse_version("devel"), None);
    }
}
