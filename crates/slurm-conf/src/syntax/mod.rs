//! The `Key=Value` syntax that slurm.conf, slurmdbd.conf, cgroup.conf and gres.conf share, read the way
//! Slurm reads it: keys in any case, comments, escapes, continuation lines, quotes, `Include`.
//!
//! One difference on purpose: what Slurm would read as something that nobody meant (a stray quote, text
//! behind a value) is an error with its line number here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::catalogue::{File, Shape};
use crate::value::{ValueError, encode, encode_key, is_key_character};

/// How deep `Include` may nest before it is taken for a loop.
const MAX_INCLUDE_DEPTH: usize = 8;

/// Where a statement stands: a line of the text itself, or of a file that it includes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The included file; `None` for the text itself.
    pub file: Option<String>,
    /// The first line of the statement, counted from 1.
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
    /// The key in the case that it was written in.
    pub key: String,
    /// The value without quotes and escapes.
    pub value: String,
}

impl Pair {
    /// A pair of our own.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            value: value.into(),
        }
    }

    /// Whether this is the parameter `key`, in any case.
    pub fn is(&self, key: &str) -> bool {
        self.key.eq_ignore_ascii_case(key)
    }
}

/// A parameter and, for records such as `PartitionName`, what belongs to it on the same line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Where it was read; `None` for what the operator writes itself.
    pub origin: Option<Origin>,
    /// The parameter.
    pub head: Pair,
    /// The rest of a record's line.
    pub attributes: Vec<Pair>,
}

impl Statement {
    /// A statement of our own.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            origin: None,
            head: Pair::new(key, value),
            attributes: Vec::new(),
        }
    }

    /// The same with one more attribute.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push(Pair::new(key, value));
        self
    }

    /// The value of an attribute, in any case. The last one counts, as in Slurm.
    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes
            .iter()
            .rev()
            .find(|a| a.is(key))
            .map(|a| a.value.as_str())
    }

    /// Sets an attribute, replacing every earlier one of that key.
    pub fn set_attribute(&mut self, key: &str, value: &str) {
        self.attributes.retain(|a| !a.is(key));
        self.attributes.push(Pair::new(key, value));
    }

    /// The line as it stands in a file, without the line break.
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

/// What a text holds, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Document {
    /// The parameters and records, those of known included files in place.
    pub statements: Vec<Statement>,
    /// `Include` lines of files that the caller does not know.
    pub includes: Vec<(Origin, String)>,
    /// The files that were included in place.
    pub included: BTreeSet<String>,
}

impl Document {
    /// The value of a parameter that stands once; the last one counts, as in Slurm.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.statements
            .iter()
            .rev()
            .find(|s| s.head.is(key))
            .map(|s| s.head.value.as_str())
    }

    /// All statements of a parameter that may stand more than once.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Statement> {
        self.statements.iter().filter(move |s| s.head.is(key))
    }
}

/// Why a line cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// Not of the form `Key=Value`.
    #[error("{0:?} is not of the form Key=Value")]
    NotAPair(String),
    /// `Key=` with nothing behind it.
    #[error("{0} has no value")]
    NoValue(String),
    /// `Key+=Value` and its like mean nothing in these files.
    #[error("{0}{1}= is not understood by Slurm here; write {0}=")]
    Operator(String, char),
    /// Slurm takes one parameter a line, except for records.
    #[error("{1:?} stands behind {0}, which takes a line of its own")]
    Trailing(String, String),
    /// A key that begins a line of its own.
    #[error("{0} cannot stand here")]
    Misplaced(String),
    /// A quote that is not closed, or not at the end of its value.
    #[error("the value of {0} has a stray double quote")]
    StrayQuote(String),
    /// A control character other than a tab.
    #[error("holds the control character {0:?}")]
    Control(char),
    /// Slurm skips an `Include` with a pattern.
    #[error("Include {0}: Slurm does not expand patterns")]
    IncludePattern(String),
    /// Files that include each other.
    #[error("Include {0}: nested too deeply")]
    IncludeDepth(String),
    /// Something unreadable behind `Include`.
    #[error("Include takes one file name")]
    IncludeName,
}

/// A line that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// Where it stands.
    pub origin: Origin,
    /// What is wrong with it.
    pub error: SyntaxError,
}

impl fmt::Display for Problem {
    /// Lines of included files are named and not quoted: they come from another object than the one that is judged, and
    /// a file that was never meant for Slurm may hold anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, error } = self;
        match error {
            SyntaxError::NotAPair(_) if origin.file.is_some() => {
                write!(f, "{origin}: is not of the form Key=Value")
            }
            SyntaxError::Trailing(..) if origin.file.is_some() => {
                write!(
                    f,
                    "{origin}: has text behind a parameter that takes a line of its own"
                )
            }
            error => write!(f, "{origin}: {error}"),
        }
    }
}

/// Reads `text` as `file`. Files in `included` stand for `Include NAME`; others are kept as includes.
/// All problems are reported, not only the first.
pub fn parse(file: File, text: &str, included: &BTreeMap<String, String>) -> Result<Document, Vec<Problem>> {
    let (document, problems) = read(file, text, included);
    if problems.is_empty() {
        Ok(document)
    } else {
        Err(problems)
    }
}

/// Reads what can be read, for those who leave the verdict on the rest to Slurm.
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

/// Reads `Key=Value Key=Value …` on one line, such as the rest of a `PartitionName` line.
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

/// The line without its continuation mark, if it has one: an odd number of backslashes at its end.
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

/// The first `Key=Value` of a line and what stands behind it; `None` when only white space is left.
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
