//! Container arguments as shell words, without a shell.
//!
//! The arguments of a Slurm container follow one convention for every image: they are pieces of a command line, quoted
//! for a POSIX shell, with `$NAME` for values that are known only in the pod (`'Features=x Topology='"$TOPOLOGY"''`).
//! This module joins them and splits them by the same quoting rules. It never runs or globs anything, and never splits
//! the value of a variable.

/// Why a command line cannot be split.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A quotation mark without its partner.
    #[error("the arguments have an opening {0} that is never closed")]
    Unclosed(char),
    /// A backslash with nothing after it.
    #[error("the arguments end in a backslash")]
    TrailingBackslash,
}

/// Joins the arguments with blanks and splits them into words.
pub fn split(args: &[String], variable: impl Fn(&str) -> Option<String>) -> Result<Vec<String>, Error> {
    let line = args.join(" ");
    let mut rest = line.chars().peekable();
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return Err(Error::Unclosed('\'')),
                    }
                }
            }
            '"' => quoted(&mut rest, word.get_or_insert_default(), &variable)?,
            '\\' => match rest.next().ok_or(Error::TrailingBackslash)? {
                '\n' => {}
                c => word.get_or_insert_default().push(c),
            },
            '$' => {
                let mut value = String::new();
                expand(&mut rest, &mut value, &variable);
                // An empty value is a word only if it is quoted.
                if !value.is_empty() {
                    word.get_or_insert_default().push_str(&value);
                }
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

type Rest<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn quoted(
    rest: &mut Rest,
    word: &mut String,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<(), Error> {
    loop {
        match rest.next().ok_or(Error::Unclosed('"'))? {
            '"' => return Ok(()),
            '$' => expand(rest, word, variable),
            '\\' => match rest.next().ok_or(Error::Unclosed('"'))? {
                '\n' => {}
                c @ ('"' | '\\' | '$' | '`') => word.push(c),
                c => word.extend(['\\', c]),
            },
            c => word.push(c),
        }
    }
}

/// Expands `$NAME` or `${NAME}`. An unset variable is empty, and a lone `$` stays as it is.
fn expand(rest: &mut Rest, word: &mut String, variable: &impl Fn(&str) -> Option<String>) {
    let braced = rest.peek() == Some(&'{');
    let mut ahead = rest.clone();
    if braced {
        ahead.next();
    }
    let mut name = String::new();
    while let Some(&c) = ahead.peek() {
        if !(c == '_' || c.is_ascii_alphabetic() || (c.is_ascii_digit() && !name.is_empty())) {
            break;
        }
        name.push(c);
        ahead.next();
    }
    if name.is_empty() || (braced && ahead.next() != Some('}')) {
        word.push('$');
        return;
    }
    *rest = ahead;
    word.push_str(&variable(&name).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn words(args: &[&str]) -> Result<Vec<String>, Error> {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        split(&args, |name| match name {
            "TOPOLOGY" => Some("default:rack 1".into()),
            "EVIL" => Some("'; rm -rf $HOME".into()),
            _ => None,
        })
    }

    #[rstest]
    #[case::plain(&["-Z", "--conf-server", "a:6817"], &["-Z", "--conf-server", "a:6817"])]
    #[case::the_peers_splice(&["--conf", r#"'Features=x Topology='"$TOPOLOGY"''"#], &["--conf", "Features=x Topology=default:rack 1"])]
    #[case::a_value_is_never_split_again(&["$EVIL"], &["'; rm -rf $HOME"])]
    #[case::braces(&["a${TOPOLOGY}b"], &["adefault:rack 1b"])]
    #[case::unset_is_nothing(&["[$NOPE]", "''", "$NOPE", "\"$NOPE\""], &["[]", "", ""])]
    #[case::continued_lines(&["a \\\n b", "\"c\\\nd\""], &["a", "b", "cd"])]
    #[case::lone_dollar(&["$", "$1", "${", "a$"], &["$", "$1", "${", "a$"])]
    #[case::single_quotes_keep_everything(&[r"'\$X'"], &[r"\$X"])]
    #[case::escapes(&[r#"a\ b "c\"d\n""#], &["a b", r#"c"d\n"#])]
    #[case::metacharacters_are_text(&["a;b", "|", "$(id)", "`id`", "*"], &["a;b", "|", "$(id)", "`id`", "*"])]
    #[case::nothing(&[], &[])]
    fn splits_as_a_shell_would(#[case] args: &[&str], #[case] expected: &[&str]) {
        assert_eq!(words(args).unwrap(), expected);
    }

    #[rstest]
    #[case(&["'a"], Error::Unclosed('\''))]
    #[case(&["\"a"], Error::Unclosed('"'))]
    #[case(&["a\\"], Error::TrailingBackslash)]
    fn refuses_what_has_no_end(#[case] args: &[&str], #[case] expected: Error) {
        assert_eq!(words(args).unwrap_err(), expected);
    }

    proptest! {
        #[test]
        fn a_quoted_word_comes_back_whole(word in any::<String>()) {
            let quoted = format!("'{}'", word.replace('\'', r"'\''"));
            prop_assert_eq!(split(&[quoted], |_| None).unwrap(), vec![word]);
        }

        #[test]
        fn any_input_ends(args in proptest::collection::vec(any::<String>(), 0..4)) {
            let _ = split(&args, |_| None);
        }
    }
}
