//! The book's page about what reads each field of the API is made here, by a search of the operator's code, and a field that
//! nothing reads fails the test. `KEELSON_BLESS=1` rewrites the page.
//!
//! The search goes by names: a field is read where code accesses or binds its name near a name of the field that it lies
//! in. Types and admission do not count.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the helpers of a test may fail it"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

const HEAD: &str = "\
# What reads each field

<!-- KEELSON_BLESS=1 cargo test -p keelson-operator --test field_readers -->

For each field of the six kinds' `spec`, the code that acts on it; paths are below `crates/`. Made by a search of the code for
the fields' names. What status fields say is in [Conditions](conditions.md).
";

/// Names under which the code knows the field, beside its own.
const ALSO_CALLED: &[(&str, &[&str])] = &[
    (
        "persistentVolumeClaimRetentionPolicy",
        &["claim_retention", "ClaimRetentionPolicy"],
    ),
    ("scheduledUpdate", &["ScheduledUpdate", "reservation"]),
    ("serviceMonitor", &["Wanted"]),
    ("storageConfig", &["storage"]),
    ("type", &["kind"]),
    ("updateStrategy", &["strategy"]),
];

/// Objects that one piece of code takes as a whole, wherever they stand.
const TAKEN_WHOLE: &[(&str, &str)] = &[
    ("persistence", "operator/src/controller/build.rs"),
    ("service", "operator/src/children/service.rs"),
    ("strategy", "operator/src/loginset/build.rs"),
    ("template", "operator/src/children/pod.rs"),
];

/// References to a key: one function reads them all.
const KEY: [&str; 3] = ["key", "name", "optional"];
const KEY_READER: &str = "operator/src/secrets.rs";
const OPTIONAL: &str = "admission warns: taken as false";

/// What nothing reads, and why it is there all the same. This list must not grow.
const UNREAD: &[(&str, &str, &str)] = &[];

struct Field {
    path: Vec<String>,
    schema: Value,
}

#[test]
fn every_field_is_read_by_something() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let code = code(&root);
    let mut page = HEAD.to_owned();
    let mut unread = Vec::new();
    for crd in keelson_api::crds().unwrap() {
        let kind = &crd.spec.names.kind;
        let version = serde_json::to_value(crd.spec.versions.first().unwrap()).unwrap();
        let mut fields = Vec::new();
        collect(
            &[],
            &version["schema"]["openAPIV3Schema"]["properties"]["spec"],
            &mut fields,
        );
        let _ = write!(page, "\n## {kind}\n\n| field | read by |\n|---|---|\n");
        for field in &fields {
            let path = field.path.join(".");
            let excused = UNREAD.iter().find(|(of, which, _)| {
                of == kind && (path == *which || path.starts_with(&format!("{which}.")))
            });
            let readers = readers(kind, field, &fields, &code);
            let text = match (excused, readers.is_empty()) {
                (Some((_, _, why)), true) => format!("({why})"),
                (Some(_), false) if excused.is_some_and(|(_, which, _)| path == *which) => {
                    panic!(
                        "{kind} {path} is read now, by {}: take it off the list",
                        readers.join(", ")
                    )
                }
                (_, false) => readers.join(", "),
                (None, true) => {
                    unread.push(format!("{kind} spec.{path}"));
                    continue;
                }
            };
            let _ = writeln!(page, "| `spec.{path}` | {text} |");
        }
    }
    assert!(
        unread.is_empty(),
        "nothing reads these fields; build, refuse or remove them:\n{}",
        unread.join("\n")
    );
    let place = root.join("docs/src/reference/readers-fields.md");
    if std::env::var_os("KEELSON_BLESS").is_some() {
        fs::write(&place, &page).unwrap();
    }
    let stored = fs::read_to_string(&place).unwrap_or_default();
    assert!(
        stored == page,
        "{} is out of date: run the test with KEELSON_BLESS=1",
        place.display()
    );
}

fn collect(above: &[String], schema: &Value, fields: &mut Vec<Field>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path: Vec<String> = above.iter().cloned().chain([name.clone()]).collect();
        fields.push(Field {
            path: path.clone(),
            schema: property.clone(),
        });
        collect(&path, property, fields);
        collect(&path, &property["items"], fields);
    }
}

