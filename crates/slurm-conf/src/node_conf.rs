//! The parameters that a worker registers with, `Key=Value Key=Value …`, as `slurmd --conf` takes them.
//!
//! slurmd ends with an error on a parameter that it does not know or cannot read, and a worker that cannot register is of
//! no use: what no Slurm takes is a fault. A key that is not known here may be one of a newer Slurm and is only noted.

use std::collections::BTreeMap;

/// Characters that a shell, or the splitting of a command line, gives a meaning to. Some images run one.
const SHELL: &[char] = &['\'', '"', '`', '$', '\\', ';', '&', '|', '<', '>', '#'];

/// What a parameter takes.
#[derive(Debug, Clone, Copy)]
enum Takes {
    /// A whole number up to this.
    Number(u64),
    /// One text.
    Text,
    /// A list; a key that comes twice has the values of both.
    List,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Nothing from the user.
    Nothing { why: &'static str, remedy: &'static str },
}

const U16: Takes = Takes::Number(u16::MAX as u64);
const U32: Takes = Takes::Number(u32::MAX as u64);
const U64: Takes = Takes::Number(u64::MAX);

/// The parameters of a `NodeName` line, of all versions of Slurm that are in use.
const KNOWN: [(&str, Takes); 30] = [
    ("BcastAddr", Takes::Text),
    ("Boards", U16),
    ("CoreSpecCount", U16),
    ("CoresPerSocket", U16),
    ("CPUs", U16),
    ("CPUSpecList", Takes::List),
    ("CpuBind", Takes::Text),
    ("Feature", Takes::List),
    ("Features", Takes::List),
    ("Gres", Takes::List),
    ("GresConf", Takes::List),
    ("MemSpecLimit", U64),
    ("NodeAddr", Takes::Text),
    (
        "NodeHostname",
        Takes::Nothing {
            why: "is the worker's host name",
            remedy: "leave it out; set template.spec.hostname instead",
        },
    ),
    (
        "NodeName",
        Takes::Nothing {
            why: "is the worker's host name",
            remedy: "leave it out; set template.spec.hostname instead",
        },
    ),
    ("Parameters", Takes::List),
    (
        "Port",
        Takes::Nothing {
            why: "is set by the operator: slurmctld and the worker's probes use the cluster's SlurmdPort",
            remedy: "leave it out",
        },
    ),
    ("Procs", U16),
    ("RealMemory", U64),
    ("Reason", Takes::Text),
    ("RestrictedCoresPerGPU", U16),
    ("Sockets", U16),
    ("SocketsPerBoard", U16),
    // In any other state a worker that registers takes no job, ever.
    ("State", Takes::Word(&["UNKNOWN", "DRAIN"])),
    ("SuspendTime", Takes::Text),
    ("ThreadsPerCore", U16),
    ("TmpDisk", U32),
    ("Topology", Takes::List),
    ("TRESWeights", Takes::List),
    ("Weight", U32),
];

/// What a text says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeConf {
    /// Parameters by key, in the case that each was first written in, without features.
    pub parameters: BTreeMap<String, String>,
    /// Features in the order in which they were written.
    pub features: Vec<String>,
    /// What is probably not meant.
    pub notes: Vec<Note>,
}

/// Something that works but is probably not meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Note {
    /// A key that no known version of Slurm has.
    #[error(
        "{0} is no node parameter that is known here: check its spelling; slurmd does not start with one that it does not know"
    )]
    Unknown(String),
    /// A key that comes twice.
    #[error("{0} is there twice; the values are joined with a comma")]
    Joined(String),
    /// A list of features with nothing in it.
    #[error("{0} has no value")]
    NoFeatures(String),
}

/// Something that no Slurm takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not of the form `Key=Value`.
    #[error("{0:?} is not a Key=Value pair")]
    NotAPair(String),
    /// A key that cannot be one.
    #[error("{0:?} is not a node parameter")]
    Key(String),
    /// A character that a shell or Slurm would take for something else.
    #[error("{word:?} holds {character:?}, which a shell or Slurm would take for something else")]
    Character {
        /// The pair that it stands in.
        word: String,
        /// Which one.
        character: char,
    },
    /// `Key=` with nothing behind it: Slurm would take the next pair for its value.
    #[error("{0} has no value")]
    NoValue(String),
    /// A key that takes one value and comes twice.
    #[error("{0} is there twice")]
    Twice(String),
    /// Not a number, or too large.
    #[error("{key}={value} is not a whole number up to {most}")]
    Number {
        /// The parameter.
        key: String,
        /// What was written.
        value: String,
        /// The largest that Slurm takes.
        most: u64,
    },
    /// A word that is none of those that work.
    #[error("{key}={value} would keep the worker from ever taking a job")]
    Word {
        /// The parameter.
        key: String,
        /// What was written.
        value: String,
        /// The words that work.
        words: &'static [&'static str],
    },
    /// A parameter that the operator sets itself.
    #[error("{key} {why}")]
    Owned {
        /// The parameter.
        key: String,
        /// The reason, as the rest of a sentence.
        why: &'static str,
        /// What to do.
        remedy: &'static str,
    },
}

