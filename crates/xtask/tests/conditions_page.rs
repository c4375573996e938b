//! The book's page of conditions has every condition and every reason, each where it can be met.

#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Constants of a module of `well_known`: name and value.
fn constants(module: &str) -> BTreeMap<String, String> {
    let text = read("crates/api/src/well_known.rs");
    let body = text.split_once(&format!("pub mod {module} {{")).unwrap().1;
    body.split_once("\n}")
        .unwrap()
        .0
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub const ")?.split_once(": &str = \""))
        .map(|(name, value)| (name.to_owned(), value.trim_end_matches("\";").to_owned()))
        .collect()
}

/// The page's sections by heading, and the words in the first column of their tables.
fn sections() -> BTreeMap<String, BTreeSet<String>> {
    let mut sections: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut heading = String::new();
    for line in read("docs/src/reference/conditions.md").lines() {
        if let Some(text) = line.strip_prefix("## ") {
            text.clone_into(&mut heading);
        }
        let word = line.strip_prefix("| `").and_then(|rest| rest.split_once('`'));
        if let Some((word, _)) = word {
            sections
                .entry(heading.clone())
                .or_default()
                .insert(word.to_owned());
        }
    }
    sections
}

fn sources(directory: &Path, found: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push_str(text.split("#[cfg(test)]").next().unwrap());
        }
    }
}

#[test]
fn every_reason_is_explained_and_nothing_else() {
    let mut explained: BTreeSet<String> = sections().into_values().flatten().collect();
    // The first table is that of the conditions.
    let types: BTreeSet<String> = constants("condition").into_values().collect();
    let missing: Vec<_> = types.difference(&explained).collect();
    assert!(missing.is_empty(), "conditions.md has no line for {missing:?}");
    explained.retain(|word| !types.contains(word));
    let reasons: BTreeSet<String> = constants("reason").into_values().collect();
    assert_eq!(
        explained, reasons,
        "left: docs/src/reference/conditions.md, right: well_known::reason"
    );
}

#[test]
fn each_kind_has_the_reasons_that_its_controller_gives() {
    let reasons = constants("reason");
    let sections = sections();
    for (kind, folder) in [
        ("Accounting", "accounting"),
        ("Controller", "controller"),
        ("LoginSet", "loginset"),
        ("NodeSet", "nodeset"),
        ("RestApi", "restapi"),
        ("Token", "token"),
    ] {
        let mut text = String::new();
        sources(&root().join("crates/operator/src").join(folder), &mut text);
        let every_kind = &sections["Every kind"];
        for (name, value) in &reasons {
            let given =
                text.contains(&format!("reason::{name},")) || text.contains(&format!("reason::{name}\n"));
            let explained = sections[kind].contains(value) || every_kind.contains(value);
            assert!(
                !given || explained,
                "{kind} gives the reason {value}, and conditions.md does not say so"
            );
        }
    }
}
