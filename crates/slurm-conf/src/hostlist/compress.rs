//! Compression of many names into few patterns: names that differ only in their last number share a bracket group.

use std::collections::BTreeMap;

use super::{Hostlist, HostlistError, MAX_RANGE, Part, Pattern, Range, is_name_text};

/// The maximum number of digits that always fits into a `u64`.
const MAX_DIGITS: usize = 19;

/// A name split at its last number.
struct Split<'a> {
    prefix: &'a str,
    suffix: &'a str,
    /// The number and its digit count; `None` for a name without digits.
    number: Option<(u64, usize)>,
}

/// Names that differ only in their number.
#[derive(Default)]
struct Group {
    without_number: bool,
    numbers: Vec<(u64, usize)>,
}

pub(super) fn compress<I>(names: I) -> Result<Hostlist, HostlistError>
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    let names: Vec<I::Item> = names.into_iter().collect();
    // A cluster has few groups and many numbers, and sorting numbers is much cheaper than sorting names.
    let mut groups: BTreeMap<(&str, &str), Group> = BTreeMap::new();
    for name in &names {
        let name = name.as_ref();
        if name.is_empty() || !is_name_text(name) {
            return Err(HostlistError::Name(name.to_owned()));
        }
        let Split {
            prefix,
            suffix,
            number,
        } = split(name);
        let group = groups.entry((prefix, suffix)).or_default();
        match number {
            Some(number) => group.numbers.push(number),
            None => group.without_number = true,
        }
    }

    let mut patterns = Vec::new();
    for (
        (prefix, suffix),
        Group {
            without_number,
            mut numbers,
        },
    ) in groups
    {
        if without_number {
            patterns.push(pattern(prefix, None, suffix));
        }
        numbers.sort_unstable();
        numbers.dedup();
        match ranges(&numbers).as_slice() {
            [] => {}
            [one] if one.low == one.high => {
                patterns.push(pattern(prefix, Some(Part::Text(one.to_string())), suffix));
            }
            many => patterns.push(pattern(prefix, Some(Part::Numbers(many.to_vec())), suffix)),
        }
    }
    Ok(Hostlist { patterns })
}

fn pattern(prefix: &str, middle: Option<Part>, suffix: &str) -> Pattern {
    let text = |text: &str| (!text.is_empty()).then(|| Part::Text(text.to_owned()));
    Pattern {
        parts: text(prefix)
            .into_iter()
            .chain(middle)
            .chain(text(suffix))
            .collect(),
    }
}

fn split(name: &str) -> Split<'_> {
    let plain = Split {
        prefix: name,
        suffix: "",
        number: None,
    };
    let Some(last) = name.rfind(|c: char| c.is_ascii_digit()) else {
        return plain;
    };
    let (head, suffix) = name.split_at(last + 1);
    let prefix = head.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = head.get(prefix.len()..).unwrap_or_default();
    match digits.parse() {
        Ok(number) if digits.len() <= MAX_DIGITS => Split {
            prefix,
            suffix,
            number: Some((number, digits.len())),
        },
        _ => plain,
    }
}

/// The sorted numbers of one group, as ranges. A number extends a range if it follows the last number of the
/// range and matches its width; for example, `1, 01, 2, 02` become two ranges.
fn ranges(numbers: &[(u64, usize)]) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    // There is at most one open range per width, so this list stays short.
    let mut open: Vec<usize> = Vec::new();
    for (number, digits) in numbers.iter().copied() {
        open.retain(|at| {
            ranges
                .get(*at)
                .is_some_and(|range| range.high.saturating_add(1) >= number)
        });
        let fits = |range: &Range| {
            range.high.checked_add(1) == Some(number)
                && digits == range.width.max(decimal_digits(number))
                && range.len() < MAX_RANGE
        };
        let goes_on = open.iter().copied().find(|at| ranges.get(*at).is_some_and(fits));
        if let Some(range) = goes_on.and_then(|at| ranges.get_mut(at)) {
            range.high = number;
        } else {
            open.push(ranges.len());
            ranges.push(Range {
                low: number,
                high: number,
                width: digits,
            });
        }
    }
    ranges
}

fn decimal_digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}
