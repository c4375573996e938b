//! Renders charts with the real helm and compares the objects with tables of expectations.
//!
//! The tables are `charts/tests/*.yaml`; the README in that directory describes their format. `KEELSON_TEST_HELM` is a
//! colon-separated list of the helm programs to use; the default is `helm` on the `PATH`.

pub mod lookup;
pub mod network_policy;
pub mod readers;
pub mod schema;
pub mod slinky;
pub mod values;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

/// The Kubernetes version to render for. A helm that is built from source assumes a version that is years old.
const KUBERNETES: &str = "1.37.1";

/// A table of test cases for one chart.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    chart: String,
    release: Option<String>,
    namespace: Option<String>,
    cases: Vec<Case>,
}

/// One render and its expected result.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    release: Option<String>,
    #[serde(default)]
    files: Vec<PathBuf>,
    #[serde(default)]
    values: Value,
    #[serde(default)]
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    #[serde(default)]
    absent: Vec<String>,
    fails: Option<String>,
}

/// Returns the root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the helm programs to test with.
pub fn helms() -> Vec<PathBuf> {
    let given = std::env::var_os("KEELSON_TEST_HELM").unwrap_or_else(|| "helm".into());
    std::env::split_paths(&given).collect()
}

impl Table {
    /// Reads a table.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_saphyr::from_str(&text).with_context(|| format!("{} is no table of cases", path.display()))
    }

    /// Runs every case and returns a line for each failure.
    pub fn run(&self, helm: &Path) -> Vec<String> {
        self.cases
            .iter()
            .filter_map(|case| {
                self.check(helm, case)
                    .err()
                    .map(|error| format!("{}: {error:#}", case.name))
            })
            .collect()
    }

    /// Renders every case that must not fail, in this namespace. Returns the name and the objects of each.
    pub fn renders(&self, helm: &Path, namespace: &str) -> Result<Vec<(&str, Vec<Value>)>> {
        self.cases
            .iter()
            .filter(|case| case.fails.is_none())
            .map(|case| {
                let rendered = self.helm(helm, case, namespace, &["template", self.release(case)])?;
                Ok((case.name.as_str(), documents(&rendered)?))
            })
            .collect()
    }

    fn release<'a>(&'a self, case: &'a Case) -> &'a str {
        case.release
            .as_ref()
            .or(self.release.as_ref())
            .unwrap_or(&self.chart)
    }

    fn helm(&self, helm: &Path, case: &Case, namespace: &str, verb: &[&str]) -> Result<String> {
        let values = values_file(&case.values)?;
        let mut command = Command::new(helm);
        command
            .current_dir(repository())
            .args(verb)
            .arg(Path::new("charts").join(&self.chart))
            .args(["--namespace", namespace, "--kube-version", KUBERNETES]);
        for file in &case.files {
            command.arg("--values").arg(file);
        }
        run(command.arg("--values").arg(values.path()))
    }

    fn check(&self, helm: &Path, case: &Case) -> Result<()> {
        let namespace = self.namespace.as_deref().unwrap_or("slurm");
        let helm = |verb: &[&str]| self.helm(helm, case, namespace, verb);
        let release = self.release(case);
        let rendered = helm(&["template", release]);
        if let Some(expected) = &case.fails {
            let Err(error) = rendered else {
                bail!("rendered, but should fail with {expected:?}")
            };
            let error = format!("{error:#}");
            ensure!(
                error.contains(expected),
                "fails with {error:?}, not with {expected:?}"
            );
            return Ok(());
        }
        let rendered = rendered?;
        ensure!(
            helm(&["template", release])? == rendered,
            "a second render differs"
        );
        helm(&["lint", "--strict", "--quiet"])?;
        compare(&objects(&rendered)?, case)
    }
}

