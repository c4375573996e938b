//! Rules for Controllers.

use crate::controller::{ClaimPolicy, Controller, ControllerSpec, Persistence};
use crate::metrics::ServiceMonitor;
use crate::validate::path::Path;
use crate::validate::pods::{Own, Pod};
use crate::validate::references::{self, Keys};
use crate::validate::report::Report;
use crate::validate::{Validate, pods, service, text};
use crate::well_known::container;
use crate::well_known::slurm::CLUSTER_NAME_MAX;

const ACCESS_MODES: [&str; 4] = [
    "ReadWriteOnce",
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOncePod",
];

impl Validate for Controller {
    fn check(&self, report: &mut Report) {
        let spec = Path::spec();
        let ControllerSpec {
            cluster_name: _,
            auth: _,
            slurm_key_ref,
            jwt_key_ref,
            jwt_hs256_key_ref,
            jwks_key_ref,
            accounting_ref,
            external,
            external_config,
            ha: _,
            slurmctld,
            inplace_reconfigure,
            reconfigure,
            logfile,
            template,
            extra_conf,
            config_file_refs,
            prolog_script_refs,
            epilog_script_refs,
            prolog_slurmctld_script_refs,
            epilog_slurmctld_script_refs,
            persistence,
            service,
            metrics,
            max_node_count,
        } = &self.spec;
        cluster_name(self, report);
        Keys {
            external: *external,
            external_config: external_config.as_ref(),
            slurm_key: slurm_key_ref.as_ref(),
            jwt_key: jwt_key_ref.as_ref(),
            jwt_hs256_key: jwt_hs256_key_ref.as_ref(),
            jwks_key: jwks_key_ref.as_ref(),
        }
        .check("slurmctld", report);
        if let Some(accounting) = accounting_ref {
            references::local(&spec.field("accountingRef"), accounting, "Accounting", report);
        }
        let runs = !external;
        Pod {
            containers: &[Own::new(container::SLURMCTLD, slurmctld.as_ref(), runs)],
            init_containers: &[
                Own::new(
                    container::RECONFIGURE,
                    reconfigure.as_ref(),
                    runs && *inplace_reconfigure,
                ),
                Own::new(container::LOGFILE, logfile.as_ref(), runs),
            ],
            template: template.as_ref(),
        }
        .check(report);
        text::lines(&spec.field("extraConf"), extra_conf.as_deref(), report);
        for (field, refs) in [
            ("configFileRefs", config_file_refs),
            ("prologScriptRefs", prolog_script_refs),
            ("epilogScriptRefs", epilog_script_refs),
            ("prologSlurmctldScriptRefs", prolog_slurmctld_script_refs),
            ("epilogSlurmctldScriptRefs", epilog_slurmctld_script_refs),
        ] {
            references::locals(&spec.field(field), refs.as_ref(), "ConfigMap", report);
        }
        high_availability(&self.spec, report);
        if let Some(persistence) = persistence {
            state_volume(persistence, report);
        }
        service::check(service.as_ref(), report);
        if let Some(monitor) = metrics.as_ref().and_then(|m| m.service_monitor.as_ref()) {
            service_monitor(monitor, report);
        }
        if max_node_count.is_some_and(|count| count < 1) {
            report.refuse(
                &spec.field("maxNodeCount"),
                "must be at least 1",
                "set it to 1 or more, or leave it out",
            );
        }
    }

    fn check_change(&self, old: &Self, report: &mut Report) {
        let spec = Path::spec();
        if self.cluster_name() != old.cluster_name() {
            report.refuse(
                &spec.field("clusterName"),
                format!(
                    "cannot be changed from {:?}: slurmctld refuses state that was saved under another name",
                    old.cluster_name()
                ),
                "restore the old name, or create a new Controller",
            );
        }
        references::auth_unchanged(old.spec.auth.as_ref(), self.spec.auth.as_ref(), report);
        let name = |controller: &Self| controller.spec.slurm_key_ref.as_ref().map(|key| key.name.clone());
        references::unchanged(
            &spec.field("slurmKeyRef").field("name"),
            &name(old).unwrap_or_default(),
            &name(self).unwrap_or_default(),
            "every daemon of the cluster uses the key",
            report,
        );
        references::unchanged(
            &spec.field("jwtKeyRef"),
            &old.spec.jwt_key(),
            &self.spec.jwt_key(),
            "tokens signed with the old key would be rejected",
            report,
        );
        let persistence = spec.field("persistence");
        references::unchanged(
            &persistence.field("enabled"),
            &old.spec.persistence_enabled(),
            &self.spec.persistence_enabled(),
            "slurmctld's state would be lost",
            report,
        );
        if self.spec.persistence_enabled() {
            references::unchanged(
                &persistence.field("existingClaim"),
                &written_claim(&old.spec),
                &written_claim(&self.spec),
                "slurmctld's state would be lost",
                report,
            );
        }
    }
}

