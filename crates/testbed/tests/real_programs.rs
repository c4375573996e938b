//! `images/build-program.sh`: checkouts share what they have compiled of others' code, never of their own.

#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A checkout whose program says one word.
fn checkout(place: &Path, word: &str) -> PathBuf {
    let root = place.join(word);
    fs::create_dir_all(root.join("src")).unwrap();
    fs::write(
        root.join("Cargo.toml"),
        "[package]\nname = \"keelson\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
    )
    .unwrap();
    fs::write(
        root.join("src/main.rs"),
        format!("fn main() {{ print!(\"{word}\") }}"),
    )
    .unwrap();
    let lock = "version = 4\n\n[[package]]\nname = \"keelson\"\nversion = \"0.1.0\"\n";
    fs::write(root.join("Cargo.lock"), lock).unwrap();
    root
}

#[test]
fn each_checkout_gets_its_own_program_from_a_shared_cache() {
    let place = tempfile::tempdir().unwrap();
    // Both are written before either is compiled: by the age of files, what the other compiled is up to date.
    let checkouts = ["one", "other"].map(|word| (word, checkout(place.path(), word)));
    for (word, root) in [&checkouts[0], &checkouts[1], &checkouts[0]] {
        let program = place.path().join("program");
        let built = Command::new("sh")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/build-program.sh"))
            .arg("keelson")
            .arg(&program)
            .current_dir(root)
            .env_remove("RUSTFLAGS")
            .env("KEELSON_CACHE", place.path())
            .output()
            .unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let said = Command::new(&program).output().unwrap().stdout;
        assert_eq!(String::from_utf8(said).unwrap(), *word);
    }
}