/// Returns the objects that a chart renders with these values.
pub fn rendered(helm: &Path, chart: &str, values: &Value) -> Result<Vec<Value>> {
    let table = Table {
        chart: chart.to_owned(),
        release: None,
        namespace: None,
        cases: vec![Case {
            values: values.clone(),
            ..Case::default()
        }],
    };
    let mut renders = table.renders(helm, "slurm")?;
    Ok(renders.pop().context("nothing was rendered")?.1)
}

/// Returns the same objects, by `Kind/name`.
fn objects_of(helm: &Path, chart: &str, values: &Value) -> Result<BTreeMap<String, Value>> {
    by_name(rendered(helm, chart, values)?)
}

fn values_file(values: &Value) -> Result<tempfile::NamedTempFile> {
    let mut file = tempfile::Builder::new().suffix(".json").tempfile()?;
    file.write_all(
        if values.is_null() {
            "{}".to_owned()
        } else {
            values.to_string()
        }
        .as_bytes(),
    )?;
    Ok(file)
}

fn run(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn documents(rendered: &str) -> Result<Vec<Value>> {
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(rendered).context("the render is no YAML")?;
    documents.retain(|document| !document.is_null());
    Ok(documents)
}

/// Returns the objects of a render, by `Kind/name` and by `Kind/namespace/name`.
fn objects(rendered: &str) -> Result<BTreeMap<String, Value>> {
    by_name(documents(rendered)?)
}

fn by_name(documents: Vec<Value>) -> Result<BTreeMap<String, Value>> {
    let mut found = BTreeMap::new();
    for object in documents {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (kind, namespace, name) = (text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
        ensure!(
            !kind.is_empty() && !name.is_empty(),
            "an object without kind or name: {object}"
        );
        let twin = found.insert(format!("{kind}/{namespace}/{name}"), object.clone());
        ensure!(twin.is_none(), "{kind} {namespace}/{name} is rendered twice");
        found.insert(format!("{kind}/{name}"), object);
    }
    Ok(found)
}

fn compare(found: &BTreeMap<String, Value>, case: &Case) -> Result<()> {
    let mut wrong = Vec::new();
    for (id, expectations) in &case.objects {
        let Some(object) = found.get(id) else {
            wrong.push(format!("{id} is not rendered"));
            continue;
        };
        for (pointer, expected) in expectations {
            let actual = object.pointer(pointer).unwrap_or(&Value::Null);
            if !same(actual, expected) {
                wrong.push(format!("{id} {pointer} is {actual}, not {expected}"));
            }
        }
    }
    wrong.extend(
        case.absent
            .iter()
            .filter(|id| found.contains_key(*id))
            .map(|id| format!("{id} is rendered")),
    );
    ensure!(wrong.is_empty(), "\n    {}", wrong.join("\n    "));
    Ok(())
}

/// Compares values. 1 and 1.0 are equal.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(key, value)| right.get(key).is_some_and(|other| same(value, other)))
        }
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn case(text: &str) -> Case {
        serde_saphyr::from_str(text).expect("a case")
    }

    #[test]
    fn a_wrong_value_a_missing_object_and_a_present_one_are_all_told() {
        let found =
            objects("kind: A\nmetadata: {name: a}\nspec: {x: 1}\n---\nkind: B\nmetadata: {name: b}\n")
                .expect("objects");
        let case = case("{name: n, objects: {A/a: {/spec/x: 2, /spec/y: null}, C/c: {}}, absent: [B/b]}");
        let told = compare(&found, &case).expect_err("three faults").to_string();
        assert_eq!(
            told,
            "\n    A/a /spec/x is 1, not 2\n    C/c is not rendered\n    B/b is rendered"
        );
    }

    #[test]
    fn an_object_that_appears_twice_is_refused() {
        let twice = "kind: A\nmetadata: {name: a}\n---\nkind: A\nmetadata: {name: a}\n";
        assert!(objects(twice).is_err());
    }

    #[test]
    fn numbers_are_compared_by_value() {
        assert!(same(&json!({"a": [1]}), &json!({"a": [1.0]})));
        assert!(!same(&json!({"a": 1}), &json!({"a": 1, "b": 2})));
    }
}
