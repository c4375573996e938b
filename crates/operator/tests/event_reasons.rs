//! Checks that every event reason is emitted somewhere and is in the reference.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the names and values of the constants in `well_known::event`.
fn reasons(root: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(root.join("crates/api/src/well_known.rs")).unwrap();
    let (_, module) = text.split_once("pub mod event {").unwrap();
    let (module, _) = module.split_once("\n}").unwrap();
    module
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub const ")?.split_once(": &str = "))
        .map(|(name, value)| (name.to_owned(), value.trim_matches([';', '"']).to_owned()))
        .collect()
}

#[test]
fn every_reason_is_emitted_and_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let code: String = sources(&root.join("crates/operator/src"))
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .map(|text| text.split("#[cfg(test)]").next().unwrap_or_default().to_owned())
        .collect();
    let page = fs::read_to_string(root.join("docs/src/reference/events.md")).unwrap();
    let (emitted, dropped) = page.split_once("## Slinky events that are not emitted").unwrap();
    let dropped: String = dropped
        .lines()
        .filter_map(|line| line.split('|').nth(1))
        .collect();
    let reasons = reasons(&root);
    assert!(reasons.len() > 10, "{reasons:?}");
    for (name, value) in reasons {
        assert!(
            code.contains(&format!("event::{name}")),
            "{name} is emitted nowhere: emit it, or remove it"
        );
        assert!(
            emitted.contains(&format!("`{value}`")),
            "{value} is not in events.md"
        );
        assert!(
            !dropped.contains(&format!("`{value}`")),
            "events.md says that {value} is not emitted"
        );
    }
}
