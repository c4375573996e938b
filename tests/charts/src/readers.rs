//! Finds the template that reads each value and the object fields that the value sets, by changing one value at a time
//! and comparing the renders.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use crate::values::{Documented, documented};
use crate::{KUBERNETES, documents, repository, run, values_file};

/// The maximum number of object fields in a row.
const SHOWN: usize = 3;

/// A chart, and how to change its values.
#[derive(Debug)]
pub struct Chart<'a> {
    pub name: &'a str,
    /// Values of installations with different features enabled. A value counts as read if it has an effect in one of
    /// them.
    pub installations: &'a [Value],
    /// Replacement values by path suffix, for values whose schema rejects the generic replacements.
    pub changes: &'a [(&'a str, Value)],
    /// Values that appear in no object, and what reads them.
    pub elsewhere: &'a [(&'a str, &'a str)],
}

/// Objects, by template and `Kind/name`.
type Render = BTreeMap<(String, String), Value>;

/// Returns the page for one chart, and the values that nothing reads.
pub fn page(helm: &Path, chart: &Chart) -> Result<(String, Vec<String>)> {
    let name = chart.name;
    let text = std::fs::read_to_string(repository().join("charts").join(name).join("values.yaml"))?;
    let mut page = format!(
        "# What reads each value of the chart `{name}`\n\n\
         <!-- Made by rendering the chart: KEELSON_BLESS=1 cargo test -p chart-tests -->\n\n\
         Each value, the template that reads it, and what changes in the rendered objects. What reads the fields of the six kinds is in\n\
         [What reads each field](readers-fields.md).\n\n| value | template | changes |\n|---|---|---|\n"
    );
    let before: Vec<(&Value, Render)> = chart
        .installations
        .iter()
        .map(|values| Ok((values, render(helm, name, values)?)))
        .collect::<Result<_>>()?;
    let mut unread = Vec::new();
    for value in documented(&text)? {
        let path = value.path.join(".");
        let elsewhere = chart.elsewhere.iter().find(|(known, _)| *known == path);
        let found = match changed(helm, chart, &before, &value) {
            Ok(found) => found,
            Err(error) => {
                unread.push(format!("{error:#}"));
                continue;
            }
        };
        match (found, elsewhere) {
            (Some(found), None) => writeln!(page, "{}", row(&path, &found))?,
            (None, Some((_, reader))) => writeln!(page, "| `{path}` | {reader} | |")?,
            (Some(found), Some(_)) => {
                bail!("{path} is read now: take it off the list\n{}", row(&path, &found))
            }
            (None, None) => unread.push(path),
        }
    }
    for (path, _) in chart.elsewhere {
        ensure!(
            page.contains(&format!("| `{path}` |")),
            "there is no value {path}"
        );
    }
    Ok((page, unread))
}

/// Returns what the value changes, in the first installation in which it changes anything.
fn changed(
    helm: &Path,
    chart: &Chart,
    before: &[(&Value, Render)],
    value: &Documented,
) -> Result<Option<BTreeSet<(String, String)>>> {
    let path = value.path.join(".");
    let given: Vec<Value> = chart
        .changes
        .iter()
        .filter(|(end, _)| path == *end || path.ends_with(&format!(".{end}")))
        .map(|(_, change)| change.clone())
        .collect();
    let candidates = if given.is_empty() {
        candidates(value)
    } else {
        given
    };
    let mut last = None;
    let mut rendered = false;
    for (values, before) in before {
        for candidate in &candidates {
            match render(helm, chart.name, &with(values, &value.path, candidate)) {
                Ok(after) => {
                    rendered = true;
                    let found = differences(before, &after);
                    if !found.is_empty() {
                        return Ok(Some(found));
                    }
                }
                Err(error) => last = Some(error),
            }
        }
    }
    match last {
        Some(error) if !rendered => {
            Err(error).with_context(|| format!("no change of {path} is taken: name one in the test"))
        }
        _ => Ok(None),
    }
}

fn row(path: &str, found: &BTreeSet<(String, String)>) -> String {
    let templates: BTreeSet<&str> = found.iter().map(|(template, _)| template.as_str()).collect();
    let templates: Vec<&str> = templates.into_iter().collect();
    let changes: BTreeSet<&str> = found.iter().map(|(_, change)| change.as_str()).collect();
    let more = changes.len().saturating_sub(SHOWN);
    let mut shown: Vec<String> = changes
        .iter()
        .take(SHOWN)
        .map(|change| format!("`{change}`"))
        .collect();
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    format!("| `{path}` | {} | {} |", templates.join(", "), shown.join(", "))
}

