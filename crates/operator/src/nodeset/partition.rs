//! Detects whether the Controller holds back a change to the partition of a NodeSet. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use keelson_api::{
    Controller, NodeSet,
    well_known::{condition, file, reason},
};
use kube::ResourceExt;
use slurm_conf::{
    catalogue::File,
    syntax::{parse, parse_pairs},
};

use super::observe::Read;
use crate::{conditions::Finding, problem::Problem};

/// Returns why slurmctld does not have the partition as specified, quoting the Controller's condition.
pub fn held_back(read: &Read) -> Option<Problem> {
    let controller = read.controller.as_deref()?;
    let in_use = read.config_in_use.as_ref()?.data.as_ref()?;
    let (reason, why) = refusal(controller)?;
    if is_in_use(&read.nodeset, in_use.get(file::SLURM_CONF)?) {
        return None;
    }
    let (set, name) = (read.nodeset.slurm_name(), controller.name_any());
    let wanted = if is_enabled(&read.nodeset) {
        "is not configured as specified"
    } else {
        "is still configured"
    };
    Some(Problem {
        reason,
        message: format!("partition {set} {wanted}, because of Controller {name}: {why}"),
    })
}

/// Adds the partition problem to conditions that report nothing else. A change that waits for jobs is progress, not a
/// problem.
pub fn with_partition(mut findings: Vec<Finding>, partition: Option<&Problem>) -> Vec<Finding> {
    let Some(Problem { reason, message }) = partition else {
        return findings;
    };
    let waits = [reason::CONFIG_PENDING, reason::KEY_PENDING].contains(reason);
    let kind = if waits {
        condition::PROGRESSING
    } else {
        condition::DEGRADED
    };
    for finding in &mut findings {
        if finding.kind == kind && finding.reason == reason::AS_SPECIFIED {
            *finding = Finding::new(kind, true, reason, message.clone());
        }
    }
    findings
}

fn is_enabled(nodeset: &NodeSet) -> bool {
    nodeset
        .spec
        .partition
        .as_ref()
        .is_some_and(|partition| partition.enabled)
}

/// Returns why the latest configuration of a Controller is not in use.
fn refusal(controller: &Controller) -> Option<(&'static str, String)> {
    let conditions = controller.status.as_ref().map(|status| &status.conditions)?;
    let find = |kind: &str, status: &str| {
        conditions
            .iter()
            .find(|known| known.type_ == kind && known.status == status)
    };
    let known = |found: &Condition| {
        let reason = match found.reason.as_str() {
            reason::CONFIG_REFUSED => reason::CONFIG_REFUSED,
            reason::INVALID_SPEC => reason::INVALID_SPEC,
            reason::REFERENCE_MISSING => reason::REFERENCE_MISSING,
            reason::KEY_PENDING => reason::KEY_PENDING,
            reason::CONFIG_PENDING => reason::CONFIG_PENDING,
            _ => return None,
        };
        Some((reason, found.message.clone()))
    };
    // A Controller that could not be built has no ConfigApplied condition; Degraded then gives the reason.
    let applied = find(condition::CONFIG_APPLIED, "False").and_then(known);
    applied.or_else(|| find(condition::DEGRADED, "True").and_then(known))
}

