//! The checkout: its location, and the programs and images built from it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use testbed::cache::{Cache, Key, files_below};
use testbed::command;
use testbed::image::bill::Crate;
use testbed::image::{self, Images, OurPrograms};
use testbed::progress::Progress;

/// The root of the checkout.
pub fn root() -> Result<PathBuf> {
    // Set by cargo if it runs this program; the compiled-in path is used if the program is started directly.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest
        .ancestors()
        .nth(2)
        .map(Path::to_owned)
        .context("this program is not two levels below the root of the checkout")
}

/// The file of this program. Building the tests of the workspace may link it again while it runs. The kernel then marks the
/// running file as deleted, and the new file at its path is used instead.
pub fn program() -> Result<PathBuf> {
    let file = std::env::current_exe().context("failed to find the file of this program")?;
    let text = file.to_string_lossy();
    Ok(match text.strip_suffix(" (deleted)") {
        Some(place) => PathBuf::from(place),
        None => file,
    })
}

/// `cargo` in the checkout.
pub fn cargo() -> Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()?);
    Ok(command)
}

/// How the programs for images are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// Release builds.
    Release,
    /// The operator as a debug build, which takes seconds instead of minutes after a change.
    Quick,
}

/// Enough for two programs in a few versions of the project.
const PROGRAMS_KEPT: usize = 8;

/// Builds the programs for the images, then the images.
pub fn build_images(cache: &Cache, progress: &Progress, build: Build) -> Result<Images> {
    let programs = build_programs(cache, progress, build)?;
    image::build_all(cache, progress, &root()?.join("images"), &programs)
}

/// The operator program built by [`build_images`].
pub fn keelson(build: Build) -> Result<PathBuf> {
    match build {
        Build::Release => Ok(root()?.join("target/images/keelson.bin")),
        // Cargo puts programs next to this one.
        Build::Quick => Ok(program()?.with_file_name("keelson")),
    }
}

fn build_programs(cache: &Cache, progress: &Progress, how: Build) -> Result<OurPrograms> {
    let directory = root()?.join("target/images");
    std::fs::create_dir_all(&directory)?;
    let sources = sources()?;
    let build = |name: &str, title: &str| -> Result<PathBuf> {
        let title = format!("building {title}");
        let key = Key::new("program-1").text(name).text(&sources).finish();
        let built = cache.get_or_build("programs", &key, |place| {
            build_program(cache, progress, &root()?, name, &title, &place.join(name))
        })?;
        cache.keep_newest("programs", PROGRAMS_KEPT)?;
        let program = directory.join(format!("{name}.bin"));
        // Rename the file into place: another run may be executing the old one, which cannot be overwritten.
        let fresh = directory.join(format!("{name}.{}", std::process::id()));
        std::fs::copy(built.join(name), &fresh)
            .and_then(|_| std::fs::rename(&fresh, &program))
            .with_context(|| format!("failed to write {}", program.display()))?;
        Ok(program)
    };
    let init = build("init", "init, the init process of the Slurm images")?;
    let program = match how {
        Build::Release => build("keelson", "keelson, the operator (a few minutes the first time)")?,
        Build::Quick => progress.step("building keelson, the operator (without optimizations)", |_| {
            command::run(
                cargo()?.args(["build", "--package", "keelson"]),
                &cache.root().join("logs/cargo.log"),
            )?;
            keelson(how)
        })?,
    };
    Ok(OurPrograms {
        init,
        keelson: program,
    })
}

/// The hash of all sources of our programs. If another checkout has compiled the same sources, nothing needs to be
/// built.
fn sources() -> Result<String> {
    let root = root()?;
    let mut files: Vec<PathBuf> = [
        "Cargo.toml",
        "Cargo.lock",
        "rust-toolchain.toml",
        ".cargo/config.toml",
        "images/build-program.sh",
    ]
    .iter()
    .map(|name| root.join(name))
    .collect();
    for file in files_below(&root.join("crates"))? {
        let path = file.strip_prefix(root.join("crates")).unwrap_or(&file);
        let mut parts = path.iter();
        let (crate_name, below) = (parts.next(), parts.next());
        // No program in an image links these crates.
        let ours_alone = crate_name.is_some_and(|name| name == "xtask" || name == "testbed");
        if !ours_alone && below.is_some_and(|part| part == "src" || part == "Cargo.toml") {
            files.push(file);
        }
    }
    let mut key = Key::new("sources");
    for file in files {
        let path = file.strip_prefix(&root).unwrap_or(&file).to_string_lossy();
        key = key.text(&path).file(&file)?;
    }
    Ok(key.finish())
}

/// Builds one of the programs for images from a checkout.
pub fn build_program(
    cache: &Cache,
    progress: &Progress,
    checkout: &Path,
    name: &str,
    title: &str,
    program: &Path,
) -> Result<()> {
    progress.step(title, |_| {
        let mut build = Command::new("sh");
        build
            .current_dir(checkout)
            .arg(root()?.join("images/build-program.sh"))
            .arg(name)
            .arg(program);
        // Make the result independent of whether it is built by `cargo run` or by hand.
        build
            .env_remove("CARGO")
            .env_remove("RUSTFLAGS")
            .env("KEELSON_CACHE", cache.root());
        command::run(&mut build, &cache.root().join("logs/cargo.log"))
    })
}

/// `cargo xtask images`.
pub fn images(update_lock: bool, verbose: bool) -> Result<()> {
    let progress = Progress::new(verbose);
    let cache = Cache::open()?;
    testbed::host::ensure_packages(&progress, &cache.root().join("logs/apt.log"), image::PACKAGES)?;
    if update_lock {
        image::update_locks(&cache, &progress, &root()?.join("images"))?;
    }
    let images = build_images(&cache, &progress, Build::Release)?;
    let bills = root()?.join("target/images/bills");
    std::fs::create_dir_all(&bills)?;
    let crates = BTreeMap::from([
        ("init", linked_crates("keelson-init")?),
        ("keelson", linked_crates("keelson")?),
    ]);
    for (image, short) in images.all.iter().zip(image::OURS) {
        let bill = image::bill_of_materials(&root()?.join("images"), short, &image.digest, &crates)?;
        let file = bills.join(format!("{short}.cdx.json"));
        std::fs::write(&file, serde_json::to_vec_pretty(&bill)?)?;
        println!("{} {} {}", image.name, image.digest, file.display());
    }
    for archive in images.archives() {
        println!("{}", archive.display());
    }
    Ok(())
}

/// The crates that one of our programs links.
fn linked_crates(package: &str) -> Result<Vec<Crate>> {
    let tree = command::output(cargo()?.args([
        "tree",
        "--locked",
        "--package",
        package,
        "--edges=normal",
        "--prefix=none",
        "--format={p}",
    ]))?;
    let lock = std::fs::read_to_string(root()?.join("Cargo.lock"))?;
    Ok(image::bill::crates(&tree, &lock))
}

/// `cargo xtask crds`.
pub fn write_crds() -> Result<()> {
    // The test that checks the files for drift also writes them.
    command::run(
        cargo()?
            .args(["test", "--package", "keelson-api", "--quiet"])
            .env("KEELSON_BLESS", "1"),
        &root()?.join("target/crds.log"),
    )
}
