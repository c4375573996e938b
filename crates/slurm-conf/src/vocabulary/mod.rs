//! The words of slurm.conf and slurmdbd.conf, and which values of them Slurm can read. Its daemons end with an error on
//! a word that they do not know and on a value that they cannot read. The tables are those of 24.11 to 26.05; as a newer
//! Slurm may know more, what is found here is a note: the webhook makes a warning of it or, where it is told to, a refusal.

mod words;

use std::fmt;

use crate::catalogue::{File, Shape};
use crate::change::{is_known, known_names};
use crate::node_conf;
use crate::syntax::{Document, Origin, Pair, Statement};

use words::{
    PARTITION, SLURM_OTHER, SLURM_TIME, SLURM_U16, SLURM_U32, SLURM_U64, SLURM_YES_NO, SLURMDBD_TEXT,
    SLURMDBD_U16, SLURMDBD_U32, SLURMDBD_YES_NO, Takes, U16, U32, U64,
};

/// Something that Slurm would probably end with an error on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Where it stands, unless it is the only line.
    pub origin: Option<Origin>,
    /// The word, as written.
    pub key: String,
    /// What is wrong.
    pub kind: NoteKind,
}

/// What is wrong with a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoteKind {
    /// No known release has it.
    Unknown {
        /// What it was probably meant to be.
        near: Option<&'static str>,
    },
    /// Its value cannot be read.
    Value {
        /// As written.
        value: String,
        /// What can be read.
        wanted: String,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, key, kind } = self;
        if let Some(origin) = origin {
            write!(f, "{origin}: ")?;
        }
        match kind {
            NoteKind::Unknown { near: Some(near) } => {
                write!(f, "{key} is no parameter that is known here; is {near} meant? ")?;
            }
            NoteKind::Unknown { near: None } => {
                write!(
                    f,
                    "{key} is no parameter that is known here: check its spelling. "
                )?;
            }
            NoteKind::Value { value, wanted } => write!(f, "{key}={value} cannot be read: write {wanted}. ")?,
        }
        f.write_str("Slurm takes no file with it")
    }
}

/// Looks through a whole file.
pub fn notes(file: File, document: &Document) -> Vec<Note> {
    document
        .statements
        .iter()
        .flat_map(|statement| statement_notes(file, statement))
        .collect()
}

/// Looks through what follows the name on a `PartitionName` line.
pub fn partition_notes(attributes: &[Pair]) -> Vec<Note> {
    pair_notes(None, attributes, partition, || {
        PARTITION.iter().map(|(name, _)| *name).collect()
    })
}

fn statement_notes(file: File, statement: &Statement) -> Vec<Note> {
    let Statement {
        origin,
        head,
        attributes,
    } = statement;
    let origin = origin.as_ref();
    match file.shape(&head.key) {
        Shape::Single => pair_notes(
            origin,
            std::slice::from_ref(head),
            |key| single(file, key),
            || single_names(file),
        ),
        Shape::Record if head.is("PartitionName") => {
            let mut notes = partition_notes(attributes);
            for note in &mut notes {
                note.origin = origin.cloned();
            }
            notes
        }
        Shape::Record if head.is("NodeName") => {
            pair_notes(origin, attributes, node, || node_conf::names().collect())
        }
        Shape::Repeated | Shape::Record => Vec::new(),
    }
}

fn pair_notes(
    origin: Option<&Origin>,
    pairs: &[Pair],
    takes: impl Fn(&str) -> Option<Takes>,
    names: impl Fn() -> Vec<&'static str>,
) -> Vec<Note> {
    let judge = |Pair { key, value }: &Pair| {
        let kind = match takes(key) {
            None => NoteKind::Unknown {
                near: near(key, names()),
            },
            Some(takes) => NoteKind::Value {
                value: value.clone(),
                wanted: takes.wanted(value)?,
            },
        };
        Some(Note {
            origin: origin.cloned(),
            key: key.clone(),
            kind,
        })
    };
    pairs.iter().filter_map(judge).collect()
}

fn among(names: &[&str], key: &str) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case(key))
}

fn single(file: File, key: &str) -> Option<Takes> {
    let typed: &[(&[&str], Takes)] = match file {
        File::Slurm => &[
            (&SLURM_U16, U16),
            (&SLURM_U32, U32),
            (&SLURM_U64, U64),
            (&SLURM_YES_NO, Takes::YesNo),
            (&SLURM_TIME, Takes::Time),
            (&SLURM_OTHER, Takes::Text),
        ],
        File::Slurmdbd => &[
            (&SLURMDBD_U16, U16),
            (&SLURMDBD_U32, U32),
            (&SLURMDBD_YES_NO, Takes::YesNo),
            (&SLURMDBD_TEXT, Takes::Text),
        ],
        // Nobody asks about these: they come from ConfigMaps.
        File::Cgroup | File::Gres => return Some(Takes::Text),
    };
    let typed = typed.iter().find(|(names, _)| among(names, key));
    match typed {
        Some((_, takes)) => Some(*takes),
        None => (file == File::Slurm && is_known(key)).then_some(Takes::Text),
    }
}

fn single_names(file: File) -> Vec<&'static str> {
    match file {
        File::Slurm => known_names().collect(),
        File::Slurmdbd => [&SLURMDBD_U16[..], &SLURMDBD_U32, &SLURMDBD_YES_NO, &SLURMDBD_TEXT].concat(),
        File::Cgroup | File::Gres => Vec::new(),
    }
}

