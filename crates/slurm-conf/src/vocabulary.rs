//! Notes on parameters that Slurm would not accept. Slurm daemons exit with an error on an unknown parameter and on a value
//! that they cannot parse. A newer Slurm may support more than [`parameters`](crate::parameters) lists, so each finding is a
//! note: the webhook returns it as a warning, or rejects the object if it is strict.

use std::fmt;

use crate::catalogue::{File, Shape};
use crate::node_conf;
use crate::parameters::{self, Takes};
use crate::syntax::{Document, Origin, Pair, Statement};

/// A line on which Slurm would probably exit with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The location, unless it is the only line.
    pub origin: Option<Origin>,
    /// The parameter, as written.
    pub key: String,
    /// The problem.
    pub kind: NoteKind,
}

/// The problem with a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoteKind {
    /// No known release supports it.
    Unknown {
        /// The parameter that was probably meant.
        near: Option<&'static str>,
    },
    /// Its value cannot be parsed.
    Value {
        /// The value, as written.
        value: String,
        /// The accepted values.
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
                write!(f, "unknown parameter {key}; did you mean {near}? ")?;
            }
            NoteKind::Unknown { near: None } => {
                write!(f, "unknown parameter {key}; check the spelling. ")?;
            }
            NoteKind::Value { value, wanted } => write!(f, "invalid value {key}={value}; use {wanted}. ")?,
        }
        f.write_str("Slurm rejects a file that contains it")
    }
}

/// Returns the notes for a whole file.
pub fn notes(file: File, document: &Document) -> Vec<Note> {
    document
        .statements
        .iter()
        .flat_map(|statement| statement_notes(file, statement))
        .collect()
}

/// Returns the notes for the attributes of a `PartitionName` line.
pub fn partition_notes(attributes: &[Pair]) -> Vec<Note> {
    pair_notes(None, attributes, parameters::partition_attribute, || {
        parameters::partition_attributes().collect()
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
            || parameters::names(file).collect(),
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
    let note = |Pair { key, value }: &Pair| {
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
    pairs.iter().filter_map(note).collect()
}

fn single(file: File, key: &str) -> Option<Takes> {
    match file {
        File::Slurm | File::Slurmdbd => parameters::find(file, key).map(|(_, takes, _)| takes),
        // These files come from ConfigMaps and are not checked.
        File::Cgroup | File::Gres => Some(Takes::Text),
    }
}

/// A `NodeName` line in the file accepts any state, unlike the parameters with which workers register.
fn node(key: &str) -> Option<Takes> {
    node_conf::is_known(key).then(|| node_conf::most(key).map_or(Takes::Text, Takes::Number))
}

/// Returns a name that differs by one or two typos.
fn near(key: &str, names: Vec<&'static str>) -> Option<&'static str> {
    let key = key.to_lowercase();
    names
        .into_iter()
        .map(|name| (strsim::osa_distance(&key, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= 2 && name.len() > 2 * distance)
        .min()
        .map(|(_, name)| name)
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
        "line 2: unknown parameter KilWait; did you mean KillWait? Slurm rejects a file that contains it"
    )]
    #[case(
        "Frobnicate=1",
        "line 1: unknown parameter Frobnicate; check the spelling. Slurm rejects a file that contains it"
    )]
    #[case(
        "KillWait=soon",
        "line 1: invalid value KillWait=soon; use an integer up to 65535. Slurm rejects a file that contains it"
    )]
    #[case(
        "UsePAM=maybe",
        "line 1: invalid value UsePAM=maybe; use YES or NO. Slurm rejects a file that contains it"
    )]
    #[case(
        "PriorityMaxAge=long",
        "line 1: invalid value PriorityMaxAge=long; use minutes, hours:minutes:seconds, days-hours or UNLIMITED. \
         Slurm rejects a file that contains it"
    )]
    #[case(
        "NodeName=a CPUs=many",
        "line 1: invalid value CPUs=many; use an integer up to 65535. Slurm rejects a file that contains it"
    )]
    #[case(
        "NodeName=a Featrues=x",
        "line 1: unknown parameter Featrues; did you mean Features? Slurm rejects a file that contains it"
    )]
    #[case(
        "PartitionName=p Nodes=ALL MaxTime=forever",
        "line 1: invalid value MaxTime=forever; use minutes, hours:minutes:seconds, days-hours or UNLIMITED. \
         Slurm rejects a file that contains it"
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
}
