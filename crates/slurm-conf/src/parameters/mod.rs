//! The parameters that Slurm 24.11 to 26.05 supports: the values that each accepts and what a change of it requires. This is
//! the only list of their names. Parameters of cgroup.conf and gres.conf are not listed, because admission does not check
//! them.

mod partition;
mod slurm_conf;
mod slurmdbd_conf;

use std::fmt;

use crate::catalogue::File;
use crate::node_conf;

/// A parameter on a line of its own.
pub(crate) type Parameter = (&'static str, Takes, Effect);

/// The accepted values of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// An integer up to this.
    Number(u64),
    YesNo,
    Time,
    /// Starts with one of these.
    Word(&'static [&'static str]),
    Text,
}

const TEXT: Takes = Takes::Text;
const YES_NO: Takes = Takes::YesNo;
const TIME: Takes = Takes::Time;
const U16: Takes = Takes::Number(u16::MAX as u64);
const U32: Takes = Takes::Number(u32::MAX as u64);
const U64: Takes = Takes::Number(u64::MAX);

/// What a change of a parameter requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A reconfiguration applies it.
    Reconfigure,
    /// A reconfiguration changes neither the listening ports nor the signing of messages, and daemons with different
    /// settings cannot communicate.
    RestartAll,
    /// Controls how tokens are verified.
    RestartTokenReaders,
    /// slurmrestd also reads it, but only when it starts.
    RestartSlurmrestd,
    RestartSlurmctldAndSlurmd,
    RestartSlurmdbd,
    /// Running steps would fail, or their records would be lost.
    EmptyCluster,
    /// Cannot be changed on a running cluster. The reason is the rest of a sentence.
    Forbidden(&'static str),
    /// Only some of these releases support it, and its effect was not tried: like an unknown parameter.
    Untried,
}

fn table(file: File) -> &'static [Parameter] {
    match file {
        File::Slurm => &slurm_conf::PARAMETERS,
        File::Slurmdbd => &slurmdbd_conf::PARAMETERS,
        File::Cgroup | File::Gres => &[],
    }
}

/// Returns a parameter by its name in any case.
pub(crate) fn find(file: File, key: &str) -> Option<Parameter> {
    let named = |(name, ..): &&Parameter| name.eq_ignore_ascii_case(key);
    table(file).iter().find(named).copied()
}

/// Returns the names to suggest for a misspelled parameter.
pub(crate) fn names(file: File) -> impl Iterator<Item = &'static str> {
    let current = table(file)
        .iter()
        .filter(|(_, _, effect)| *effect != Effect::Untried);
    current.map(|(name, ..)| *name)
}

/// Returns the accepted values of a partition attribute.
pub(crate) fn partition_attribute(key: &str) -> Option<Takes> {
    let known = partition::ATTRIBUTES
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(key));
    known.map(|(_, takes)| *takes)
}

/// Returns the names of all partition attributes.
pub(crate) fn partition_attributes() -> impl Iterator<Item = &'static str> {
    partition::ATTRIBUTES.iter().map(|(name, _)| *name)
}

impl Takes {
    /// Returns the accepted values if this value cannot be parsed.
    pub(crate) fn wanted(self, value: &str) -> Option<String> {
        let one_of = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(value));
        let begins_with = |start: &&str| {
            let head = value.get(..start.len());
            head.is_some_and(|head| head.eq_ignore_ascii_case(start))
        };
        let fits = match self {
            Self::Text => true,
            Self::Number(most) => node_conf::is_number(value, most),
            Self::YesNo => one_of(&["YES", "NO", "UP", "DOWN", "TRUE", "FALSE", "1", "0"]),
            Self::Time => is_time(value),
            Self::Word(starts) => starts.iter().any(begins_with),
        };
        (!fits).then(|| self.to_string())
    }
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("text"),
            Self::Number(most) => write!(f, "an integer up to {most}"),
            Self::YesNo => f.write_str("YES or NO"),
            Self::Time => f.write_str("minutes, hours:minutes:seconds, days-hours or UNLIMITED"),
            Self::Word(starts) => f.write_str(&starts.join(", ")),
        }
    }
}

/// `minutes[:seconds]`, `hours:minutes:seconds`, `days-hours[:minutes[:seconds]]`, or unlimited.
fn is_time(text: &str) -> bool {
    let numbers = |text: &str, most: usize| {
        let numbers: Vec<&str> = text.split(':').collect();
        numbers.len() <= most
            && numbers
                .iter()
                .all(|number| !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit()))
    };
    if ["-1", "INFINITE", "UNLIMITED"]
        .iter()
        .any(|word| word.eq_ignore_ascii_case(text))
    {
        return true;
    }
    match text.split_once('-') {
        Some((days, "")) => numbers(days, 1),
        Some((days, rest)) => numbers(days, 1) && numbers(rest, 3),
        None => numbers(text, 3),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;

    use super::*;

    #[test]
    fn every_parameter_is_listed_once() {
        for file in [File::Slurm, File::Slurmdbd] {
            let names: BTreeSet<_> = table(file).iter().map(|(name, ..)| name.to_lowercase()).collect();
            assert_eq!(names.len(), table(file).len(), "{file:?}");
        }
    }

    #[rstest]
    #[case("60", true)]
    #[case("1:30", true)]
    #[case("1:30:00", true)]
    #[case("2-", true)]
    #[case("2-12", true)]
    #[case("2-12:30:15", true)]
    #[case("infinite", true)]
    #[case("", false)]
    #[case("1h", false)]
    #[case("1:2:3:4", false)]
    #[case("1-2-3", false)]
    #[case("-5", false)]
    fn times_are_slurms(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(is_time(text), expected);
    }
}
