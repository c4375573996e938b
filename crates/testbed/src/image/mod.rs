//! Container images and root file systems, built from locked Debian packages without a container engine.
//!
//! `images/<name>/` defines an image: `packages` (package names), `lock` (exact files), `files/` and `settle.sh` (our
//! additions) and the `Containerfile`, whose last stage defines the process. A tree is a root file system. An image is a
//! stack of layers, each the difference between two trees, with our programs on top.

mod apt;
pub mod bill;
mod containerfile;
mod layer;
mod oci;
mod packages;
mod program;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache::{Cache, Key, files_below};
use crate::command;
use crate::progress::Progress;
use containerfile::Stage;
use oci::Blob;
use packages::{Lock, Wanted};

pub use apt::sha256;
pub use program::{coredns, of_program};

/// Debian packages required on this machine to build images.
pub const PACKAGES: &[&str] = &["debian-archive-keyring", "mmdebstrap"];

/// The prefix of our image names, which is the default in the charts and does not point to a registry. A node without an image
/// looks for it only on itself.
pub const REGISTRY: &str = "localhost/keelson";

/// The pause image, which holds the namespaces of a pod.
pub const PAUSE: &str = "localhost/keelson/pause:dev";

/// Cluster DNS.
pub const COREDNS: &str = "localhost/keelson/coredns:dev";

/// The Slurm version of the images, which is also their tag.
pub const SLURM: &str = "26.05";

/// All images built from this checkout.
pub const OURS: &[&str] = &[
    "pause",
    "slurm-operator",
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurmrestd",
    "login",
    "mariadb",
    "slapd",
];

/// Change this when the build process changes in a way that does not affect its inputs.
const RECIPE: &str = "image-1";

/// The number of image archives in the cache: a few checkouts, each with and without optimizations.
const ARCHIVES_KEPT: usize = 8;

/// The programs of this checkout that are included in images.
#[derive(Debug, Clone)]
pub struct OurPrograms {
    /// The init process of the Slurm images, linked statically.
    pub init: PathBuf,
    /// The operator.
    pub keelson: PathBuf,
}

/// Images, ready to be loaded by a container runtime.
#[derive(Debug)]
pub struct Images {
    /// All of them.
    pub all: Vec<Image>,
}

impl Images {
    /// The archives to load. Images that were built together are in one archive, with shared layers included once.
    pub fn archives(&self) -> Vec<PathBuf> {
        let mut archives: Vec<PathBuf> = self.all.iter().map(|image| image.archive.clone()).collect();
        archives.dedup();
        archives
    }
}

/// One image.
#[derive(Debug, Clone)]
pub struct Image {
    /// The full name, with the tag.
    pub name: String,
    /// `sha256:…` of its manifest.
    pub digest: String,
    /// The tar file with the OCI layout that contains the image.
    pub archive: PathBuf,
}

/// The full name of one of our images.
pub fn name(short: &str) -> String {
    let tag = match short {
        "slurmctld" | "slurmd" | "slurmdbd" | "slurmrestd" | "login" => SLURM,
        // The default tag in the charts.
        "slurm-operator" => env!("CARGO_PKG_VERSION"),
        // The tag in examples/mariadb.yaml, which is the release of the server.
        "mariadb" => "11.8",
        _ => "dev",
    };
    format!("{REGISTRY}/{short}:{tag}")
}

/// The name of an image with the programs of the previous release, from which upgrades are tested.
pub fn previous_name(short: &str) -> String {
    format!("{REGISTRY}/{short}:previous")
}

/// Builds all images in `recipes` (the `images` directory of a checkout).
pub fn build_all(
    cache: &Cache,
    progress: &Progress,
    recipes: &Path,
    programs: &OurPrograms,
) -> Result<Images> {
    build(cache, progress, recipes, programs, OURS, name)
}

/// Builds the images with these short names into one archive. `name` returns the full name of each image.
pub fn build(
    cache: &Cache,
    progress: &Progress,
    recipes: &Path,
    programs: &OurPrograms,
    shorts: &[&str],
    name: fn(&str) -> String,
) -> Result<Images> {
    let OurPrograms { init, keelson } = programs;
    let programs = BTreeMap::from([("init", init.as_path()), ("keelson", keelson.as_path())]);
    let workshop = Workshop {
        cache,
        progress,
        recipes,
    };
    let images = shorts
        .iter()
        .map(|short| workshop.image(short, &name(short), &programs))
        .collect::<Result<Vec<_>>>()?;
    Ok(Images {
        all: workshop.archive(&images)?,
    })
}

