//! Slurm's host lists: `gpu-[0-3,7],rack[0-1]node[01-16]-ib`.
//!
//! Host lists are parsed in the same way as in Slurm: any number of bracket groups in a name, text after them,
//! numbers padded to the width of the first number in a range, names separated by commas or white space. They are
//! written in compact form, with one bracket group per name, for its last number. Slurm's box notation
//! (`[000x733]`) exists only on multi-dimensional clusters, which no longer exist. Like Slurm on other clusters,
//! this parser rejects it.

mod compress;

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// The maximum number of names in one range, as in Slurm.
pub const MAX_RANGE: u64 = 65_536;
/// The maximum number of names in one list.
pub const MAX_NAMES: u64 = 1 << 20;

/// A list of host names in its compact form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hostlist {
    patterns: Vec<Pattern>,
}

/// One name, or the names that its bracket groups expand to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Numbers(Vec<Range>),
}

/// `low-high`, every number padded with zeros to `width`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    low: u64,
    high: u64,
    width: usize,
}

/// The reason why a text is not a host list, or a name cannot be in one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostlistError {
    /// An unbalanced bracket.
    #[error("{0:?} has an unbalanced bracket")]
    Bracket(String),
    /// Text between brackets that is not a number or a range of numbers.
    #[error("{0:?} is not a number or a range of numbers")]
    Range(String),
    /// A range or a list with too many names.
    #[error("{0:?} contains too many names")]
    TooMany(String),
    /// A name that is not valid in a host list.
    #[error("{0:?} is not a valid host name")]
    Name(String),
}

impl Hostlist {
    /// The shortest list of these names, ordered and without duplicates.
    pub fn from_names<I>(names: I) -> Result<Self, HostlistError>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        compress::compress(names)
    }

    /// The names, in the order of the list.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.patterns.iter().flat_map(Pattern::names)
    }

    /// The number of names.
    pub fn len(&self) -> u64 {
        self.patterns
            .iter()
            .map(Pattern::len)
            .fold(0, u64::saturating_add)
    }

    /// Whether the list has no names.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether the list has this name. Does not expand the list.
    pub fn contains(&self, name: &str) -> bool {
        self.patterns
            .iter()
            .any(|pattern| matches_parts(&pattern.parts, name))
    }
}

fn matches_parts(parts: &[Part], name: &str) -> bool {
    let Some((part, others)) = parts.split_first() else {
        return name.is_empty();
    };
    match part {
        Part::Text(text) => name
            .strip_prefix(text.as_str())
            .is_some_and(|behind| matches_parts(others, behind)),
        // The next part may begin with a digit too, so the number may end before the last digit.
        Part::Numbers(ranges) => {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            (1..=digits)
                .filter_map(|end| name.split_at_checked(end))
                .any(|(number, behind)| {
                    ranges.iter().any(|range| range.contains(number)) && matches_parts(others, behind)
                })
        }
    }
}

/// Expands `list` to its names, in order.
pub fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    Ok(list.parse::<Hostlist>()?.names().collect())
}

/// The shortest list of `names`.
pub fn compress<I>(names: I) -> Result<String, HostlistError>
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    Ok(Hostlist::from_names(names)?.to_string())
}

impl Pattern {
    fn len(&self) -> u64 {
        self.parts.iter().map(Part::len).fold(1, u64::saturating_mul)
    }

    fn names(&self) -> Vec<String> {
        let mut names = vec![String::new()];
        for part in &self.parts {
            match part {
                Part::Text(text) => names.iter_mut().for_each(|name| name.push_str(text)),
                Part::Numbers(ranges) => {
                    names = names
                        .iter()
                        .flat_map(|name| ranges.iter().flat_map(|r| r.behind(name)))
                        .collect();
                }
            }
        }
        names
    }
}

impl Part {
    fn len(&self) -> u64 {
        match self {
            Self::Text(_) => 1,
            Self::Numbers(ranges) => ranges.iter().map(Range::len).fold(0, u64::saturating_add),
        }
    }
}

impl Range {
    fn len(&self) -> u64 {
        (self.high - self.low).saturating_add(1)
    }

    fn contains(self, digits: &str) -> bool {
        let Self { low, high, width } = self;
        let is_written_so = |number: u64| format!("{number:0width$}") == digits;
        digits
            .parse()
            .is_ok_and(|number| (low..=high).contains(&number) && is_written_so(number))
    }

    fn behind(self, prefix: &str) -> impl Iterator<Item = String> {
        let Self { low, high, width } = self;
        (low..=high).map(move |number| format!("{prefix}{number:0width$}"))
    }

    fn parse(text: &str) -> Result<Self, HostlistError> {
        let wrong = || HostlistError::Range(text.to_owned());
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            plain
                .then(|| digits.parse::<u64>().ok())
                .flatten()
                .ok_or_else(wrong)
        };
        let range = Self {
            low: number(first)?,
            high: number(last)?,
            width: first.len(),
        };
        if range.high < range.low {
            return Err(wrong());
        }
        if range.len() > MAX_RANGE {
            return Err(HostlistError::TooMany(text.to_owned()));
        }
        Ok(range)
    }
}

/// Whether a text is allowed in a name outside brackets.
fn is_name_text(text: &str) -> bool {
    !text.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '[' | ']'))
}

impl FromStr for Hostlist {
    type Err = HostlistError;

    fn from_str(text: &str) -> Result<Self, HostlistError> {
        let mut patterns = Vec::new();
        for token in tokens(text) {
            patterns.push(token.parse()?);
        }
        let list = Self { patterns };
        if list.len() > MAX_NAMES {
            return Err(HostlistError::TooMany(text.to_owned()));
        }
        Ok(list)
    }
}

/// The names and patterns of a list, which are separated outside of brackets.
fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.split(move |c: char| {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        !inside && matches!(c, ',' | ' ' | '\t' | '\n')
    })
    .filter(|token| !token.is_empty())
}

impl FromStr for Pattern {
    type Err = HostlistError;

    fn from_str(token: &str) -> Result<Self, HostlistError> {
        let unbalanced = || HostlistError::Bracket(token.to_owned());
        let mut parts = Vec::new();
        let mut rest = token;
        while let Some((text, behind)) = rest.split_once('[') {
            let (inside, behind) = behind.split_once(']').ok_or_else(unbalanced)?;
            if text.contains(']') || inside.contains('[') {
                return Err(unbalanced());
            }
            parts.extend(Part::text(text)?);
            parts.push(Part::Numbers(
                inside.split(',').map(Range::parse).collect::<Result<_, _>>()?,
            ));
            rest = behind;
        }
        if rest.contains(']') {
            return Err(unbalanced());
        }
        parts.extend(Part::text(rest)?);
        Ok(Self { parts })
    }
}

impl Part {
    fn text(text: &str) -> Result<Option<Self>, HostlistError> {
        if !is_name_text(text) {
            return Err(HostlistError::Name(text.to_owned()));
        }
        Ok((!text.is_empty()).then(|| Self::Text(text.to_owned())))
    }
}

impl fmt::Display for Hostlist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, pattern) in self.patterns.iter().enumerate() {
            if at > 0 {
                f.write_char(',')?;
            }
            pattern.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Text(text) => f.write_str(text)?,
                Part::Numbers(ranges) => {
                    f.write_char('[')?;
                    for (at, range) in ranges.iter().enumerate() {
                        if at > 0 {
                            f.write_char(',')?;
                        }
                        range.fmt(f)?;
                    }
                    f.write_char(']')?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, high, width } = *self;
        write!(f, "{low:0width$}")?;
        if high > low {
            write!(f, "-{high:0width$}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