impl Fault {
    /// What to write instead.
    pub fn remedy(&self) -> String {
        match self {
            Self::NotAPair(_) => "write Key=Value with blanks between pairs".to_owned(),
            Self::Key(_) => "write a key of letters and digits".to_owned(),
            Self::Character { .. } => "write it without quotes and shell characters".to_owned(),
            Self::NoValue(key) => format!("write {key}=VALUE, or leave it out"),
            Self::Twice(_) => "leave one of them out".to_owned(),
            Self::Number { key, .. } => format!("write {key}= and a number, such as {key}=1"),
            Self::Word { key, words, .. } => {
                format!("leave {key} out, or write {}", words.join(" or "))
            }
            Self::Owned { remedy, .. } => (*remedy).to_owned(),
        }
    }
}

/// Reads the text. A list that comes twice has the values of both, as with Slinky. All faults are reported, not only
/// the first.
pub fn parse(text: &str) -> Result<NodeConf, Vec<Fault>> {
    let mut conf = NodeConf::default();
    let mut faults = Vec::new();
    for word in text.split_whitespace() {
        if let Err(fault) = conf.add(word) {
            faults.push(fault);
        }
    }
    faults.extend(
        conf.parameters
            .iter()
            .filter_map(|(key, value)| judge(key, value)),
    );
    let unknown = conf.parameters.keys().filter(|key| takes(key).is_none());
    conf.notes.extend(unknown.cloned().map(Note::Unknown));
    if faults.is_empty() { Ok(conf) } else { Err(faults) }
}

impl NodeConf {
    fn add(&mut self, word: &str) -> Result<(), Fault> {
        if let Some(character) = word.chars().find(|c| c.is_control() || SHELL.contains(c)) {
            return Err(Fault::Character {
                word: word.to_owned(),
                character,
            });
        }
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| Fault::NotAPair(word.to_owned()))?;
        if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(Fault::Key(key.to_owned()));
        }
        if key.eq_ignore_ascii_case("feature") || key.eq_ignore_ascii_case("features") {
            let before = self.features.len();
            let features = value.split(',').filter(|feature| !feature.is_empty());
            self.features.extend(features.map(str::to_owned));
            if self.features.len() == before {
                self.notes.push(Note::NoFeatures(key.to_owned()));
            }
            return Ok(());
        }
        if value.is_empty() {
            return Err(Fault::NoValue(key.to_owned()));
        }
        let known = self
            .parameters
            .keys()
            .find(|known| known.eq_ignore_ascii_case(key));
        let Some(known) = known.cloned() else {
            self.parameters.insert(key.to_owned(), value.to_owned());
            return Ok(());
        };
        if !matches!(takes(key), None | Some(Takes::List | Takes::Nothing { .. })) {
            return Err(Fault::Twice(key.to_owned()));
        }
        if let Some(values) = self.parameters.get_mut(&known) {
            values.push(',');
            values.push_str(value);
        }
        self.notes.push(Note::Joined(key.to_owned()));
        Ok(())
    }
}

fn takes(key: &str) -> Option<Takes> {
    let known = KNOWN.iter().find(|(known, _)| known.eq_ignore_ascii_case(key));
    known.map(|(_, takes)| *takes)
}

/// The names of the known parameters.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|(name, _)| *name)
}

/// Whether a parameter is known.
pub(crate) fn is_known(key: &str) -> bool {
    takes(key).is_some()
}

/// The largest value of a parameter that is a number.
pub(crate) fn most(key: &str) -> Option<u64> {
    match takes(key)? {
        Takes::Number(most) => Some(most),
        Takes::Text | Takes::List | Takes::Word(_) | Takes::Nothing { .. } => None,
    }
}

fn judge(key: &str, value: &str) -> Option<Fault> {
    match takes(key)? {
        Takes::Text | Takes::List => None,
        Takes::Number(most) => (!is_number(value, most)).then(|| Fault::Number {
            key: key.to_owned(),
            value: value.to_owned(),
            most,
        }),
        Takes::Word(words) => {
            let fits = words.iter().any(|word| word.eq_ignore_ascii_case(value));
            (!fits).then(|| Fault::Word {
                key: key.to_owned(),
                value: value.to_owned(),
                words,
            })
        }
        Takes::Nothing { why, remedy } => Some(Fault::Owned {
            key: key.to_owned(),
            why,
            remedy,
        }),
    }
}