/// Returns true if slurm.conf has the partition as specified, or has none and the NodeSet requests none.
fn is_in_use(nodeset: &NodeSet, slurm_conf: &str) -> bool {
    let Ok(document) = parse(File::Slurm, slurm_conf, &BTreeMap::new()) else {
        return true;
    };
    let name = nodeset.slurm_name();
    let line = document
        .all("PartitionName")
        .find(|statement| statement.head.value == name);
    let partition = nodeset.spec.partition.as_ref();
    match (line, partition.filter(|partition| partition.enabled)) {
        (None, None) => true,
        (None, Some(_)) | (Some(_), None) => false,
        (Some(line), Some(partition)) => {
            let config = partition.config.as_deref().unwrap_or_default();
            let Ok(wanted) = parse_pairs(config) else {
                return true;
            };
            wanted.iter().all(|wanted| {
                let mut found = line.attributes.iter();
                found.any(|found| found.is(&wanted.key) && found.value == wanted.value)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::conditions::ConditionStatus;

    #[rstest]
    #[case::as_specified(json!({ "enabled": true, "config": "MaxTime=60" }), "PartitionName=cpu Nodes=cpu MaxTime=60", true)]
    #[case::no_partition(json!({ "enabled": false }), "PartitionName=gpu Nodes=gpu", true)]
    #[case::not_there(json!({ "enabled": true }), "PartitionName=gpu Nodes=gpu", false)]
    #[case::another_limit(json!({ "enabled": true, "config": "MaxTime=60" }), "PartitionName=cpu Nodes=cpu MaxTime=30", false)]
    #[case::kept(json!({ "enabled": false }), "PartitionName=cpu Nodes=cpu State=DRAIN", false)]
    fn the_partition_in_use_is_compared_with_the_spec(
        #[case] partition: Value,
        #[case] line: &str,
        #[case] expected: bool,
    ) {
        let nodeset = json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": "cpu" },
            "spec": { "controllerRef": { "name": "c" }, "partition": partition } });
        let nodeset: NodeSet = serde_json::from_value(nodeset).unwrap();
        let conf = format!("ClusterName=c\n{line}\n");
        assert_eq!(is_in_use(&nodeset, &conf), expected);
    }

    #[rstest]
    #[case::refused(json!([{ "type": "ConfigApplied", "status": "False", "reason": "ConfigRefused", "message": "no" }]), Some("ConfigRefused"))]
    #[case::held(json!([{ "type": "ConfigApplied", "status": "False", "reason": "ConfigPending", "message": "jobs" }]), Some("ConfigPending"))]
    #[case::not_built(json!([{ "type": "Degraded", "status": "True", "reason": "InvalidSpec", "message": "no" }]), Some("InvalidSpec"))]
    #[case::in_use(json!([{ "type": "ConfigApplied", "status": "True", "reason": "AsSpecified", "message": "" }]), None)]
    #[case::another_trouble(json!([{ "type": "Degraded", "status": "True", "reason": "PodHeld", "message": "" }]), None)]
    fn what_the_controller_says_is_passed_on(#[case] conditions: Value, #[case] expected: Option<&str>) {
        let mut conditions = conditions;
        for condition in conditions.as_array_mut().unwrap() {
            condition["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
        }
        let controller = json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": { "name": "c" },
            "spec": {}, "status": { "conditions": conditions } });
        let found = refusal(&serde_json::from_value(controller).unwrap());
        assert_eq!(found.map(|(reason, _)| reason), expected);
    }

    #[rstest]
    #[case::refused(reason::CONFIG_REFUSED, reason::AS_SPECIFIED, reason::CONFIG_REFUSED)]
    #[case::waits(reason::CONFIG_PENDING, reason::CONFIG_PENDING, reason::AS_SPECIFIED)]
    fn a_change_that_waits_is_progress_and_a_refusal_is_trouble(
        #[case] why: &'static str,
        #[case] progressing: &str,
        #[case] degraded: &str,
    ) {
        let findings = || vec![Finding::settled(), Finding::degraded(None)];
        let problem = Problem {
            reason: why,
            message: "why".to_owned(),
        };
        let found = with_partition(findings(), Some(&problem));
        let told: Vec<_> = found.iter().map(|found| (found.holds, found.reason)).collect();
        let holds = |reason: &str| ConditionStatus::from(reason != reason::AS_SPECIFIED);
        assert_eq!(
            told,
            [(holds(progressing), progressing), (holds(degraded), degraded)]
        );
        assert_eq!(with_partition(findings(), None), findings());
    }
}
