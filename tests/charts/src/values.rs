//! Generates the reference of a chart's values from the comments in its values.yaml.
//!
//! `# -- text` above a key describes the key. A commented-out key below such a line is unset by default. Any other
//! comment above a key with children introduces a section.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A key with its comment.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    path: Vec<String>,
    comment: Comment,
    /// Whether the key is set in the file, or only mentioned in a comment.
    set: bool,
    /// The example value of a commented-out key.
    example: String,
}

#[derive(Debug, Default, PartialEq, Eq, Clone)]
enum Comment {
    #[default]
    None,
    /// `# -- text`
    Description(String),
    /// `# text`
    Section(String),
}

/// Generates the page for one chart.
pub fn reference(chart: &str, values: &str) -> Result<String> {
    let defaults: Value = serde_saphyr::from_str(values).context("values.yaml is no YAML")?;
    let entries = entries(values)?;
    let undocumented: Vec<String> = undocumented(&entries).iter().map(|path| path.join(".")).collect();
    ensure!(
        undocumented.is_empty(),
        "values without a `# --` comment: {}",
        undocumented.join(", ")
    );

    let mut sections: Vec<Section> = Vec::new();
    for entry in &entries {
        let name = section_of(entry);
        let at = sections
            .iter()
            .position(|section| section.name == name)
            .unwrap_or_else(|| {
                sections.push(Section {
                    name: name.to_owned(),
                    ..Section::default()
                });
                sections.len() - 1
            });
        if let Some(section) = sections.get_mut(at) {
            section.add(entry, &defaults)?;
        }
    }
    let mut page = format!(
        "# Values of the chart `{chart}`\n\n<!-- Made from charts/{chart}/values.yaml: KEELSON_BLESS=1 cargo test -p chart-tests -->\n"
    );
    for Section { name, body, .. } in sections {
        write!(page, "\n## {name}\n{body}")?;
    }
    Ok(page)
}

/// A value that users can set.
#[derive(Debug)]
pub struct Documented {
    pub path: Vec<String>,
    /// The default in the file. Null if unset.
    pub default: Value,
    /// The example in the file, if the value is unset.
    pub example: Value,
}

/// Returns every value with a description.
pub fn documented(values: &str) -> Result<Vec<Documented>> {
    let defaults: Value = serde_saphyr::from_str(values).context("values.yaml is no YAML")?;
    let described = |entry: &Entry| matches!(entry.comment, Comment::Description(_));
    let documented = |entry: Entry| {
        let keys: Vec<String> = entry.path.iter().map(|key| key.replace('/', "~1")).collect();
        let pointer = format!("/{}", keys.join("/"));
        Documented {
            default: defaults.pointer(&pointer).cloned().unwrap_or_default(),
            example: serde_saphyr::from_str(&entry.example).unwrap_or_default(),
            path: entry.path,
        }
    };
    Ok(entries(values)?
        .into_iter()
        .filter(described)
        .map(documented)
        .collect())
}

/// Returns the section of an entry: its top-level key, or a shared section for top-level keys without children.
fn section_of(entry: &Entry) -> &str {
    match (entry.path.as_slice(), &entry.comment) {
        ([_], Comment::Description(_)) | ([], _) => "General",
        ([top, ..], _) => top,
    }
}

#[derive(Debug, Default)]
struct Section {
    name: String,
    body: String,
    /// Whether the body ends in a table that more rows can follow.
    in_table: bool,
}

impl Section {
    fn add(&mut self, entry: &Entry, defaults: &Value) -> Result<()> {
        match &entry.comment {
            Comment::None => {}
            Comment::Section(text) => {
                let name = if entry.path.len() > 1 {
                    format!("`{}`: ", entry.path.join("."))
                } else {
                    String::new()
                };
                write!(self.body, "\n{name}{text}\n")?;
                self.in_table = false;
            }
            Comment::Description(text) => {
                if !self.in_table {
                    self.body
                        .push_str("\n| value | default | meaning |\n|---|---|---|\n");
                    self.in_table = true;
                }
                let default = if entry.set {
                    default_cell(defaults, &entry.path)?
                } else {
                    format!("unset, such as `{}`", entry.example)
                };
                let text = text.replace('|', "\\|");
                writeln!(self.body, "| `{}` | {default} | {text} |", entry.path.join("."))?;
            }
        }
        Ok(())
    }
}

