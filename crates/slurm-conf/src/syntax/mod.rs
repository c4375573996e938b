//! Parser for the `Key=Value` syntax of slurm.conf, slurmdbd.conf, cgroup.conf and gres.conf. It follows the Slurm
//! parser: case-insensitive keys, comments, escapes, continuation lines, quotes, `Include`.
//!
//! There is one intentional difference: text that Slurm accepts but interprets in an unexpected way (a stray quote, text
//! after a value) is an error with its line number here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::catalogue::{File, Shape};
use crate::value::{ValueError, encode, encode_key, is_key_character};

/// The maximum nesting depth of `Include`. Deeper nesting is treated as a loop.
const MAX_INCLUDE_DEPTH: usize = 8;

/// The location of a statement: a line of the text itself, or of an included file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The included file; `None` for the text itself.
    pub file: Option<String>,
    /// The first line of the statement, starting at 1.
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{file} line {}", self.line),
            None => write!(f, "line {}", self.line),
        }
    }
}

/// One `Key=Value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The key, in its original case.
    pub key: String,
    /// The value without quotes and escapes.
    pub value: String,
}

impl Pair {
    /// Creates a pair.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            value: value.into(),
        }
    }

    /// Whether this is the parameter `key`, case-insensitively.
    pub fn is(&self, key: &str) -> bool {
        self.key.eq_ignore_ascii_case(key)
    }
}

/// A parameter and, for records such as `PartitionName`, the attributes on the same line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The location of the statement; `None` for statements that the operator writes itself.
    pub origin: Option<Origin>,
    /// The parameter.
    pub head: Pair,
    /// The attributes of a record.
    pub attributes: Vec<Pair>,
}

impl Statement {
    /// Creates a statement without a location.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            origin: None,
            head: Pair::new(key, value),
            attributes: Vec::new(),
        }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push(Pair::new(key, value));
        self
    }

    /// The value of an attribute, by case-insensitive key. The last one takes precedence, as in Slurm.
    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes
            .iter()
            .rev()
            .find(|a| a.is(key))
            .map(|a| a.value.as_str())
    }

    /// Sets an attribute, replacing all earlier ones with that key.
    pub fn set_attribute(&mut self, key: &str, value: &str) {
        self.attributes.retain(|a| !a.is(key));
        self.attributes.push(Pair::new(key, value));
    }

    /// The encoded line for a file, without the line break.
    pub fn encode(&self) -> Result<String, ValueError> {
        let mut line = String::new();
        for Pair { key, value } in std::iter::once(&self.head).chain(&self.attributes) {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(encode_key(key)?);
            line.push('=');
            line.push_str(&encode(value)?);
        }
        Ok(line)
    }
}

/// The parsed contents of a text, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Document {
    /// The parameters and records. Those of known included files are inserted in place.
    pub statements: Vec<Statement>,
    /// `Include` lines of files that the caller did not provide.
    pub includes: Vec<(Origin, String)>,
    /// The files that were inserted in place.
    pub included: BTreeSet<String>,
}

impl Document {
    /// The value of a single parameter. The last one takes precedence, as in Slurm.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.statements
            .iter()
            .rev()
            .find(|s| s.head.is(key))
            .map(|s| s.head.value.as_str())
    }

    /// All statements of a parameter that may be repeated.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Statement> {
        self.statements.iter().filter(move |s| s.head.is(key))
    }
}

/// The reason why a line is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// Not of the form `Key=Value`.
    #[error("{0:?} is not in the form Key=Value")]
    NotAPair(String),
    /// `Key=` without a value.
    #[error("{0} has no value")]
    NoValue(String),
    /// `Key+=Value` and similar operators are not supported in these files.
    #[error("Slurm does not support {0}{1}= here; use {0}=")]
    Operator(String, char),
    /// Slurm accepts one parameter per line, except for records.
    #[error("unexpected text {1:?} after {0}, which requires its own line")]
    Trailing(String, String),
    /// A key that must be at the start of a line.
    #[error("{0} is not allowed here")]
    Misplaced(String),
    /// A quote that is not closed, or not at the end of its value.
    #[error("the value of {0} has a stray double quote")]
    StrayQuote(String),
    /// A control character other than a tab.
    #[error("contains the control character {0:?}")]
    Control(char),
    /// Slurm ignores an `Include` with a pattern.
    #[error("Include {0}: Slurm does not support patterns")]
    IncludePattern(String),
    /// Files that include each other.
    #[error("Include {0}: nested too deeply")]
    IncludeDepth(String),
    /// An invalid file name after `Include`.
    #[error("Include requires exactly one file name")]
    IncludeName,
}

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// The location of the line.
    pub origin: Origin,
    /// The error.
    pub error: SyntaxError,
}

