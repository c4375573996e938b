//! The known parameters of each file: which occur once and which may be repeated.

/// The files that share Slurm's `Key=Value` syntax.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    /// slurm.conf
    Slurm,
    /// slurmdbd.conf
    Slurmdbd,
    /// cgroup.conf
    Cgroup,
    /// gres.conf
    Gres,
}

/// How often a parameter may occur in a file, and the contents of its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Once; Slurm uses the last one.
    Single,
    /// Any number of times, each with a plain value.
    Repeated,
    /// Any number of times, with attributes on the same line.
    Record,
}

const SLURM_RECORDS: [&str; 7] = [
    "NodeName",
    "PartitionName",
    "NodeSet",
    "DownNodes",
    "FrontendName",
    "PowerAction",
    "SlurmctldHost",
];
const SLURM_REPEATED: [&str; 4] = ["Prolog", "Epilog", "PrologSlurmctld", "EpilogSlurmctld"];
const GRES_RECORDS: [&str; 2] = ["Name", "NodeName"];

impl File {
    /// The shape of a parameter, case-insensitively. An unknown parameter occurs once.
    pub fn shape(self, key: &str) -> Shape {
        let among = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(key));
        match self {
            Self::Slurm if among(&SLURM_RECORDS) => Shape::Record,
            Self::Slurm if among(&SLURM_REPEATED) => Shape::Repeated,
            Self::Gres if among(&GRES_RECORDS) => Shape::Record,
            Self::Slurm | Self::Gres | Self::Slurmdbd | Self::Cgroup => Shape::Single,
        }
    }
}