fn readers(kind: &str, field: &Field, all: &[Field], code: &BTreeMap<String, String>) -> Vec<String> {
    let (name, above) = field.path.split_last().unwrap();
    let parent = above.last();
    let of = |path: &[String]| all.iter().find(|known| known.path == path);
    let whole = TAKEN_WHOLE
        .iter()
        .find(|(of, _)| above.first().is_some_and(|first| first == of));
    if let Some((_, reader)) = whole {
        assert!(code.contains_key(*reader), "there is no {reader}");
        return vec![(*reader).to_owned()];
    }
    let is_key = of(above).is_some_and(|parent| {
        let names = parent.schema["properties"].as_object();
        names.is_some_and(|names| names.keys().eq(KEY))
    });
    if is_key {
        let reader = if name == "optional" { OPTIONAL } else { KEY_READER };
        return vec![reader.to_owned()];
    }
    let mut around: Vec<String> = parent.into_iter().flat_map(|parent| called(parent)).collect();
    if above.is_empty() {
        around = vec![kind.to_owned(), kind.to_lowercase()];
    }
    let names = called(name);
    let home = format!("operator/src/{}/", kind.to_lowercase());
    let found: Vec<&String> = code
        .iter()
        .filter(|(file, text)| {
            let near = if above.is_empty() { text.len() } else { 600 };
            // A kind's own folder needs no word of the kind.
            let at_home = above.is_empty() && file.starts_with(&home);
            names.iter().any(|name| {
                let mut found = reads(text, name).into_iter();
                found.any(|at| at_home || around.iter().any(|word| within(text, at, near, word)))
            })
        })
        .map(|(file, _)| file)
        .collect();
    // Names repeat: what other kinds' folders have of that name is theirs, where the kind's own has it too.
    let own = |file: &&&String| file.starts_with(&home) || file.starts_with("api/");
    let nearest: Vec<&&String> = found.iter().filter(own).collect();
    let nearest = if nearest.is_empty() {
        found.iter().collect()
    } else {
        nearest
    };
    nearest.into_iter().map(|file| (*file).clone()).collect()
}

/// A field in the code: its name there, its name in JSON, and what else it is called.
fn called(name: &str) -> Vec<String> {
    let also = ALSO_CALLED.iter().find(|(known, _)| *known == name);
    let also = also.map(|(_, also)| *also).unwrap_or_default();
    let own = [snake(name), format!("\"{name}\""), format!("/{name}")];
    own.into_iter()
        .chain(also.iter().map(ToString::to_string))
        .collect()
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() && !snake.ends_with('_') {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Where the name stands as a word.
fn words(text: &str, name: &str) -> Vec<usize> {
    text.match_indices(name)
        .map(|(at, _)| at)
        .filter(|at| {
            let before = text[..*at].chars().next_back();
            let after = text[at + name.len()..].chars().next();
            let begins = !name.starts_with(is_word) || !before.is_some_and(is_word);
            begins && (!name.ends_with(is_word) || !after.is_some_and(is_word))
        })
        .collect()
}

/// Where a field of this name is read: accessed, bound by a pattern, or found in JSON.
fn reads(text: &str, name: &str) -> Vec<usize> {
    if name.starts_with(['"', '/']) || name.starts_with(|first: char| first.is_ascii_uppercase()) {
        return words(text, name);
    }
    let found = words(text, name).into_iter().filter(|at| {
        let before = text[..*at].trim_end();
        let after = &text[at + name.len()..];
        let accessed = before.ends_with('.') && !after.trim_start().starts_with('(');
        let in_list = before.ends_with(['{', ',']);
        let bound = in_list && (after.starts_with([',', '\n']) || after.trim_start().starts_with('}'));
        let renamed = in_list && after.starts_with(": ") && !after.starts_with(": _");
        accessed || bound || renamed
    });
    found.collect()
}

fn within(text: &str, at: usize, near: usize, word: &str) -> bool {
    words(text, word)
        .into_iter()
        .any(|other| other.abs_diff(at) <= near)
}

/// The code that acts on fields, by file, without tests and comments.
fn code(root: &Path) -> BTreeMap<String, String> {
    let mut files = Vec::new();
    for folder in ["crates/operator/src", "crates/api/src"] {
        sources(&root.join(folder), &mut files);
    }
    files
        .into_iter()
        .filter_map(|path| {
            let file = path
                .strip_prefix(root.join("crates"))
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            let lines: Vec<&str> = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .collect();
            // Of crate api, only what works on the types: names, merges, effective values.
            let acts = file.starts_with("operator/")
                || [
                    "api/src/assemble.rs",
                    "api/src/defaults.rs",
                    "api/src/merge.rs",
                    "api/src/names.rs",
                ]
                .contains(&file.as_str());
            // The engine's models and properties are tests, too.
            let tested = [
                "tests",
                "plan/model",
                "plan/promises",
                "plan/properties",
                "plan/exhaustive",
            ];
            (acts && !tested.iter().any(|part| file.contains(part))).then(|| (file, lines.join("\n")))
        })
        .collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}