/// Returns other values of the same type, the most likely to be accepted first.
fn candidates(value: &Documented) -> Vec<Value> {
    let some = || {
        vec![
            json!("changed"),
            json!(7),
            json!(true),
            json!({ "changed": "changed" }),
            json!({ "name": "changed" }),
            json!([{ "name": "changed" }]),
            json!(["changed"]),
        ]
    };
    match &value.default {
        Value::Bool(on) => vec![json!(!on), json!(on)],
        Value::Number(number) => vec![json!(number.as_i64().unwrap_or_default() + 1)],
        Value::Null if !value.example.is_null() => vec![value.example.clone()],
        Value::Null => some(),
        Value::String(_) => some().into_iter().filter(Value::is_string).collect(),
        Value::Array(_) => some().into_iter().filter(Value::is_array).collect(),
        Value::Object(_) => some().into_iter().filter(Value::is_object).collect(),
    }
}

fn with(values: &Value, path: &[String], change: &Value) -> Value {
    let Some((first, rest)) = path.split_first() else {
        return change.clone();
    };
    let mut fields = values.as_object().cloned().unwrap_or_else(Map::new);
    let below = fields.get(first).cloned().unwrap_or_default();
    fields.insert(first.clone(), with(&below, rest, change));
    Value::Object(fields)
}

fn render(helm: &Path, chart: &str, values: &Value) -> Result<Render> {
    let values = values_file(values)?;
    let rendered = run(Command::new(helm)
        .current_dir(repository())
        .args(["template", chart])
        .arg(Path::new("charts").join(chart))
        .args(["--namespace", "slurm", "--kube-version", KUBERNETES])
        .args(["--api-versions", "monitoring.coreos.com/v1/ServiceMonitor"])
        .arg("--values")
        .arg(values.path()))?;
    let mut objects = Render::new();
    for part in rendered
        .split("\n---\n")
        .map(|part| part.trim_start_matches("---\n"))
    {
        let Some((source, text)) = part
            .strip_prefix("# Source: ")
            .and_then(|part| part.split_once('\n'))
        else {
            continue;
        };
        let template = source
            .split_once("/templates/")
            .map_or(source, |(_, template)| template);
        for object in documents(text)? {
            let text = |pointer: &str| {
                object
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let name = format!("{}/{}", text("/kind"), text("/metadata/name"));
            objects.insert((template.to_owned(), name), object);
        }
    }
    Ok(objects)
}

/// Returns the templates that differ, each with the kind and path of the difference.
fn differences(before: &Render, after: &Render) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let keys: BTreeSet<&(String, String)> = before.keys().chain(after.keys()).collect();
    for key in keys {
        let (template, name) = key;
        let kind = name.split('/').next().unwrap_or_default();
        match (before.get(key), after.get(key)) {
            (Some(before), Some(after)) => {
                let mut paths = BTreeSet::new();
                compare(before, after, "", &mut paths);
                found.extend(
                    paths
                        .into_iter()
                        .map(|path| (template.clone(), format!("{kind} {path}"))),
                );
            }
            (Some(_), None) | (None, Some(_)) => {
                found.insert((template.clone(), kind.to_owned()));
            }
            (None, None) => {}
        }
    }
    found
}

fn compare(before: &Value, after: &Value, path: &str, found: &mut BTreeSet<String>) {
    match (before, after) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let (left, right) = (left.get(key), right.get(key));
                let (left, right) = (left.unwrap_or(&Value::Null), right.unwrap_or(&Value::Null));
                compare(left, right, &format!("{path}.{key}"), found);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (left, right) in left.iter().zip(right) {
                compare(left, right, &format!("{path}[]"), found);
            }
        }
        _ if before == after => {}
        _ => {
            found.insert(path.trim_start_matches('.').to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(object: Value) -> Render {
        Render::from([(("a.yaml".to_owned(), "A/a".to_owned()), object)])
    }

    #[test]
    fn what_differs_is_named_by_template_kind_and_path() {
        let before = render(json!({ "spec": { "list": [{ "x": 1, "y": 2 }], "same": 1 } }));
        let after = render(json!({ "spec": { "list": [{ "x": 1, "y": 3 }], "same": 1, "new": { "z": 1 } } }));
        let found: Vec<(String, String)> = differences(&before, &after).into_iter().collect();
        let expected =
            ["A spec.list[].y", "A spec.new"].map(|change| ("a.yaml".to_owned(), change.to_owned()));
        assert_eq!(found, expected);
        assert_eq!(differences(&before, &Render::new()).len(), 1);
    }

    #[test]
    fn a_value_is_set_among_the_others() {
        let path = ["a".to_owned(), "b".to_owned()];
        assert_eq!(
            with(&json!({ "a": { "c": 1 } }), &path, &json!(2)),
            json!({ "a": { "b": 2, "c": 1 } })
        );
        assert_eq!(
            with(&json!({ "a": null }), &path, &json!(2)),
            json!({ "a": { "b": 2 } })
        );
    }
}
