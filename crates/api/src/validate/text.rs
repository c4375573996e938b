//! Rules for text in configuration files, command lines and names.

use slurm_conf::node_conf::SHELL;

use crate::scalars::{GoDuration, IntOrString};
use crate::validate::path::Path;
use crate::validate::report::Report;

/// Maximum length of a DNS label.
pub(crate) const DNS_LABEL_MAX: usize = 63;
const DNS_SUBDOMAIN_MAX: usize = 253;

/// Lower-case letters, digits and inner dashes, at most 63 characters.
pub(crate) fn is_dns_label(text: &str) -> bool {
    text.len() <= DNS_LABEL_MAX
        && text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Labels like [`is_dns_label`] (of any length) separated by dots, at most 253 characters: names of most objects.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        label.starts_with(ends)
            && label.ends_with(ends)
            && label
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    text.len() <= DNS_SUBDOMAIN_MAX && text.split('.').all(label)
}

/// A key of a ConfigMap or a Secret.
pub(crate) fn is_data_key(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= DNS_SUBDOMAIN_MAX
        && text != "."
        && !text.starts_with("..")
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// The name part of a label or annotation key: at most 63 characters, alphanumeric at both ends.
fn is_qualified_name(text: &str) -> bool {
    text.len() <= DNS_LABEL_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// `[prefix/]name`.
pub(crate) fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_qualified_name(name),
        None => is_qualified_name(text),
    }
}

/// Empty, or like the name part of a key.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_qualified_name(text)
}

fn name_of(character: char) -> String {
    match character {
        '\n' | '\r' => "a line break".to_owned(),
        '\t' => "a tab".to_owned(),
        c if c.is_control() => format!("the control character U+{:04X}", u32::from(c)),
        c => format!("{c:?}"),
    }
}

/// Checks multi-line text that becomes part of a file.
pub(crate) fn lines(path: &Path, text: Option<&str>, report: &mut Report) {
    let odd = text.and_then(|text| {
        text.chars()
            .find(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t'))
    });
    if let Some(odd) = odd {
        report.refuse(path, format!("contains {}", name_of(odd)), "use plain text");
    }
}

/// Checks text that becomes part of one line of a file.
pub(crate) fn one_line(path: &Path, text: &str, report: &mut Report) {
    if let Some(odd) = text.chars().find(|c| c.is_control()) {
        report.refuse(
            path,
            format!(
                "contains {}, which would start a new line in the configuration",
                name_of(odd)
            ),
            "use a single line",
        );
    }
}

/// Checks text without spaces that becomes part of a file and of a command line.
pub(crate) fn word(path: &Path, text: &str, report: &mut Report) -> bool {
    let odd = text
        .chars()
        .find(|c| c.is_control() || c.is_whitespace() || SHELL.contains(c));
    if let Some(odd) = odd {
        report.refuse(
            path,
            format!(
                "{text:?} contains {}, which a shell or Slurm would interpret",
                name_of(odd)
            ),
            "remove spaces, quotes and shell characters",
        );
    }
    odd.is_none()
}

/// Checks a host name or an IP address.
pub(crate) fn host(path: &Path, text: &str, report: &mut Report) {
    if text.is_empty() {
        report.refuse(path, "is empty", "set a host name or an IP address");
    } else if !text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']'))
    {
        report.refuse(
            path,
            format!("{text:?} is not a valid host"),
            "use one host name or IP address, without a port",
        );
    }
}

/// Checks a port number.
pub(crate) fn port(path: &Path, port: i32, report: &mut Report) {
    if !(1..=65535).contains(&port) {
        report.refuse(
            path,
            format!("{port} is not a valid port"),
            "use a number from 1 to 65535",
        );
    }
}

/// Checks a number that must not be negative.
pub(crate) fn not_negative(path: &Path, number: i32, report: &mut Report) {
    if number < 0 {
        report.refuse(path, format!("{number} is negative"), "use 0 or more");
    }
}

/// Checks a duration of at least `least`.
pub(crate) fn duration(path: &Path, text: &GoDuration, least: std::time::Duration, report: &mut Report) {
    match text.parse() {
        Err(error) => {
            report.refuse(
                path,
                format!("{:?} is not a valid duration", text.0),
                remedy_of(&error.to_string()),
            );
        }
        Ok(duration) if duration < least => {
            let least = least.as_secs();
            report.refuse(
                path,
                format!("{} is too short", text.0),
                format!("use at least {least}s"),
            );
        }
        Ok(_) => {}
    }
}

/// Checks a duration of the Prometheus operator: `1h30m`, with units from years to milliseconds. Empty means unset.
pub(crate) fn prometheus_duration(path: &Path, text: Option<&str>, report: &mut Report) {
    let Some(text) = text else { return };
    if text != "0" && !is_prometheus_duration(text) {
        report.refuse(
            path,
            format!("{text:?} is not a valid Prometheus duration"),
            "use a number with a unit, such as 30s, 1m30s or 1h",
        );
    }
}

fn is_prometheus_duration(text: &str) -> bool {
    let mut rest = text;
    for unit in ["y", "w", "d", "h", "m", "s", "ms"] {
        let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let after = digits.strip_prefix(unit).filter(|_| digits.len() < rest.len());
        // The m of ms does not mean minutes.
        if let Some(after) = after.filter(|after| unit != "m" || !after.starts_with('s')) {
            rest = after;
        }
    }
    rest.is_empty()
}

/// Checks a whole number or a percentage. `least` is the minimum of the number; a percentage of 0 counts as 0.
pub(crate) fn number_or_percent(path: &Path, value: &IntOrString, least: u32, report: &mut Report) {
    // Scaled by a large total, 0% is the only percentage that gives 0.
    match value.scaled_up(100) {
        Err(_) => report.refuse(
            path,
            format!(
                "{:?} is neither a whole number nor a percentage",
                value.to_string()
            ),
            "use a number such as 3, or a percentage such as \"25%\"",
        ),
        Ok(number) if number < least => {
            report.refuse(
                path,
                format!("{value} is too small"),
                format!("use {least} or more, or a percentage above 0%"),
            );
        }
        Ok(_) => {}
    }
}

/// Checks that a percentage is at most 100%.
pub(crate) fn at_most_all(path: &Path, value: &IntOrString, report: &mut Report) {
    let percent = matches!(value, IntOrString::String(_));
    if percent && value.scaled_up(100).is_ok_and(|share| share > 100) {
        report.refuse(
            path,
            format!("{value} is more than 100%"),
            "use a percentage up to \"100%\"",
        );
    }
}

/// The remedy in an error text follows the semicolon.
fn remedy_of(error: &str) -> String {
    error
        .split_once("; ")
        .map_or(error, |(_, remedy)| remedy)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", true)]
    #[case("0", true)]
    #[case("30s", true)]
    #[case("1h30m", true)]
    #[case("500ms", true)]
    #[case("1m500ms", true)]
    #[case("1y2w3d4h5m6s7ms", true)]
    #[case("5 minutes", false)]
    #[case("30", false)]
    #[case("s", false)]
    #[case("1.5h", false)]
    #[case("1m1h", false)]
    fn durations_for_prometheus(#[case] text: &str, #[case] expected: bool) {
        let mut report = Report::default();
        prometheus_duration(&Path::spec(), Some(text), &mut report);
        assert_eq!(report.is_valid(), expected, "{report}");
    }
}
