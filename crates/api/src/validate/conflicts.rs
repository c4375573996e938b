//! Name conflicts between NodeSets of one Slurm cluster.

use kube_core::ResourceExt as _;

use crate::nodeset::{NodeSet, ScalingMode};
use crate::validate::path::Path;
use crate::validate::report::Report;

/// Checks a NodeSet against the others in its namespace: NodeSets of one Controller must not use the same names for workers,
/// features or partitions.
pub fn conflicts<'a>(nodeset: &NodeSet, others: impl IntoIterator<Item = &'a NodeSet>) -> Report {
    let mut report = Report::default();
    let siblings = others.into_iter().filter(|other| {
        other.spec.controller_ref == nodeset.spec.controller_ref
            && other.metadata.namespace == nodeset.metadata.namespace
            && other.metadata.name != nodeset.metadata.name
    });
    let hostname = Path::spec().field("template").field("spec").field("hostname");
    for other in siblings {
        if other.slurm_name() == nodeset.slurm_name() {
            report.refuse(
                &hostname,
                format!(
                    "NodeSet {:?} already uses the Slurm feature and partition name {:?}",
                    other.name_any(),
                    nodeset.slurm_name()
                ),
                "set another template.spec.hostname for this NodeSet",
            );
        } else if let Some(name) = shared_node_name(nodeset, other) {
            report.refuse(
                &hostname,
                format!("NodeSet {:?} already has a Slurm node {name:?}", other.name_any()),
                "set another template.spec.hostname for this NodeSet",
            );
        }
    }
    report
}

/// A node name that both NodeSets would use. Only names with ordinals are known in advance.
fn shared_node_name(one: &NodeSet, other: &NodeSet) -> Option<String> {
    if [one, other]
        .iter()
        .any(|nodeset| nodeset.spec.scaling_mode != ScalingMode::StatefulSet)
    {
        return None;
    }
    let (longer, shorter) = if one.node_prefix().len() >= other.node_prefix().len() {
        (one, other)
    } else {
        (other, one)
    };
    // Otherwise no ordinal can make the two names equal.
    let rest = longer
        .node_prefix()
        .strip_prefix(&shorter.node_prefix())?
        .to_owned();
    if !rest.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    (0..longer.spec.replicas).find_map(|ordinal| {
        let tail = format!("{rest}{}", longer.padded_ordinal(ordinal));
        let same: i32 = tail.parse().ok()?;
        (same < shorter.spec.replicas && shorter.padded_ordinal(same) == tail)
            .then(|| longer.pod_hostname(ordinal))
    })
}
