//! Images built for real, from Debian's packages: root and the mirror are needed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use testbed::cache::{Cache, Key, files_below};
use testbed::image::{self, Images, OurPrograms};
use testbed::progress::Progress;

fn recipes() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images")).unwrap()
}

fn build(cache: &Cache, shorts: &[&str]) -> Images {
    // Any fixed file will do: this is about the trees.
    let program = recipes().join("tree.sh");
    let programs = OurPrograms {
        init: program.clone(),
        keelson: program,
    };
    image::build(
        cache,
        &Progress::new(true),
        &recipes(),
        &programs,
        shorts,
        image::name,
    )
    .unwrap()
}

/// Small files of an archive by name, and the sizes of all.
fn contents(archive: &Path) -> (BTreeMap<String, Vec<u8>>, BTreeMap<String, u64>) {
    let mut small = BTreeMap::new();
    let mut sizes = BTreeMap::new();
    for entry in tar::Archive::new(File::open(archive).unwrap()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        sizes.insert(name.clone(), entry.size());
        if entry.size() < 1 << 16 {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            small.insert(name, content);
        }
    }
    (small, sizes)
}

/// All that the images are made by: the recipes, the code that follows them, and the crates below it.
fn inputs() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let code = here.join("src/image");
    let mut key = Key::new("reproduced-1")
        .file(&here.join("../../Cargo.lock"))
        .unwrap();
    for folder in [recipes(), code] {
        for file in files_below(&folder).unwrap() {
            let name = file.strip_prefix(&folder).unwrap().to_string_lossy();
            key = key.text(&name).file(&file).unwrap();
        }
    }
    key.finish()
}

/// Minutes of work, so it is done once on a machine for the same inputs.
#[test]
fn the_same_lock_gives_the_same_digests_in_another_place_at_another_time() {
    let shared = Cache::open().unwrap();
    let shown = |place: &Path| {
        let digests = build_twice(&shared);
        fs::write(place.join("digests"), digests.join("\n"))?;
        Ok(())
    };
    shared.get_or_build("reproduced", &inputs(), shown).unwrap();
}

fn build_twice(shared: &Cache) -> Vec<String> {
    let first = build(shared, &["slurmctld", "slurm-operator"]);
    // Nothing but the fetched packages is taken over.
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(shared.root().join("packages"), elsewhere.path().join("packages")).unwrap();
    let second = build(
        &Cache::at(elsewhere.path()).unwrap(),
        &["slurmctld", "slurm-operator"],
    );
    let digests = |images: &Images| {
        images
            .all
            .iter()
            .map(|image| image.digest.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(digests(&first), digests(&second));
    let archive = |images: &Images| image::sha256(&images.all.first().unwrap().archive).unwrap();
    assert_eq!(
        archive(&first),
        archive(&second),
        "the archives differ, though the images in them do not"
    );
    digests(&first)
}

#[test]
fn slurm_images_share_their_lower_layers() {
    let images = build(&Cache::open().unwrap(), &["slurmctld", "slurmrestd"]);
    let (small, sizes) = contents(&images.archives()[0]);
    let layers = |digest: &str| -> Vec<String> {
        let manifest = &small[&format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"))];
        let manifest: serde_json::Value = serde_json::from_slice(manifest).unwrap();
        let layers = manifest["layers"].as_array().unwrap().clone();
        layers
            .iter()
            .map(|layer| layer["digest"].as_str().unwrap().to_owned())
            .collect()
    };
    let (slurmctld, slurmrestd) = (layers(&images.all[0].digest), layers(&images.all[1].digest));
    assert_eq!(slurmctld.len(), 4, "base, slurm, the daemon, ours: {slurmctld:?}");
    assert_eq!(slurmctld[..2], slurmrestd[..2]);
    let size = |digest: &String| sizes[&format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"))];
    assert!(
        size(&slurmctld[2]) < size(&slurmctld[0]) / 10,
        "the daemon's own layer holds more than the daemon"
    );
}

#[test]
fn a_slurm_tree_has_the_slurm_user_and_no_identity_of_a_machine() {
    let root = image::slurm_root(
        &Cache::open().unwrap(),
        &Progress::new(true),
        &recipes(),
        image::SLURM,
    )
    .unwrap();
    let passwd = fs::read_to_string(root.join("etc/passwd")).unwrap();
    assert!(
        passwd
            .lines()
            .any(|line| line.starts_with("slurm:") && line.contains(":401:401:")),
        "{passwd}"
    );
    for absent in [
        "etc/machine-id",
        "etc/hostname",
        "etc/resolv.conf",
        "etc/slurm/plugstack.conf",
        "etc/apt",
        "var/lib/apt",
        "etc/munge/munge.key",
    ] {
        assert!(!root.join(absent).exists(), "{absent} is in the tree");
    }
    for program in ["slurmctld", "slurmd", "slurmdbd", "slurmrestd", "mariadbd"] {
        assert!(
            root.join("usr/sbin").join(program).symlink_metadata().is_ok(),
            "{program} is missing"
        );
    }
    let shadow = fs::read_to_string(root.join("etc/shadow")).unwrap();
    for line in shadow.lines() {
        let password = line.split(':').nth(1).unwrap();
        assert!(
            password.starts_with(['*', '!']),
            "an account that can log in with a password: {line}"
        );
    }
}