/// The bill of materials of one of our images. `crates` contains the crates of each of our programs.
pub fn bill_of_materials(
    recipes: &Path,
    short: &str,
    digest: &str,
    crates: &BTreeMap<&str, Vec<bill::Crate>>,
) -> Result<serde_json::Value> {
    let stage = Stage::read(&recipes.join(short).join("Containerfile"))?;
    let mut packages = Vec::new();
    let mut linked = Vec::new();
    for copy in &stage.copies {
        if copy.from == "tree" {
            packages.extend(Lock::read(recipes, short)?.packages);
        } else if let Some(crates) = crates.get(copy.from.as_str()) {
            linked.extend(crates.iter().cloned());
        } else {
            bail!(
                "image {short} contains the program {}, whose crates are unknown",
                copy.from
            );
        }
    }
    linked.sort();
    linked.dedup();
    Ok(bill::of_image(&name(short), digest, &packages, &linked))
}

/// The root file system of the testbed nodes.
pub fn node_root(cache: &Cache, progress: &Progress, recipes: &Path) -> Result<PathBuf> {
    Workshop {
        cache,
        progress,
        recipes,
    }
    .tree("node")
}

/// A root file system with all daemons of a Slurm version (`26.05`, `24.11`) and a database server.
pub fn slurm_root(cache: &Cache, progress: &Progress, recipes: &Path, version: &str) -> Result<PathBuf> {
    Workshop {
        cache,
        progress,
        recipes,
    }
    .tree(&format!("slurm-{version}"))
}

/// The root file system of one of our images, without our programs.
pub fn root(cache: &Cache, progress: &Progress, recipes: &Path, short: &str) -> Result<PathBuf> {
    Workshop {
        cache,
        progress,
        recipes,
    }
    .tree(short)
}

/// Updates all locks to the latest packages.
pub fn update_locks(cache: &Cache, progress: &Progress, recipes: &Path) -> Result<()> {
    Workshop {
        cache,
        progress,
        recipes,
    }
    .update_locks()
}

/// The shared state of the build steps.
#[derive(Debug, Clone, Copy)]
struct Workshop<'a> {
    cache: &'a Cache,
    progress: &'a Progress,
    recipes: &'a Path,
}

