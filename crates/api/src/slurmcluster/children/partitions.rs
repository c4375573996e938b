//! Lines of slurm.conf for partitions.

use std::collections::BTreeMap;

use kube_core::ResourceExt;
use slurm_conf::value::{ValueError, encode_partition_name};

use super::{Around, named_nodeset};
use crate::slurmcluster::{PartitionPart, SlurmCluster};
use crate::validate::{Path, Report};

/// Slurm's word for all nodes.
const ALL: &str = "ALL";
/// The partition of a cluster without `partitions`.
pub const DEFAULT: &str = "all";

/// The partitions, with the default if there are none.
pub fn partitions(cluster: &SlurmCluster) -> Vec<(String, PartitionPart)> {
    match &cluster.spec.partitions {
        Some(partitions) => partitions
            .iter()
            .map(|(name, part)| (name.clone(), part.clone()))
            .collect(),
        None => vec![(
            DEFAULT.to_owned(),
            PartitionPart {
                node_sets: vec![ALL.to_owned()],
                default: true,
                config: None,
            },
        )],
    }
}

/// Whether a partition contains this NodeSet, by its name in Slurm.
pub fn contains(cluster: &SlurmCluster, partition: &PartitionPart, nodeset: &str) -> bool {
    partition
        .node_sets
        .iter()
        .any(|member| member.eq_ignore_ascii_case(ALL) || slurm_name(cluster, member) == nodeset)
}

/// The name in Slurm of a member of a partition.
fn slurm_name(cluster: &SlurmCluster, member: &str) -> String {
    if cluster.spec.node_sets.contains_key(member) {
        named_nodeset(cluster, member).slurm_name()
    } else {
        member.to_owned()
    }
}

pub(super) fn lines(cluster: &SlurmCluster, around: &Around, report: &mut Report) -> Vec<String> {
    let all = Path::spec().field("partitions");
    let partitions = partitions(cluster);
    let defaults: Vec<&String> = partitions
        .iter()
        .filter(|(_, part)| part.default)
        .map(|(name, _)| name)
        .collect();
    if let [first, second, ..] = defaults.as_slice() {
        report.refuse(
            &all.field(second).field("default"),
            format!("partition {first} is the default already"),
            "set default to true in one partition only",
        );
    }
    partitions
        .iter()
        .map(|(name, part)| {
            let path = all.field(name);
            check(cluster, around, &path, name, part, report);
            let members = part.node_sets.iter();
            let mut members: Vec<String> = members.map(|member| slurm_name(cluster, member)).collect();
            members.sort();
            members.dedup();
            let mut words = vec![
                format!("PartitionName={name}"),
                format!("Nodes={}", members.join(",")),
            ];
            if part.default {
                words.push("Default=YES".to_owned());
            }
            words.extend(part.config.as_deref().map(str::trim).map(str::to_owned));
            words.join(" ")
        })
        .collect()
}

fn check(
    cluster: &SlurmCluster,
    around: &Around,
    path: &Path,
    name: &str,
    part: &PartitionPart,
    report: &mut Report,
) {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(plain) {
        report.refuse(
            path,
            format!("{name:?} is not a valid partition name"),
            "use letters, digits, '-', '_' and '.'",
        );
    } else if let Err(reserved @ ValueError::Reserved(..)) = encode_partition_name(name) {
        report.refuse(path, reserved.to_string(), "use another name");
    }
    if part.node_sets.is_empty() {
        report.refuse(
            &path.field("nodeSets"),
            "the partition would have no nodes",
            "list names in nodeSets, or ALL",
        );
    }
    let own: BTreeMap<String, &String> = cluster
        .spec
        .node_sets
        .keys()
        .map(|set| (slurm_name(cluster, set), set))
        .collect();
    for (index, member) in part.node_sets.iter().enumerate() {
        let known = member.eq_ignore_ascii_case(ALL)
            || cluster.spec.node_sets.contains_key(member)
            || own.contains_key(member)
            || around
                .other_nodesets
                .as_ref()
                .is_none_or(|others| others.contains(member));
        if !known {
            report.refuse(
                &path.field("nodeSets").index(index),
                format!("there are no workers with the name {member:?}"),
                format!(
                    "add spec.nodeSets.{member}, use one of its names, or create a NodeSet whose controllerRef is {} first",
                    cluster.name_any()
                ),
            );
        }
    }
    let has_partition = |set: &&&String| {
        let fields = cluster.spec.node_sets.get(**set).map(|set| &set.fields.values);
        fields.and_then(|fields| fields.get("partition")?.get("enabled")?.as_bool()) == Some(true)
    };
    if let Some(set) = own.get(name).filter(has_partition) {
        report.refuse(
            path,
            format!("spec.nodeSets.{set}.partition creates a partition with this name too"),
            "remove one of them",
        );
    }
    let Some(config) = &part.config else { return };
    let path = path.field("config");
    if config.contains('\n') {
        report.refuse(
            &path,
            "must be one line",
            "write Key=Value pairs separated by spaces",
        );
    }
    for word in config.split_whitespace() {
        let key = word.split_once('=').map_or(word, |(key, _)| key);
        let field = match key.to_ascii_lowercase().as_str() {
            "default" => "default",
            "nodes" => "nodeSets",
            "partitionname" => "the partition's name",
            _ => continue,
        };
        report.refuse(
            &path,
            format!("{key} is set here and in {field}"),
            format!("remove {key}"),
        );
    }
}
