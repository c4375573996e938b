//! Rules for NodeSets.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube_core::ResourceExt as _;
use serde_json::Value;

use crate::nodeset::{
    NodeSet, NodeSetSpec, Partition, PruneSlurmNodeRecords, ScalingMode, Ssh, UpdateStrategy,
    UpdateStrategyType,
};
use crate::overrides::RawObject;
use crate::scalars::Amount;
use crate::validate::path::Path;
use crate::validate::pods::{Own, Pod};
use crate::validate::report::Report;
use crate::validate::{Validate, pods, references, text, window};
use crate::well_known::container;

impl Validate for NodeSet {
    fn check(&self, report: &mut Report) {
        let spec = Path::spec();
        let NodeSetSpec {
            controller_ref,
            replicas,
            scaling_mode,
            slurmd,
            ssh,
            logfile,
            template,
            // Checked by the webhook and the operator with `slurm-conf`.
            extra_conf: _,
            partition,
            volume_claim_templates,
            update_strategy,
            revision_history_limit,
            persistent_volume_claim_retention_policy: _,
            min_ready_seconds,
            ordinal_padding,
            pin_to_node,
            workload_disruption_protection: _,
            prune_slurm_node_records,
            oversubscribe_node: _,
            drain,
            paused: _,
            max_concurrent_startup,
            deletion_policy: _,
        } = &self.spec;
        references::local(&spec.field("controllerRef"), controller_ref, "Controller", report);
        for (field, number) in [
            ("replicas", *replicas),
            ("revisionHistoryLimit", *revision_history_limit),
            ("minReadySeconds", min_ready_seconds.unwrap_or(0)),
            ("ordinalPadding", *ordinal_padding),
        ] {
            text::not_negative(&spec.field(field), number, report);
        }
        if max_concurrent_startup.is_some_and(|count| count < 1) {
            report.refuse(
                &spec.field("maxConcurrentStartup"),
                "must be at least 1",
                "set it to 1 or more, or leave it out",
            );
        }
        Pod {
            containers: &[Own::new(container::SLURMD, slurmd.as_ref(), true)],
            init_containers: &[Own::new(container::LOGFILE, logfile.as_ref(), true)],
            template: template.as_ref(),
        }
        .check(report);
        hostnames(self, report);
        if let Some(ssh) = ssh {
            ssh_access(ssh, report);
        }
        if let Some(partition) = partition {
            partition_line(partition, report);
        }
        claims(volume_claim_templates.as_deref().unwrap_or_default(), report);
        if let Some(strategy) = update_strategy {
            update(strategy, *scaling_mode, report);
        }
        if let Some(drain) = drain {
            match &drain.timeout {
                Some(timeout) => text::duration(
                    &spec.field("drain").field("timeout"),
                    timeout,
                    Duration::ZERO,
                    report,
                ),
                None if drain.on_timeout.is_some() => {
                    report.warn(
                        &spec.field("drain").field("onTimeout"),
                        "has no effect unless drain.timeout is set",
                    );
                }
                None => {}
            }
        }
        match scaling_mode {
            ScalingMode::DaemonSet => {
                for (field, written, why) in [
                    // The API server defaults it to 1.
                    (
                        "replicas",
                        *replicas != 1,
                        "the operator runs one worker on each matching node",
                    ),
                    ("ordinalPadding", *ordinal_padding > 0, "workers have no ordinals"),
                    ("pinToNode", *pin_to_node, "workers never move to another node"),
                ] {
                    if written {
                        report.warn(
                            &spec.field(field),
                            format!("has no effect in DaemonSet mode: {why}"),
                        );
                    }
                }
            }
            ScalingMode::StatefulSet if *prune_slurm_node_records == PruneSlurmNodeRecords::NodeNotFound => {
                report.warn(
                    &spec.field("pruneSlurmNodeRecords"),
                    "has no effect in StatefulSet mode: the operator always deletes the records of removed workers",
                );
            }
            ScalingMode::StatefulSet => {}
        }
    }

    fn check_change(&self, old: &Self, report: &mut Report) {
        let spec = Path::spec();
        references::unchanged(
            &spec.field("controllerRef"),
            &old.spec.controller_ref,
            &self.spec.controller_ref,
            "the workers are registered with that cluster",
            report,
        );
        let claims = |nodeset: &Self| {
            let templates = nodeset.spec.volume_claim_templates.as_deref().unwrap_or_default();
            templates
                .iter()
                .map(|RawObject(claim)| canonical(&Value::Object(claim.clone())))
                .collect::<Vec<_>>()
        };
        references::unchanged(
            &spec.field("volumeClaimTemplates"),
            &claims(old),
            &claims(self),
            "the claims of running workers were created from it",
            report,
        );
    }
}

/// A claim with normalized quantities: `1Gi` and `1024Mi` are equal.
fn canonical(claim: &Value) -> Value {
    let mut claim = crate::merge::without_deletions(claim);
    for list in ["limits", "requests"] {
        let amounts = claim
            .pointer_mut(&format!("/spec/resources/{list}"))
            .and_then(Value::as_object_mut);
        for amount in amounts.into_iter().flat_map(serde_json::Map::values_mut) {
            let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            if let Ok(parsed) = Amount::parse(&text) {
                *amount = Value::from(parsed.to_string());
            }
        }
    }
    claim
}