/// A number as Slurm reads it: decimal, `0x…` or `0…`, with a `k` behind where it is a wide one.
pub(crate) fn is_number(text: &str, most: u64) -> bool {
    if ["UNLIMITED", "INFINITE"]
        .iter()
        .any(|word| word.eq_ignore_ascii_case(text))
    {
        return true;
    }
    let wide = most > u64::from(u16::MAX);
    let (digits, unit) = match text.strip_suffix(['k', 'K']).filter(|_| wide) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) => (hexadecimal, 16),
        None if digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    // The parser of Rust takes a sign too.
    digits.chars().all(|c| c.is_digit(radix))
        && u64::from_str_radix(digits, radix)
            .ok()
            .and_then(|number| number.checked_mul(unit))
            .is_some_and(|number| number <= most)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn pairs_are_read_and_features_are_collected() {
        let conf = parse("Gres=gpu:2 feature=a,b  Features=c\n gres=fpga:1 Weight=5").unwrap();
        assert_eq!(conf.features, ["a", "b", "c"]);
        let parameters: Vec<_> = conf.parameters.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(parameters, ["Gres=gpu:2,fpga:1", "Weight=5"]);
        assert_eq!(conf.notes, [Note::Joined("gres".to_owned())]);
    }

    #[rstest]
    #[case("")]
    #[case("Weight=100")]
    #[case("Features=a,b")]
    #[case("Gres=gpu:2")]
    #[case("Gres=gpu:h100:8(S:0-1) Weight=10\nFeatures=a,b\n")]
    #[case("CPUs=64 Boards=1 SocketsPerBoard=2 CoresPerSocket=16 ThreadsPerCore=2 RealMemory=257000")]
    #[case("cpus=0x10 tmpdisk=1k MemSpecLimit=1024 CoreSpecCount=2")]
    #[case("Weight=4294967295 TmpDisk=UNLIMITED")]
    #[case("Topology=default:s1,blocks:b2 TRESWeights=CPU=1.0,Mem=0.25G CpuBind=core")]
    #[case("State=UNKNOWN")]
    #[case("State=drain Reason=burn-in")]
    fn what_slurm_takes_passes_without_a_word(#[case] text: &str) {
        assert_eq!(parse(text).unwrap().notes, []);
    }

    #[rstest]
    #[case("Foo=1", Note::Unknown("Foo".to_owned()))]
    #[case("Wieght=1", Note::Unknown("Wieght".to_owned()))]
    #[case("Gres=gpu:1 gres=gpu:2", Note::Joined("gres".to_owned()))]
    #[case("Features=", Note::NoFeatures("Features".to_owned()))]
    #[case("Features=,", Note::NoFeatures("Features".to_owned()))]
    fn what_is_probably_not_meant_is_noted(#[case] text: &str, #[case] note: Note) {
        assert_eq!(parse(text).unwrap().notes, [note]);
    }

    #[rstest]
    #[case("Weight", "\"Weight\" is not a Key=Value pair")]
    #[case("=1", "\"\" is not a node parameter")]
    #[case("A-B=1", "\"A-B\" is not a node parameter")]
    #[case(
        "A=b'c",
        "\"A=b'c\" holds '\\'', which a shell or Slurm would take for something else"
    )]
    #[case(
        "A=$(reboot)",
        "\"A=$(reboot)\" holds '$', which a shell or Slurm would take for something else"
    )]
    #[case(
        "A=`id`",
        "\"A=`id`\" holds '`', which a shell or Slurm would take for something else"
    )]
    #[case(
        "A=1;reboot",
        "\"A=1;reboot\" holds ';', which a shell or Slurm would take for something else"
    )]
    #[case(
        "#x=1",
        "\"#x=1\" holds '#', which a shell or Slurm would take for something else"
    )]
    #[case("Weight=", "Weight has no value")]
    #[case("Weight=abc", "Weight=abc is not a whole number up to 4294967295")]
    #[case("Weight=-1", "Weight=-1 is not a whole number up to 4294967295")]
    #[case("Weight=+1", "Weight=+1 is not a whole number up to 4294967295")]
    #[case(
        "Weight=4294967296",
        "Weight=4294967296 is not a whole number up to 4294967295"
    )]
    #[case("Weight=1.5", "Weight=1.5 is not a whole number up to 4294967295")]
    #[case("CPUs=65536", "CPUs=65536 is not a whole number up to 65535")]
    #[case("CPUs=1k", "CPUs=1k is not a whole number up to 65535")]
    #[case("CPUs=08", "CPUs=08 is not a whole number up to 65535")]
    #[case(
        "RealMemory=64G",
        "RealMemory=64G is not a whole number up to 18446744073709551615"
    )]
    #[case("Weight=1 weight=2", "weight is there twice")]
    #[case("nodename=x", "nodename is the worker's host name")]
    #[case("NodeHostname=x", "NodeHostname is the worker's host name")]
    #[case("State=DOWN", "State=DOWN would keep the worker from ever taking a job")]
    #[case("State=FUTURE", "State=FUTURE would keep the worker from ever taking a job")]
    fn what_no_slurm_takes_is_a_fault(#[case] text: &str, #[case] message: &str) {
        let faults = parse(text).unwrap_err();
        let messages: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(messages, [message]);
        assert!(faults.iter().all(|fault| !fault.remedy().is_empty()));
    }

    #[test]
    fn every_fault_is_told() {
        let faults = parse("State=DOWN Port=1 Weight=abc Foo=1").unwrap_err();
        assert_eq!(faults.len(), 3, "{faults:?}");
    }
}
