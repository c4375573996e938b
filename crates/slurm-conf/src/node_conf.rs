//! The parameters with which a worker registers, `Key=Value Key=Value …`, as accepted by `slurmd --conf`.
//!
//! slurmd exits with an error on an unknown parameter or an invalid value, and a worker that cannot register is useless.
//! Values that no Slurm version accepts are faults. A newer Slurm may support an unknown key, so it is only a note.

use std::collections::BTreeMap;

/// Characters with a special meaning in a shell or a command line. Some images run slurmd through a shell.
pub const SHELL: &[char] = &['\'', '"', '`', '$', '\\', ';', '&', '|', '<', '>', '#'];

/// The accepted values of a parameter.
#[derive(Debug, Clone, Copy)]
enum Takes {
    /// An integer up to this.
    Number(u64),
    /// One text value.
    Text,
    /// A list. If the key is repeated, the values are joined.
    List,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Reserved for the operator.
    Nothing { why: &'static str, remedy: &'static str },
}

const U16: Takes = Takes::Number(u16::MAX as u64);
const U32: Takes = Takes::Number(u32::MAX as u64);
const U64: Takes = Takes::Number(u64::MAX);

/// The parameters of a `NodeName` line, for all Slurm versions in use.
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
            remedy: "remove it and set template.spec.hostname instead",
        },
    ),
    (
        "NodeName",
        Takes::Nothing {
            why: "is the worker's host name",
            remedy: "remove it and set template.spec.hostname instead",
        },
    ),
    ("Parameters", Takes::List),
    (
        "Port",
        Takes::Nothing {
            why: "is set by the operator: slurmctld and the worker's probes use the cluster's SlurmdPort",
            remedy: "remove it",
        },
    ),
    ("Procs", U16),
    ("RealMemory", U64),
    ("Reason", Takes::Text),
    ("RestrictedCoresPerGPU", U16),
    ("Sockets", U16),
    ("SocketsPerBoard", U16),
    // In any other state, a registered worker never accepts jobs.
    ("State", Takes::Word(&["UNKNOWN", "DRAIN"])),
    ("SuspendTime", Takes::Text),
    ("ThreadsPerCore", U16),
    ("TmpDisk", U32),
    ("Topology", Takes::List),
    ("TRESWeights", Takes::List),
    ("Weight", U32),
];

/// The parsed parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeConf {
    /// Parameters by key, in the case of their first occurrence, without features.
    pub parameters: BTreeMap<String, String>,
    /// Features in their original order.
    pub features: Vec<String>,
    /// Probable mistakes.
    pub notes: Vec<Note>,
}

/// A probable mistake that does not prevent the worker from starting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Note {
    /// A key that no known Slurm version supports.
    #[error(
        "unknown node parameter {0}; check the spelling: slurmd does not start with an unknown parameter"
    )]
    Unknown(String),
    /// A repeated key.
    #[error("{0} is set twice; its values are joined with a comma")]
    Joined(String),
    /// An empty list of features.
    #[error("{0} has no value")]
    NoFeatures(String),
}

/// A parameter that no Slurm version accepts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not of the form `Key=Value`.
    #[error("{0:?} is not a Key=Value pair")]
    NotAPair(String),
    /// An invalid key.
    #[error("{0:?} is not a valid node parameter name")]
    Key(String),
    /// A character that a shell or Slurm would interpret.
    #[error("{word:?} contains {character:?}, which a shell or Slurm would interpret")]
    Character {
        /// The pair that contains it.
        word: String,
        /// The character.
        character: char,
    },
    /// `Key=` without a value: Slurm would use the next pair as its value.
    #[error("{0} has no value")]
    NoValue(String),
    /// A repeated key that accepts only one value.
    #[error("{0} is set twice")]
    Twice(String),
    /// Not an integer, or too large.
    #[error("{key}={value} is not an integer up to {most}")]
    Number {
        /// The parameter.
        key: String,
        /// The value, as written.
        value: String,
        /// The largest value that Slurm accepts.
        most: u64,
    },
    /// A word that is not one of the accepted words.
    #[error("with {key}={value} the worker would never accept a job")]
    Word {
        /// The parameter.
        key: String,
        /// The value, as written.
        value: String,
        /// The accepted words.
        words: &'static [&'static str],
    },
    /// A parameter that the operator sets itself.
    #[error("{key} {why}")]
    Owned {
        /// The parameter.
        key: String,
        /// The reason, as the rest of a sentence.
        why: &'static str,
        /// How to fix it.
        remedy: &'static str,
    },
}