fn written_claim(spec: &ControllerSpec) -> &str {
    spec.persistence
        .as_ref()
        .and_then(|p| p.existing_claim.as_deref())
        .unwrap_or_default()
}

fn cluster_name(controller: &Controller, report: &mut Report) {
    let path = Path::spec().field("clusterName");
    let name = controller.cluster_name();
    if name.chars().count() > CLUSTER_NAME_MAX {
        report.refuse(
            &path,
            format!("{name:?} has {} characters", name.chars().count()),
            format!("use at most {CLUSTER_NAME_MAX} characters (the default is <namespace>_<name>)"),
        );
    }
    if !name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        || name.starts_with(['.', '-'])
    {
        report.refuse(
            &path,
            format!("{name:?} is not a valid Slurm cluster name"),
            "use letters, digits, '-', '_' and '.', starting with a letter or digit",
        );
    } else if name.chars().any(|c| c.is_ascii_uppercase()) {
        report.warn(
            &path,
            format!(
                "slurmdbd stores cluster names in lower case: {}",
                name.to_lowercase()
            ),
        );
    }
}

fn high_availability(spec: &ControllerSpec, report: &mut Report) {
    if !spec.ha_enabled() {
        return;
    }
    if spec.persistence.is_none() || spec.existing_claim().is_none() {
        report.refuse(
            &Path::spec().field("persistence").field("existingClaim"),
            "must be set when ha.enabled is true: the primary and its backups share their state",
            "set persistence.enabled to true and name a ReadWriteMany PersistentVolumeClaim",
        );
    }
    if spec.ha.as_ref().is_some_and(|ha| ha.backups < 1) {
        report.refuse(
            &Path::spec().field("ha").field("backups"),
            "must be at least 1",
            "set it to 1 or more",
        );
    }
    if spec.external {
        report.warn(&Path::spec().field("ha"), "is not used if external is true");
    }
}

fn state_volume(persistence: &Persistence, report: &mut Report) {
    let path = Path::spec().field("persistence");
    if let Some(claim) = persistence
        .existing_claim
        .as_deref()
        .filter(|claim| !claim.is_empty())
    {
        references::local_name(
            &path.field("existingClaim"),
            claim,
            "PersistentVolumeClaim",
            report,
        );
        if persistence.deletion_policy == Some(ClaimPolicy::Delete) {
            report.warn(
                &path.field("deletionPolicy"),
                "is not used: the operator never deletes the claim in existingClaim",
            );
        }
    }
    for (index, mode) in persistence.access_modes.iter().flatten().enumerate() {
        if !ACCESS_MODES.contains(&mode.as_str()) {
            report.refuse(
                &path.field("accessModes").index(index),
                format!("{mode:?} is not a valid access mode"),
                format!("use one of {}", ACCESS_MODES.join(", ")),
            );
        }
    }
    let resources = persistence.resources.clone().unwrap_or_default();
    for (field, map) in [("limits", resources.limits), ("requests", resources.requests)] {
        for (name, quantity) in map.iter().flatten() {
            let path = path.field("resources").field(field).field(name);
            pods::quantity_text(&path, &quantity.0.to_string(), report);
        }
    }
}

fn service_monitor(monitor: &ServiceMonitor, report: &mut Report) {
    let path = Path::spec().field("metrics").field("serviceMonitor");
    let durations = |path: &Path, interval: Option<&str>, timeout: Option<&str>, report: &mut Report| {
        text::prometheus_duration(&path.field("interval"), interval, report);
        text::prometheus_duration(&path.field("scrapeTimeout"), timeout, report);
    };
    durations(
        &path,
        monitor.interval.as_deref(),
        monitor.scrape_timeout.as_deref(),
        report,
    );
    for (index, endpoint) in monitor.endpoints.iter().flatten().enumerate() {
        let path = path.field("endpoints").index(index);
        durations(
            &path,
            endpoint.interval.as_deref(),
            endpoint.scrape_timeout.as_deref(),
            report,
        );
        if !endpoint.path.starts_with('/') {
            report.refuse(
                &path.field("path"),
                format!("{:?} is not a valid HTTP path", endpoint.path),
                "use a path such as /metrics/jobs",
            );
        }
    }
}
