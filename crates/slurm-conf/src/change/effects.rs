//! The class of a change to a parameter or record, based on the Slurm 26.05 manual pages and on trials with running jobs.

use std::collections::BTreeSet;

use super::{Attributes, Class, Daemon, MustBeEmpty};
use crate::catalogue::File;
use crate::hostlist::{Hostlist, MAX_RANGE};
use crate::parameters::{self, Effect};

const ALL: [Daemon; 4] = [
    Daemon::Slurmctld,
    Daemon::Slurmrestd,
    Daemon::Slurmd,
    Daemon::Sackd,
];

/// slurmd sets up its control groups when it starts; the rest of cgroup.conf applies to new steps.
const CGROUP_AT_START: [&str; 6] = [
    "CgroupMountpoint",
    "CgroupPlugin",
    "CgroupSlice",
    "EnableControllers",
    "IgnoreSystemd",
    "IgnoreSystemdOnFailure",
];

/// The attributes that define the resources of a node. Running jobs hold allocations that cannot be migrated.
pub(super) const NODE_SHAPE: [&str; 11] = [
    "boards",
    "corespersocket",
    "corespeccount",
    "cpus",
    "cpuspeclist",
    "gres",
    "memspeclimit",
    "procs",
    "sockets",
    "socketsperboard",
    "threadspercore",
];

fn among(names: &[&str], key: &str) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case(key))
}

/// Returns the class of a change to a parameter on a line of its own.
pub(super) fn parameter_class(file: File, key: &str, before: &str, after: &str) -> Class {
    match file {
        File::Slurm if among(&["GresTypes"], key) => gres_types_class(before, after),
        File::Slurm | File::Slurmdbd => {
            parameters::find(file, key).map_or_else(|| unknown(file), |(_, _, effect)| class(file, effect))
        }
        File::Cgroup if among(&CGROUP_AT_START, key) => Class::restart(&[Daemon::Slurmd]),
        File::Cgroup => Class::Reconfigure,
        File::Gres if among(&["AutoDetect"], key) => Class::kills(MustBeEmpty::Cluster, &[Daemon::Slurmd]),
        File::Gres => unknown(file),
    }
}

/// slurmctld drops resources whose type it no longer knows from the records of running jobs, and their next steps fail.
fn gres_types_class(before: &str, after: &str) -> Class {
    let types = |list: &str| -> BTreeSet<String> {
        let types = list.split(',').map(|kind| kind.trim().to_ascii_lowercase());
        types.filter(|kind| !kind.is_empty()).collect()
    };
    let left = types(after);
    let lost = types(before).into_iter().filter(|kind| !left.contains(kind));
    let must_be_empty: BTreeSet<MustBeEmpty> = lost.map(MustBeEmpty::Gres).collect();
    if must_be_empty.is_empty() {
        return Class::Reconfigure;
    }
    Class::KillsJobs {
        must_be_empty,
        restart: BTreeSet::new(),
    }
}

fn class(file: File, effect: Effect) -> Class {
    match effect {
        Effect::Reconfigure => Class::Reconfigure,
        Effect::RestartAll => Class::restart(&ALL),
        Effect::RestartTokenReaders => Class::restart(&[Daemon::Slurmctld, Daemon::Slurmrestd]),
        Effect::RestartSlurmrestd => Class::restart(&[Daemon::Slurmrestd]),
        Effect::RestartSlurmctldAndSlurmd => Class::restart(&[Daemon::Slurmctld, Daemon::Slurmd]),
        Effect::RestartSlurmdbd => Class::restart(&[Daemon::Slurmdbd]),
        Effect::EmptyCluster => Class::kills(MustBeEmpty::Cluster, &ALL),
        Effect::Forbidden(why) => Class::Forbidden { why },
        Effect::Untried => unknown(file),
    }
}

/// The class of a change to an unknown parameter: every daemon that reads the file restarts.
pub(super) fn unknown(file: File) -> Class {
    match file {
        File::Slurm => Class::restart(&ALL),
        File::Slurmdbd => Class::restart(&[Daemon::Slurmdbd]),
        File::Cgroup => Class::restart(&[Daemon::Slurmd]),
        File::Gres => Class::restart(&[Daemon::Slurmctld, Daemon::Slurmd]),
    }
}

/// The class of a change to a record. `before` and `after` are its attributes, if it exists.
pub(super) fn record_class(
    file: File,
    key: &str,
    name: &str,
    before: Option<&Attributes>,
    after: Option<&Attributes>,
) -> Class {
    if file == File::Gres {
        // Slurm aborts jobs that use a device whose count changes.
        let nodes = if key == "nodename" {
            MustBeEmpty::Nodes(name.to_owned())
        } else {
            MustBeEmpty::Cluster
        };
        return Class::kills(nodes, &[Daemon::Slurmd]);
    }
    if is_default(file, name) {
        return if key == "nodename" {
            Class::kills(MustBeEmpty::Cluster, &[])
        } else {
            Class::Reconfigure
        };
    }
    match (key, before, after) {
        ("slurmctldhost", ..) => Class::restart(&[Daemon::Slurmrestd]),
        ("frontendname", ..) => unknown(file),
        // Slurm kills the jobs of a partition that no longer exists.
        ("partitionname", Some(_), None) => Class::kills(MustBeEmpty::Partition(name.to_owned()), &[]),
        ("nodeset", Some(before), Some(after)) if only_gains_nodes(before, after) => Class::Reconfigure,
        ("nodeset", Some(_), None | Some(_)) => Class::kills(MustBeEmpty::NodeSet(name.to_owned()), &[]),
        ("downnodes", _, Some(after)) if !takes_no_node_down(after) => {
            Class::kills(MustBeEmpty::Nodes(name.to_owned()), &[])
        }
        _ => Class::Reconfigure,
    }
}

/// Whether this name is not a record but sets the defaults for the records after it.
pub(super) fn is_default(file: File, name: &str) -> bool {
    file == File::Slurm && name.eq_ignore_ascii_case("DEFAULT")
}

pub(super) fn differs(before: &Attributes, after: &Attributes, keys: &[&str]) -> bool {
    keys.iter().any(|key| before.get(*key) != after.get(*key))
}

/// Whether a node set keeps all of its nodes and is otherwise unchanged.
fn only_gains_nodes(before: &Attributes, after: &Attributes) -> bool {
    let others = |attributes: &Attributes| {
        let mut others = attributes.clone();
        others.remove("nodes");
        others
    };
    let names = |attributes: &Attributes| -> Option<BTreeSet<String>> {
        let list: Hostlist = attributes.get("nodes")?.parse().ok()?;
        (list.len() <= MAX_RANGE).then(|| list.names().collect())
    };
    match (names(before), names(after)) {
        (Some(old), Some(new)) => old.is_subset(&new) && others(before) == others(after),
        _ => false,
    }
}

/// `DownNodes` sets nodes to DOWN unless it specifies a less severe state.
fn takes_no_node_down(attributes: &Attributes) -> bool {
    let gentle = |state: &String| among(&["DRAIN", "FAIL", "FAILING", "FUTURE"], state);
    attributes.get("state").is_some_and(gentle)
}

/// The usual spelling of a record's key.
pub(super) fn spelling(key: &str) -> &str {
    let keys = [
        "SlurmctldHost",
        "NodeName",
        "NodeSet",
        "PartitionName",
        "DownNodes",
        "FrontendName",
        "PowerAction",
        "Name",
    ];
    keys.into_iter()
        .find(|name| name.eq_ignore_ascii_case(key))
        .unwrap_or(key)
}