impl Fault {
    /// How to fix it.
    pub fn remedy(&self) -> String {
        match self {
            Self::NotAPair(_) => "use Key=Value pairs separated by spaces".to_owned(),
            Self::Key(_) => "use a key of letters and digits".to_owned(),
            Self::Character { .. } => "remove quotes and shell characters".to_owned(),
            Self::NoValue(key) => format!("set {key}=VALUE or remove it"),
            Self::Twice(_) => "remove one of them".to_owned(),
            Self::Number { key, .. } => format!("set an integer, for example {key}=1"),
            Self::Word { key, words, .. } => {
                format!("remove {key} or set it to {}", words.join(" or "))
            }
            Self::Owned { remedy, .. } => (*remedy).to_owned(),
        }
    }
}

/// Parses the text. The values of repeated lists are joined, as in Slinky. All faults are reported, not only the
/// first.
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
            .filter_map(|(key, value)| validate_value(key, value)),
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

/// The largest value of an integer parameter.
pub(crate) fn most(key: &str) -> Option<u64> {
    match takes(key)? {
        Takes::Number(most) => Some(most),
        Takes::Text | Takes::List | Takes::Word(_) | Takes::Nothing { .. } => None,
    }
}

fn validate_value(key: &str, value: &str) -> Option<Fault> {
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

/// Whether a value is an integer in Slurm syntax: decimal, `0x…` or `0…`, with an optional `k` suffix for wide parameters.
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
    // Rust's integer parser also accepts a sign.
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
    #[case("=1", "\"\" is not a valid node parameter name")]
    #[case("A-B=1", "\"A-B\" is not a valid node parameter name")]
    #[case("A=b'c", "\"A=b'c\" contains '\\'', which a shell or Slurm would interpret")]
    #[case(
        "A=$(reboot)",
        "\"A=$(reboot)\" contains '$', which a shell or Slurm would interpret"
    )]
    #[case("A=`id`", "\"A=`id`\" contains '`', which a shell or Slurm would interpret")]
    #[case(
        "A=1;reboot",
        "\"A=1;reboot\" contains ';', which a shell or Slurm would interpret"
    )]
    #[case("#x=1", "\"#x=1\" contains '#', which a shell or Slurm would interpret")]
    #[case("Weight=", "Weight has no value")]
    #[case("Weight=abc", "Weight=abc is not an integer up to 4294967295")]
    #[case("Weight=-1", "Weight=-1 is not an integer up to 4294967295")]
    #[case("Weight=+1", "Weight=+1 is not an integer up to 4294967295")]
    #[case("Weight=4294967296", "Weight=4294967296 is not an integer up to 4294967295")]
    #[case("Weight=1.5", "Weight=1.5 is not an integer up to 4294967295")]
    #[case("CPUs=65536", "CPUs=65536 is not an integer up to 65535")]
    #[case("CPUs=1k", "CPUs=1k is not an integer up to 65535")]
    #[case("CPUs=08", "CPUs=08 is not an integer up to 65535")]
    #[case(
        "RealMemory=64G",
        "RealMemory=64G is not an integer up to 18446744073709551615"
    )]
    #[case("Weight=1 weight=2", "weight is set twice")]
    #[case("nodename=x", "nodename is the worker's host name")]
    #[case("NodeHostname=x", "NodeHostname is the worker's host name")]
    #[case("State=DOWN", "with State=DOWN the worker would never accept a job")]
    #[case("State=FUTURE", "with State=FUTURE the worker would never accept a job")]
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