fn hostnames(nodeset: &NodeSet, report: &mut Report) {
    let stateful = nodeset.spec.scaling_mode == ScalingMode::StatefulSet;
    let raw = nodeset
        .spec
        .template
        .as_ref()
        .and_then(|t| t.spec.as_ref())
        .and_then(|spec| spec.text("hostname"));
    let path = Path::spec().field("template").field("spec").field("hostname");
    let digits = nodeset
        .padded_ordinal(nodeset.spec.replicas.saturating_sub(1).max(0))
        .len();
    match raw.filter(|hostname| !hostname.is_empty()) {
        Some(hostname) => {
            // The ordinal follows, so a trailing dash is allowed.
            let whole = hostname
                .strip_suffix('-')
                .filter(|head| !head.is_empty())
                .map_or(hostname, |head| head);
            if !text::is_dns_label(whole) {
                report.refuse(
                    &path,
                    format!("{hostname:?} is not a valid host name prefix"),
                    "use lower-case letters, digits and '-', such as \"gpu-\"",
                );
            } else if stateful && hostname.len() + digits > text::DNS_LABEL_MAX {
                report.refuse(
                    &path,
                    format!(
                        "{hostname:?} with the ordinal has more than {} characters",
                        text::DNS_LABEL_MAX
                    ),
                    "use a shorter prefix",
                );
            }
        }
        None if stateful && nodeset.name_any().len() + 1 + digits > text::DNS_LABEL_MAX => report.refuse(
            &Path::default().field("metadata").field("name"),
            format!(
                "the name with the ordinal has more than {} characters, which is too long for a host name",
                text::DNS_LABEL_MAX
            ),
            "use a shorter name, or set template.spec.hostname",
        ),
        None => {}
    }
}

fn ssh_access(ssh: &Ssh, report: &mut Report) {
    let path = Path::spec().field("ssh");
    text::lines(
        &path.field("extraSshdConfig"),
        ssh.extra_sshd_config.as_deref(),
        report,
    );
    if !ssh.enabled || ssh.sssd.as_ref().is_some_and(|sssd| !sssd.enabled) {
        return;
    }
    match &ssh.sssd_conf_ref {
        Some(selector) => references::secret_key(&path.field("sssdConfRef"), selector, report),
        None => report.refuse(
            &path.field("sssdConfRef"),
            "must be set when ssh is enabled",
            "set the Secret and the key that hold sssd.conf, or set ssh.sssd.enabled to false",
        ),
    }
}

fn partition_line(partition: &Partition, report: &mut Report) {
    let path = Path::spec().field("partition").field("config");
    let Some(config) = &partition.config else { return };
    if config.is_empty() {
        report.refuse(&path, "is empty", "leave it out");
    }
    text::one_line(&path, config, report);
    if config.contains('#') {
        report.warn(&path, "Slurm treats everything after '#' as a comment");
    }
    for pair in config.split_whitespace() {
        let key = pair.split('=').next().unwrap_or_default();
        if key.eq_ignore_ascii_case("PartitionName") || key.eq_ignore_ascii_case("Nodes") {
            report.warn(
                &path,
                format!("{key} overrides the value that the operator writes on the same line"),
            );
        }
    }
}

fn claims(templates: &[RawObject], report: &mut Report) {
    let path = Path::spec().field("volumeClaimTemplates");
    let mut seen: Vec<String> = Vec::new();
    for (index, raw) in templates.iter().enumerate() {
        let path = path.index(index);
        let Some(claim) = pods::read::<PersistentVolumeClaim>(&path, raw, "PersistentVolumeClaim", report)
        else {
            continue;
        };
        let name = claim.metadata.name.unwrap_or_default();
        let at = path.field("metadata").field("name");
        if !text::is_dns_label(&name) {
            report.refuse(
                &at,
                format!("{name:?} is not a valid volume name"),
                "use lower-case letters, digits and '-'",
            );
        } else if seen.contains(&name) {
            report.refuse(
                &at,
                format!("duplicate name {name:?}"),
                "use a unique name for each claim",
            );
        }
        seen.push(name);
        let requests = claim
            .spec
            .and_then(|spec| spec.resources)
            .and_then(|resources| resources.requests);
        let path = path.field("spec").field("resources").field("requests");
        match requests.as_ref().and_then(|requests| requests.get("storage")) {
            Some(_) => pods::quantities(&path, requests.as_ref(), report),
            None => report.refuse(
                &path.field("storage"),
                "is missing",
                "set the size of the volume, such as 100Gi",
            ),
        }
    }
}

fn update(strategy: &UpdateStrategy, mode: ScalingMode, report: &mut Report) {
    let path = Path::spec().field("updateStrategy");
    if let Some(rolling) = &strategy.rolling_update {
        let path = path.field("rollingUpdate");
        let at = path.field("maxUnavailable");
        text::number_or_percent(&at, &rolling.max_unavailable, 1, report);
        text::at_most_all(&at, &rolling.max_unavailable, report);
        if let Some(partition) = rolling.partition {
            text::not_negative(&path.field("partition"), partition, report);
            if mode == ScalingMode::DaemonSet {
                report.warn(
                    &path.field("partition"),
                    "has no effect in DaemonSet mode, which has no ordinals",
                );
            }
        }
    }
    let scheduled_path = path.field("scheduledUpdate");
    if let Some(scheduled) = &strategy.scheduled_update {
        window::check(&scheduled_path, scheduled, report);
    }
    let start = strategy
        .scheduled_update
        .as_ref()
        .and_then(|scheduled| scheduled.start_time.as_ref());
    if strategy.kind == UpdateStrategyType::ScheduledUpdate && start.is_none() {
        report.refuse(
            &scheduled_path.field("startTime"),
            "must be set when type is ScheduledUpdate",
            "set the start of the window in RFC 3339 format",
        );
    }
}