impl fmt::Display for Problem {
    /// Does not quote lines of included files, only their location: they come from another object, and a file that was not
    /// written for Slurm may contain anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, error } = self;
        match error {
            SyntaxError::NotAPair(_) if origin.file.is_some() => {
                write!(f, "{origin}: is not in the form Key=Value")
            }
            SyntaxError::Trailing(..) if origin.file.is_some() => {
                write!(
                    f,
                    "{origin}: unexpected text after a parameter that requires its own line"
                )
            }
            error => write!(f, "{origin}: {error}"),
        }
    }
}

/// Parses `text` as `file`. `Include NAME` inserts the file from `included`; other includes are kept.
/// All problems are reported, not only the first.
pub fn parse(file: File, text: &str, included: &BTreeMap<String, String>) -> Result<Document, Vec<Problem>> {
    let (document, problems) = read(file, text, included);
    if problems.is_empty() {
        Ok(document)
    } else {
        Err(problems)
    }
}

/// Parses the valid lines and also returns the problems, for callers that let Slurm decide about the invalid lines.
pub fn read(file: File, text: &str, included: &BTreeMap<String, String>) -> (Document, Vec<Problem>) {
    let mut reader = Reader {
        file,
        included,
        document: Document::default(),
        problems: Vec::new(),
    };
    reader.read(text, None, 0);
    (reader.document, reader.problems)
}

/// Parses `Key=Value Key=Value …` on one line, such as the attributes of a `PartitionName` line.
pub fn parse_pairs(text: &str) -> Result<Vec<Pair>, SyntaxError> {
    if let Some(control) = text.chars().find(|c| c.is_control() && *c != '\t') {
        return Err(SyntaxError::Control(control));
    }
    let mut lines = logical_lines(text);
    let Some((_, line)) = lines.next() else {
        return Ok(Vec::new());
    };
    pairs(&line)
}

struct Reader<'a> {
    file: File,
    included: &'a BTreeMap<String, String>,
    document: Document,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn read(&mut self, text: &str, name: Option<&str>, depth: usize) {
        for (line, content) in logical_lines(text) {
            let origin = Origin {
                file: name.map(str::to_owned),
                line,
            };
            let read = match include_of(&content) {
                Some(target) => self.include(target, &origin, depth),
                None => self.statement(&content, &origin),
            };
            if let Err(error) = read {
                self.problems.push(Problem { origin, error });
            }
        }
    }

    fn include(&mut self, target: &str, origin: &Origin, depth: usize) -> Result<(), SyntaxError> {
        if target.is_empty() || target.contains(char::is_whitespace) {
            return Err(SyntaxError::IncludeName);
        }
        if let Some(control) = target.chars().find(|c| c.is_control()) {
            return Err(SyntaxError::Control(control));
        }
        if target.contains('*') {
            return Err(SyntaxError::IncludePattern(target.to_owned()));
        }
        if depth >= MAX_INCLUDE_DEPTH {
            return Err(SyntaxError::IncludeDepth(target.to_owned()));
        }
        match self.included.get(target) {
            Some(text) => {
                self.document.included.insert(target.to_owned());
                self.read(text, Some(target), depth + 1);
            }
            None => self.document.includes.push((origin.clone(), target.to_owned())),
        }
        Ok(())
    }

    fn statement(&mut self, content: &str, origin: &Origin) -> Result<(), SyntaxError> {
        if let Some(control) = content.chars().find(|c| c.is_control() && *c != '\t') {
            return Err(SyntaxError::Control(control));
        }
        let Some((head, rest)) = pair(content)? else {
            return Ok(());
        };
        let attributes = match self.file.shape(&head.key) {
            Shape::Record => pairs(rest)?,
            Shape::Single | Shape::Repeated if rest.trim().is_empty() => Vec::new(),
            Shape::Single | Shape::Repeated => {
                return Err(SyntaxError::Trailing(head.key, rest.trim().to_owned()));
            }
        };
        self.document.statements.push(Statement {
            origin: Some(origin.clone()),
            head,
            attributes,
        });
        Ok(())
    }
}

