//! What slurmctld cannot run with although every line can be read. The operator and the webhook ask before they accept
//! a text, `init` before it offers a file to slurmctld: one answer for all three.

use std::fmt;

use crate::hostlist::Hostlist;
use crate::slurm_conf::unfit_select_type;
use crate::syntax::{Document, Origin, Statement};
use crate::topology;

/// Records and attributes whose value is a list of hosts.
const HOST_LISTS: [(&str, Option<&str>); 5] = [
    ("NodeName", None),
    ("DownNodes", None),
    ("FrontendName", None),
    ("NodeSet", Some("Nodes")),
    ("PartitionName", Some("Nodes")),
];

/// A file that slurmctld looks for and does not find. It waits a minute for it, and then ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingFile {
    /// An `Include` of it.
    Included {
        /// The line.
        origin: Origin,
        /// The file.
        file: String,
    },
    /// A topology plugin that reads it.
    Topology {
        /// The line, where it was read from a text.
        origin: Option<Origin>,
        /// The value of `TopologyPlugin`.
        plugin: String,
        /// Any one of these would do.
        files: &'static [&'static str],
    },
}

impl fmt::Display for MissingFile {
    /// Without the line, which callers put in front in their own way.
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
    /// Where the line stands.
    pub fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Included { origin, .. } => Some(origin),
            Self::Topology { origin, .. } => origin.as_ref(),
        }
    }
}

/// The files that a configuration needs and that are not there. `has` says whether slurmctld finds a file; names with a `%`
/// are expanded by Slurm on each host and are not judged.
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

/// A line that slurmctld, or the workers' registration, cannot work with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// Workers register by themselves, which Slurm allows with one scheduler plugin alone.
    SelectType {
        /// The line.
        origin: Option<Origin>,
        /// The value.
        value: String,
    },
    /// A list of hosts that cannot be read.
    Hosts {
        /// The line.
        origin: Option<Origin>,
        /// The parameter or attribute.
        key: &'static str,
        /// What is wrong with it.
        error: String,
    },
}

impl Flaw {
    /// What to write instead.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::SelectType { .. } => "leave SelectType out",
            Self::Hosts { .. } => "write names such as gpu-[0-3,7],login1",
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
                "SelectType={value}: workers register by themselves, which Slurm allows with select/cons_tres alone"
            ),
            Self::Hosts { key, error, .. } => write!(f, "{key} is no host list: {error}"),
        }
    }
}

/// The flaws of a whole text.
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

/// The flaws of the host lists of one line.
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
    use crate::catalogue::File;
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
    #[case("SelectType=select/linear", &[], "line 1: SelectType=select/linear: workers register")]
    #[case("Include a.conf", &[("a.conf", "KillWait=30\nPartitionName=p Nodes=n[0-")], "a.conf line 2: Nodes is no host list: ")]
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
