//! Encoding of values, so that Slurm reads back exactly the same value and nothing else.
//!
//! The Slurm parser removes comments from an unescaped `#` (also inside quotes), joins lines that end in a
//! backslash, then removes every escaping backslash, and only then parses `Key=Value` pairs, where a value is
//! either quoted (without quotes inside) or free of white space. Values that do not survive this are
//! rejected.

use std::borrow::Cow;

/// Why a string cannot be a value in a Slurm configuration file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// A line break or another control character would start a new line or be lost.
    #[error("contains the control character {0:?}")]
    Control(char),
    /// Slurm has no syntax for a double quote inside a quoted value.
    #[error("contains a double quote where Slurm does not support one")]
    Quote,
    /// The value must not be empty here.
    #[error("is empty")]
    Empty,
    /// The value must be one word here.
    #[error("contains {0:?}, which is not allowed here")]
    Character(char),
    /// The word has a special meaning in Slurm, case-insensitively.
    #[error("is {0:?}, which Slurm interprets as {1}")]
    Reserved(String, &'static str),
}

/// Encodes a value for a file: escaped, and quoted if necessary.
pub fn encode(value: &str) -> Result<Cow<'_, str>, ValueError> {
    if let Some(control) = value.chars().find(|c| c.is_control()) {
        return Err(ValueError::Control(control));
    }
    let spaced = value.chars().any(char::is_whitespace);
    if value.starts_with('"') || (spaced && value.contains('"')) {
        return Err(ValueError::Quote);
    }
    let escaped: Cow<'_, str> = if value.contains(['\\', '#']) {
        value.replace('\\', "\\\\").replace('#', "\\#").into()
    } else {
        value.into()
    };
    if spaced || value.is_empty() {
        Ok(format!("\"{escaped}\"").into())
    } else {
        Ok(escaped)
    }
}

/// Whether a character is allowed in a key.
pub(crate) fn is_key_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

/// Checks the key of a parameter.
pub(crate) fn encode_key(key: &str) -> Result<&str, ValueError> {
    match key.chars().find(|c| !is_key_character(*c)) {
        _ if key.is_empty() => Err(ValueError::Empty),
        Some(c) if c.is_control() => Err(ValueError::Control(c)),
        Some(c) => Err(ValueError::Character(c)),
        None => Ok(key),
    }
}

/// Checks a name that other lines refer to (cluster, host, node set, partition, script): one word without
/// characters that have a special meaning in lists, host lists or option lists.
pub fn encode_name(name: &str) -> Result<&str, ValueError> {
    if name.is_empty() {
        return Err(ValueError::Empty);
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '@');
    match name.chars().find(|c| !allowed(*c)) {
        Some(c) if c.is_control() => Err(ValueError::Control(c)),
        Some(c) => Err(ValueError::Character(c)),
        None => Ok(name),
    }
}

/// Checks the name of a node set. `Nodes=ALL` always means every node, even if a node set has that name.
pub fn encode_nodeset_name(name: &str) -> Result<&str, ValueError> {
    not_reserved(encode_name(name)?, "ALL", "all nodes")
}

/// Checks the name of a partition. `PartitionName=DEFAULT` does not define a partition: it sets the defaults for the partitions
/// after it.
pub fn encode_partition_name(name: &str) -> Result<&str, ValueError> {
    not_reserved(encode_name(name)?, "DEFAULT", "the defaults of all partitions")
}

fn not_reserved<'a>(name: &'a str, word: &str, meaning: &'static str) -> Result<&'a str, ValueError> {
    if name.eq_ignore_ascii_case(word) {
        return Err(ValueError::Reserved(name.to_owned(), meaning));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("auth/slurm", "auth/slurm")]
    #[case::empty("", "\"\"")]
    #[case::spaces("two words", "\"two words\"")]
    #[case::comment_sign("a#b", "a\\#b")]
    #[case::comment_sign_in_quotes("a # b", "\"a \\# b\"")]
    #[case::trailing_backslash("ab\\", "ab\\\\")]
    #[case::inner_quote("pa\"ss", "pa\"ss")]
    fn values_are_written_so_that_slurm_reads_them_back(#[case] value: &str, #[case] written: &str) {
        assert_eq!(encode(value).unwrap(), written);
    }

    #[rstest]
    #[case::newline("a\nSlurmUser=root")]
    #[case::carriage_return("a\rb")]
    #[case::nul("a\0b")]
    #[case::quote_and_space("a\" b")]
    #[case::all_quoted("\"abc\"")]
    fn what_could_add_a_line_or_be_read_differently_is_refused(#[case] value: &str) {
        assert!(encode(value).is_err());
    }

    #[rstest]
    #[case("a b")]
    #[case("a,b")]
    #[case("a=b")]
    #[case("a[1-2]")]
    #[case("")]
    #[case("a\nb")]
    fn a_name_is_one_plain_word(#[case] name: &str) {
        assert!(encode_name(name).is_err());
    }
}