/// The lines of a text after comments, continuations and escapes, with the number of their first line.
fn logical_lines(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut physical = text
        .split('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line))
        .zip(1..);
    std::iter::from_fn(move || {
        let (first, number) = physical.next()?;
        let mut joined = String::new();
        let mut line = first;
        loop {
            let content = without_comment(line);
            let Some(head) = continued(content) else {
                joined.push_str(content);
                break;
            };
            joined.push_str(head);
            match physical.next() {
                Some((next, _)) => line = next,
                None => break,
            }
        }
        Some((number, without_escapes(&joined)))
    })
    .filter(|(_, line)| !line.trim().is_empty())
}

fn without_comment(line: &str) -> &str {
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match c {
            '#' if !escaped => return line.get(..at).unwrap_or(line),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    line
}

/// The line without its continuation mark, if it has one. The mark is an odd number of trailing backslashes.
fn continued(line: &str) -> Option<&str> {
    let trimmed = line.trim_end();
    let marks = trimmed.len() - trimmed.trim_end_matches('\\').len();
    if marks % 2 == 1 {
        trimmed.strip_suffix('\\')
    } else {
        None
    }
}

fn without_escapes(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\\' {
            plain.extend(chars.next());
        } else {
            plain.push(c);
        }
    }
    plain
}

fn include_of(line: &str) -> Option<&str> {
    let line = line.trim();
    let (word, rest) = line.split_at_checked("include".len())?;
    (word.eq_ignore_ascii_case("include")
        && rest.starts_with(char::is_whitespace)
        && !rest.trim_start().starts_with('='))
    .then(|| rest.trim())
}

fn pairs(mut text: &str) -> Result<Vec<Pair>, SyntaxError> {
    let mut found = Vec::new();
    while let Some((next, rest)) = pair(text)? {
        found.push(next);
        text = rest;
    }
    Ok(found)
}

/// The first `Key=Value` of a line and the rest of the line; `None` if only white space is left.
fn pair(text: &str) -> Result<Option<(Pair, &str)>, SyntaxError> {
    let text = text.trim_start();
    if text.is_empty() {
        return Ok(None);
    }
    let not_a_pair = || SyntaxError::NotAPair(text.trim_end().to_owned());
    let key_end = text
        .find(|c: char| !is_key_character(c))
        .filter(|end| *end > 0)
        .ok_or_else(not_a_pair)?;
    let (key, rest) = text.split_at(key_end);
    let rest = rest.trim_start();
    if let Some(operator) = rest.chars().next().filter(|c| matches!(c, '+' | '-' | '*' | '/'))
        && rest.get(1..).is_some_and(|r| r.starts_with('='))
    {
        return Err(SyntaxError::Operator(key.to_owned(), operator));
    }
    let rest = rest.strip_prefix('=').ok_or_else(not_a_pair)?.trim_start();
    if rest.is_empty() {
        return Err(SyntaxError::NoValue(key.to_owned()));
    }
    let word_end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    let (value, rest) = match rest.strip_prefix('"').and_then(|inner| inner.split_once('"')) {
        Some((inner, rest)) if rest.is_empty() || rest.starts_with(char::is_whitespace) => (inner, rest),
        _ => {
            let (word, rest) = rest.split_at(word_end);
            if word.starts_with('"') {
                return Err(SyntaxError::StrayQuote(key.to_owned()));
            }
            (word, rest)
        }
    };
    Ok(Some((Pair::new(key, value), rest)))
}

#[cfg(test)]
mod tests;