fn default_cell(defaults: &Value, path: &[String]) -> Result<String> {
    let mut value = defaults;
    for key in path {
        value = value
            .get(key)
            .with_context(|| format!("{} is not in the file", path.join(".")))?;
    }
    let text = match value {
        Value::String(text) if text.contains('\n') => return Ok("see values.yaml".to_owned()),
        Value::String(text) if !text.is_empty() => text.clone(),
        other => other.to_string(),
    };
    Ok(format!("`{}`", text.replace('|', "\\|")))
}

/// Returns keys without children that have neither a description nor a described ancestor.
fn undocumented(entries: &[Entry]) -> Vec<&[String]> {
    let described = |path: &[String]| {
        entries
            .iter()
            .any(|entry| matches!(entry.comment, Comment::Description(_)) && path.starts_with(&entry.path))
    };
    let is_leaf = |path: &[String]| {
        !entries
            .iter()
            .any(|entry| entry.path.len() > path.len() && entry.path.starts_with(path))
    };
    entries
        .iter()
        .map(|entry| entry.path.as_slice())
        .filter(|path| is_leaf(path) && !described(path))
        .collect()
}

/// Reads keys and comments line by line, because YAML parsers drop comments.
fn entries(values: &str) -> Result<Vec<Entry>> {
    let mut found: Vec<Entry> = Vec::new();
    let mut parents: Vec<(usize, String)> = Vec::new();
    let mut comment = Comment::None;
    let mut text_block = None;
    for (number, line) in values.lines().enumerate() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if text_block.is_some_and(|block| content.is_empty() || indent > block) {
            continue;
        }
        text_block = None;
        if content.is_empty() {
            comment = Comment::None;
        } else if let Some(text) = content.strip_prefix('#') {
            let text = text.trim_start();
            let unset = matches!(comment, Comment::Description(_))
                .then(|| key_line(text))
                .flatten();
            match (text.strip_prefix("-- "), unset) {
                (Some(text), _) => comment = Comment::Description(text.to_owned()),
                (None, Some((key, example))) => {
                    parents.retain(|(parent, _)| *parent < indent);
                    let path = parents.iter().map(|(_, key)| key.clone()).chain([key]).collect();
                    found.push(Entry {
                        path,
                        comment: std::mem::take(&mut comment),
                        set: false,
                        example,
                    });
                }
                (None, None) => {
                    comment = match std::mem::take(&mut comment) {
                        Comment::None => Comment::Section(text.to_owned()),
                        Comment::Section(before) => Comment::Section(format!("{before} {text}")),
                        Comment::Description(before) => Comment::Description(format!("{before} {text}")),
                    };
                }
            }
        } else if let Some((key, value)) = key_line(content) {
            parents.retain(|(parent, _)| *parent < indent);
            parents.push((indent, key));
            if value == "|" {
                text_block = Some(indent);
            }
            let path = parents.iter().map(|(_, key)| key.clone()).collect();
            found.push(Entry {
                path,
                comment: std::mem::take(&mut comment),
                set: true,
                example: String::new(),
            });
        } else if content.starts_with("- ") {
            comment = Comment::None;
        } else if content != "{}" {
            bail!(
                "line {} is neither a key, a comment nor a list: {line}",
                number + 1
            );
        }
    }
    Ok(found)
}

/// Parses `key: value`, where the key is a plain word.
fn key_line(content: &str) -> Option<(String, String)> {
    let (key, value) = content.split_once(':')?;
    let plain = !key.is_empty()
        && key
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "./_-".contains(letter));
    (plain && !key.starts_with('-') && (value.is_empty() || value.starts_with(' ')))
        .then(|| (key.to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: &str = "\
# -- A name.
name: \"\"

# The part.
part:
  # -- On or | off.
  enabled: true
  # -- The image.
  image:
    repository: r
  # -- A port.
  # port: 1
  # -- A file.
  file: |
    text: x
";

    #[test]
    fn keys_come_with_descriptions_defaults_and_sections() {
        let page = reference("c", VALUES).expect("a page");
        let (_, body) = page.split_once("-->\n").expect("a note");
        let expected = "
## General

| value | default | meaning |
|---|---|---|
| `name` | `\"\"` | A name. |

## part

The part.

| value | default | meaning |
|---|---|---|
| `part.enabled` | `true` | On or \\| off. |
| `part.image` | `{\"repository\":\"r\"}` | The image. |
| `part.port` | unset, such as `1` | A port. |
| `part.file` | see values.yaml | A file. |
";
        assert_eq!(body, expected);
    }

    #[test]
    fn a_value_without_a_description_is_refused() {
        let error = reference("c", "a:\n  b: 1\n")
            .expect_err("no comment")
            .to_string();
        assert_eq!(error, "values without a `# --` comment: a.b");
    }
}
