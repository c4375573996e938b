//! What is known of each file's parameters: which stand once and which may be repeated.

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

/// How often a parameter may stand in a file, and what its line holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Once; Slurm takes the last one.
    Single,
    /// Any number of times, a plain value each.
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
    /// The shape of a parameter, in any case; a parameter that nobody knows stands once.
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