fn partition(key: &str) -> Option<Takes> {
    let known = PARTITION.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
    known.map(|(_, takes)| *takes)
}

/// On a `NodeName` line of the file, other than in what workers register with, any state may stand.
fn node(key: &str) -> Option<Takes> {
    node_conf::is_known(key).then(|| node_conf::most(key).map_or(Takes::Text, Takes::Number))
}

/// A name that differs by a slip or two.
fn near(key: &str, names: Vec<&'static str>) -> Option<&'static str> {
    let key = key.to_lowercase();
    names
        .into_iter()
        .map(|name| (strsim::osa_distance(&key, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= 2 && name.len() > 2 * distance)
        .min()
        .map(|(_, name)| name)
}

impl Takes {
    /// What to write instead of a value that cannot be read.
    fn wanted(self, value: &str) -> Option<String> {
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
            Self::Text => f.write_str("a text"),
            Self::Number(most) => write!(f, "a whole number up to {most}"),
            Self::YesNo => f.write_str("YES or NO"),
            Self::Time => f.write_str("minutes, hours:minutes:seconds, days-hours or UNLIMITED"),
            Self::Word(starts) => f.write_str(&starts.join(", ")),
        }
    }
}

/// `minutes[:seconds]`, `hours:minutes:seconds`, `days-hours[:minutes[:seconds]]`, or no end.
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
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::*;
    use crate::syntax::{parse, parse_pairs};

    fn said(file: File, text: &str) -> Vec<String> {
        let document = parse(file, text, &BTreeMap::new()).unwrap();
        notes(file, &document).iter().map(ToString::to_string).collect()
    }

    #[rstest]
    #[case("KillWait=60\nSchedulerParameters=bf_window=10\nDebugFlags=Backfill\nProlog=/a\nProlog=/b")]
    #[case("killwait=0x10\nMinJobAge=2k\nDefMemPerCPU=UNLIMITED\nUsePAM=yes\nTrackWCKey=0")]
    #[case("PriorityMaxAge=7-0\nPriorityDecayHalfLife=14-00:00:00\nPreemptExemptTime=-1")]
    #[case("NodeName=a[1-3] CPUs=4 State=CLOUD Gres=gpu:1\nNodeSet=x Feature=y\nDownNodes=a1 State=DOWN")]
    #[case(
        "PartitionName=DEFAULT MaxTime=60\nPartitionName=p Nodes=ALL MaxTime=1-0:30 State=UP OverSubscribe=FORCE:4"
    )]
    #[case("ControlMachine=old\nSlurmrestdParameters=new")]
    fn what_slurm_reads_is_not_noted(#[case] text: &str) {
        assert_eq!(said(File::Slurm, text), Vec::<String>::new());
    }

    #[rstest]
    #[case(
        "\nKilWait=60",
        "line 2: KilWait is no parameter that is known here; is KillWait meant? Slurm takes no file with it"
    )]
    #[case(
        "Frobnicate=1",
        "line 1: Frobnicate is no parameter that is known here: check its spelling. Slurm takes no file with it"
    )]
    #[case(
        "KillWait=soon",
        "line 1: KillWait=soon cannot be read: write a whole number up to 65535. Slurm takes no file with it"
    )]
    #[case(
        "UsePAM=maybe",
        "line 1: UsePAM=maybe cannot be read: write YES or NO. Slurm takes no file with it"
    )]
    #[case(
        "PriorityMaxAge=long",
        "line 1: PriorityMaxAge=long cannot be read: write minutes, hours:minutes:seconds, days-hours or UNLIMITED. \
         Slurm takes no file with it"
    )]
    #[case(
        "NodeName=a CPUs=many",
        "line 1: CPUs=many cannot be read: write a whole number up to 65535. Slurm takes no file with it"
    )]
    #[case(
        "NodeName=a Featrues=x",
        "line 1: Featrues is no parameter that is known here; is Features meant? Slurm takes no file with it"
    )]
    #[case(
        "PartitionName=p Nodes=ALL MaxTime=forever",
        "line 1: MaxTime=forever cannot be read: write minutes, hours:minutes:seconds, days-hours or UNLIMITED. \
         Slurm takes no file with it"
    )]
    fn what_slurm_ends_on_is_noted_with_what_to_write(#[case] text: &str, #[case] note: &str) {
        assert_eq!(said(File::Slurm, text), [note]);
    }

    #[test]
    fn slurmdbd_has_words_of_its_own() {
        assert_eq!(
            said(
                File::Slurmdbd,
                "ArchiveJobs=yes\nPurgeJobAfter=12months\nCommitDelay=1"
            ),
            Vec::<String>::new()
        );
        assert_eq!(said(File::Slurmdbd, "KillWait=30\nArchiveJobs=daily").len(), 2);
    }

    #[rstest]
    #[case("MaxTime=UNLIMITED State=up Default=YES MaxNodes=INFINITE AllowGroups=a,b", 0)]
    #[case("State=OPEN", 1)]
    #[case("Default=perhaps OverSubscribe=some", 2)]
    #[case("MaxTime=1-0 Maxtmie=4", 1)]
    fn the_rest_of_a_partition_line(#[case] text: &str, #[case] count: usize) {
        let notes = partition_notes(&parse_pairs(text).unwrap());
        assert_eq!(notes.len(), count, "{notes:?}");
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
