//! Checks for a configuration that can be parsed but that slurmctld cannot run with.
//!
//! The operator and the webhook run all of them ([`check`]) before they accept a text. `init` only checks for missing files
//! ([`missing_files`]) before it passes a configuration to slurmctld, because slurmctld waits a minute for each of them. It
//! leaves everything else to slurmctld, which reports an invalid line at once, and may support more than these checks do.

use std::fmt;

use crate::catalogue::File;
use crate::hostlist::Hostlist;
use crate::slurm_conf::unfit_select_type;
use crate::syntax::{Document, Origin, Statement};
use crate::topology;
use crate::vocabulary::{self, Note};

/// Records and attributes whose value is a host list.
const HOST_LISTS: [(&str, Option<&str>); 5] = [
    ("NodeName", None),
    ("DownNodes", None),
    ("FrontendName", None),
    ("NodeSet", Some("Nodes")),
    ("PartitionName", Some("Nodes")),
];

/// The result of [`check`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The files that the configuration requires but that do not exist.
    pub missing_files: Vec<MissingFile>,
    /// The lines that prevent slurmctld from running or workers from registering.
    pub flaws: Vec<Flaw>,
    /// The lines that the known Slurm releases would reject.
    pub notes: Vec<Note>,
}

/// Checks a slurm.conf with the files that it includes. `has` returns whether slurmctld can find a file.
pub fn check(document: &Document, has: impl Fn(&str) -> bool) -> Report {
    Report {
        missing_files: missing_files(document, has),
        flaws: flaws(document),
        notes: vocabulary::notes(File::Slurm, document),
    }
}

/// A missing file. slurmctld waits a minute for it and then exits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingFile {
    /// A file in an `Include` line.
    Included {
        /// The line.
        origin: Origin,
        /// The file.
        file: String,
    },
    /// A file that the topology plugin requires.
    Topology {
        /// The line, if it was parsed from a text.
        origin: Option<Origin>,
        /// The value of `TopologyPlugin`.
        plugin: String,
        /// The accepted files, of which one is required.
        files: &'static [&'static str],
    },
}

impl fmt::Display for MissingFile {
    /// Does not include the line, which callers add as a prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Included { file, .. } => write!(f, "Include {file}"),
            Self::Topology { plugin, files, .. } => {
                write!(f, "TopologyPlugin={plugin} needs {}", files.join(" or "))
            }
        }
    }
}

impl MissingFile {
    /// The location of the line.
    pub fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Included { origin, .. } => Some(origin),
            Self::Topology { origin, .. } => origin.as_ref(),
        }
    }
}

/// Returns the files that a configuration requires but that do not exist. `has` returns whether slurmctld can find a file. Slurm
/// expands names with a `%` on each host, so these are not checked.
pub fn missing_files(document: &Document, has: impl Fn(&str) -> bool) -> Vec<MissingFile> {
    let included = document
        .includes
        .iter()
        .filter(|(_, file)| !file.contains('%') && !has(file))
        .map(|(origin, file)| MissingFile::Included {
            origin: origin.clone(),
            file: file.clone(),
        });
    let topology = topology::plugin_without_file(document, &has).map(|(line, files)| MissingFile::Topology {
        origin: line.origin.clone(),
        plugin: line.head.value.clone(),
        files,
    });
    included.chain(topology).collect()
}

/// A line that prevents slurmctld from running or workers from registering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// Workers register dynamically, which Slurm supports with one selection plugin only.
    SelectType {
        /// The line.
        origin: Option<Origin>,
        /// The value.
        value: String,
    },
    /// An invalid host list.
    Hosts {
        /// The line.
        origin: Option<Origin>,
        /// The parameter or attribute.
        key: &'static str,
        /// The error.
        error: String,
    },
}

impl Flaw {
    /// How to fix the line.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::SelectType { .. } => "remove SelectType",
            Self::Hosts { .. } => "use names such as gpu-[0-3,7],login1",
        }
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::SelectType { origin, .. } | Self::Hosts { origin, .. }) = self;
        if let Some(origin) = origin {
            write!(f, "{origin}: ")?;
        }
        match self {
            Self::SelectType { value, .. } => write!(
                f,
                "SelectType={value} is not supported: workers register dynamically, which requires select/cons_tres"
            ),
            Self::Hosts { key, error, .. } => write!(f, "{key} is not a valid host list: {error}"),
        }
    }
}

/// The flaws in a document.
pub fn flaws(document: &Document) -> Vec<Flaw> {
    let select_type = unfit_select_type(document).map(|line| Flaw::SelectType {
        origin: line.origin.clone(),
        value: line.head.value.clone(),
    });
    select_type
        .into_iter()
        .chain(document.statements.iter().flat_map(host_lists))
        .collect()
}

/// The flaws in the host lists of one line.
pub fn host_lists(statement: &Statement) -> Vec<Flaw> {
    let flaw = |(record, attribute): &(&'static str, Option<&'static str>)| {
        if !statement.head.is(record) {
            return None;
        }
        let (key, value) = match *attribute {
            Some(attribute) => (attribute, statement.attribute(attribute)?),
            None => (*record, statement.head.value.as_str()),
        };
        let error = value.parse::<Hostlist>().err()?;
        Some(Flaw::Hosts {
            origin: statement.origin.clone(),
            key,
            error: error.to_string(),
        })
    };
    HOST_LISTS.iter().filter_map(flaw).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::*;
    use crate::syntax::parse;

    fn document(text: &str, included: &[(&str, &str)]) -> Document {
        let included: BTreeMap<String, String> = included
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        parse(File::Slurm, text, &included).unwrap()
    }

    #[rstest]
    #[case::nothing("KillWait=30", &[], &[])]
    #[case::found("Include a.conf", &[("a.conf", "KillWait=30")], &[])]
    #[case::missing("KillWait=30\nInclude a.conf", &[], &["line 2: Include a.conf"])]
    #[case::by_another("Include a.conf", &[("a.conf", "\nInclude b.conf")], &["a.conf line 2: Include b.conf"])]
    #[case::expanded_by_slurm("Include %h.conf", &[], &[])]
    #[case::topology("TopologyPlugin=topology/tree", &[], &["line 1: TopologyPlugin=topology/tree needs topology.yaml or topology.conf"])]
    fn files_that_nobody_has_are_named_with_their_line(
        #[case] text: &str,
        #[case] included: &[(&str, &str)],
        #[case] expected: &[&str],
    ) {
        let found = missing_files(&document(text, included), |_| false);
        let found: Vec<String> = found
            .iter()
            .map(|missing| format!("{}: {missing}", missing.origin().unwrap()))
            .collect();
        assert_eq!(found, expected);
        assert_eq!(missing_files(&document(text, included), |_| true), []);
    }

    #[rstest]
    #[case("SelectType=select/linear", &[], "line 1: SelectType=select/linear is not supported: workers register")]
    #[case("Include a.conf", &[("a.conf", "KillWait=30\nPartitionName=p Nodes=n[0-")], "a.conf line 2: Nodes is not a valid host list: ")]
    fn a_flaw_is_named_with_its_file_and_line(
        #[case] text: &str,
        #[case] included: &[(&str, &str)],
        #[case] expected: &str,
    ) {
        let found = flaws(&document(text, included));
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with(expected), "{}", found[0]);
    }
}
