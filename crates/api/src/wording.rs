//! Counts and lists in messages: conditions, events, and answers of the webhook.

/// Formats a count: `1 worker`, `2 workers`.
pub fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Lists the first `most` names and the number of the others.
pub fn listed<T: ToString>(names: impl IntoIterator<Item = T>, most: usize) -> String {
    let mut names = names.into_iter();
    let shown: Vec<String> = names.by_ref().take(most).map(|name| name.to_string()).collect();
    let shown = shown.join(", ");
    match names.count() {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, "0 workers")]
    #[case(1, "1 worker")]
    #[case(2, "2 workers")]
    fn one_has_no_plural(#[case] count: usize, #[case] expected: &str) {
        assert_eq!(counted(count, "worker"), expected);
    }

    #[rstest]
    #[case(&[], "")]
    #[case(&["a", "b"], "a, b")]
    #[case(&["a", "b", "c", "d"], "a, b and 2 more")]
    fn a_long_list_is_cut(#[case] names: &[&str], #[case] expected: &str) {
        assert_eq!(listed(names, 2), expected);
    }
}