impl Workshop<'_> {
    /// The root file system with the packages of an image, without our programs.
    fn tree(&self, name: &str) -> Result<PathBuf> {
        let entry = self.cache.get_or_build("trees", &self.tree_key(name)?, |place| {
            let lock = Lock::read(self.recipes, name)?;
            self.progress.step(
                &format!("root file system {name} (once, about half a minute)"),
                |step| {
                    let log = self.log(name);
                    let store = self.cache.root().join("packages");
                    step.note("fetching packages");
                    apt::fetch(&lock, &store, &log)?;
                    step.note("installing packages");
                    let mut make = Command::new("sh");
                    make.arg(self.recipes.join("tree.sh"))
                        .arg(name)
                        .arg(&store)
                        .arg(place.join("root"));
                    command::run(&mut make, &log)
                },
            )
        })?;
        Ok(entry.join("root"))
    }

    /// Writes images into one archive.
    fn archive(&self, images: &[oci::Image]) -> Result<Vec<Image>> {
        let key = images.iter().fold(Key::new(RECIPE), |key, image| {
            key.text(&image.name).text(&image.digest)
        });
        let entry = self.cache.get_or_build("archives", &key.finish(), |place| {
            let title = format!(
                "archive of {} images ({} layers)",
                images.len(),
                oci::distinct_layers(images)
            );
            self.progress
                .step(&title, |_| oci::write_archive(images, &place.join("images.tar")))
        })?;
        // Keeping an archive for every tested version of the operator would fill the disk.
        self.cache.keep_newest("archives", ARCHIVES_KEPT)?;
        let archive = entry.join("images.tar");
        let described = |image: &oci::Image| Image {
            name: image.name.clone(),
            digest: image.digest.clone(),
            archive: archive.clone(),
        };
        Ok(images.iter().map(described).collect())
    }

    /// Updates all locks to the latest packages.
    fn update_locks(&self) -> Result<()> {
        let mut releases: BTreeMap<(String, Option<String>), apt::Release> = BTreeMap::new();
        let mut names: Vec<String> = Vec::new();
        for entry in fs::read_dir(self.recipes)
            .with_context(|| format!("failed to read {}", self.recipes.display()))?
        {
            let entry = entry?;
            if entry.path().join("packages").exists() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        for name in names {
            let wanted = Wanted::read(self.recipes, &name)?;
            self.progress.step(&format!("latest packages for {name}"), |_| {
                let which = (wanted.suite.clone(), wanted.also.clone());
                if !releases.contains_key(&which) {
                    let release =
                        apt::Release::open(&wanted.suite, wanted.also.as_deref(), &self.log("lock"))?;
                    releases.insert(which.clone(), release);
                }
                let release = releases
                    .get(&which)
                    .context("a release that was just opened is missing")?;
                let path = self.recipes.join(&name).join("lock");
                fs::write(&path, release.resolve(&wanted)?.text())
                    .with_context(|| format!("failed to write {}", path.display()))
            })?;
        }
        Ok(())
    }

    fn image(&self, short: &str, name: &str, programs: &BTreeMap<&str, &Path>) -> Result<oci::Image> {
        let stage = Stage::read(&self.recipes.join(short).join("Containerfile"))?;
        self.assemble(short, name, &stage, programs)
    }

    fn assemble(
        &self,
        short: &str,
        name: &str,
        stage: &Stage,
        programs: &BTreeMap<&str, &Path>,
    ) -> Result<oci::Image> {
        let mut layers = Vec::new();
        let mut ours = Vec::new();
        for copy in &stage.copies {
            if copy.from == "tree" {
                layers.extend(self.tree_layers(short)?);
            } else {
                let Some(program) = programs.get(copy.from.as_str()) else {
                    bail!(
                        "image {short} requires the program {}, which was not built",
                        copy.from
                    );
                };
                ours.push((copy.target.as_str(), *program));
            }
        }
        if !ours.is_empty() {
            layers.push(self.program_layer(&ours)?);
        }
        oci::Image::assemble(name, stage, layers)
    }

    /// The layers of a tree: those of the tree that it includes, and its own layer.
    fn tree_layers(&self, name: &str) -> Result<Vec<Blob>> {
        let parent = Wanted::read(self.recipes, name)?.parent;
        let mut layers = Vec::new();
        let mut key = Key::new(RECIPE).text(&self.tree_key(name)?);
        if let Some(parent) = &parent {
            layers = self.tree_layers(parent)?;
            key = key.text(&self.tree_key(parent)?);
        }
        layers.push(self.layer(&key.finish(), |output| {
            let below = parent.as_deref().map(|parent| self.tree(parent)).transpose()?;
            layer::write_difference(below.as_deref(), &self.tree(name)?, output)
        })?);
        Ok(layers)
    }

    fn program_layer(&self, programs: &[(&str, &Path)]) -> Result<Blob> {
        let mut key = Key::new(RECIPE);
        for (target, program) in programs {
            key = key.text(target).file(program)?;
        }
        self.layer(&key.finish(), |output| layer::write_programs(programs, output))
    }

    fn layer(&self, key: &str, write: impl FnOnce(&Path) -> Result<()>) -> Result<Blob> {
        let entry = self.cache.get_or_build("layers", key, |place| {
            let file = place.join("layer.tar");
            write(&file)?;
            Ok(fs::write(place.join("sha256"), sha256(&file)?)?)
        })?;
        let sha256 = fs::read_to_string(entry.join("sha256")).context("a cached layer has no hash")?;
        Ok(Blob {
            file: entry.join("layer.tar"),
            sha256,
        })
    }

    /// The hash of all inputs of a tree.
    fn tree_key(&self, name: &str) -> Result<String> {
        let mut key = Key::new(RECIPE).text(name).file(&self.recipes.join("tree.sh"))?;
        let mut files = vec![self.recipes.join(name).join("lock")];
        let mut next = Some(name.to_owned());
        while let Some(name) = next {
            let directory = self.recipes.join(&name);
            files.extend(
                [directory.join("settle.sh")]
                    .into_iter()
                    .filter(|file| file.exists()),
            );
            files.extend(files_below(&directory.join("files"))?);
            next = Wanted::read(self.recipes, &name)?.parent;
        }
        for file in files {
            let path = file
                .strip_prefix(self.recipes)
                .unwrap_or(&file)
                .to_string_lossy()
                .into_owned();
            key = key.text(&path).file(&file)?;
        }
        Ok(key.finish())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.cache.root().join("logs").join(format!("image-{name}.log"))
    }
}
