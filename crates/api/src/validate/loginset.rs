//! Rules for LoginSets.

use crate::loginset::{DeploymentStrategy, LoginSet, LoginSetSpec};
use crate::scalars::IntOrString;
use crate::validate::path::Path;
use crate::validate::pods::{Own, Pod};
use crate::validate::report::Report;
use crate::validate::{Validate, references, service, text};
use crate::well_known::container;

impl Validate for LoginSet {
    fn check(&self, report: &mut Report) {
        let spec = Path::spec();
        let LoginSetSpec {
            controller_ref,
            replicas,
            login,
            initconf,
            template,
            root_ssh_authorized_keys,
            extra_sshd_config,
            sssd_conf_ref,
            sssd: _,
            strategy,
            service,
        } = &self.spec;
        references::local(&spec.field("controllerRef"), controller_ref, "Controller", report);
        text::not_negative(&spec.field("replicas"), *replicas, report);
        Pod {
            containers: &[Own::new(container::LOGIN, login.as_ref(), true)],
            init_containers: &[Own::new(container::INITCONF, initconf.as_ref(), true)],
            template: template.as_ref(),
        }
        .check(report);
        authorized_keys(root_ssh_authorized_keys.as_deref(), report);
        text::lines(
            &spec.field("extraSshdConfig"),
            extra_sshd_config.as_deref(),
            report,
        );
        match sssd_conf_ref {
            _ if !self.spec.sssd_enabled() => {}
            Some(selector) => references::secret_key(&spec.field("sssdConfRef"), selector, report),
            None => report.refuse(
                &spec.field("sssdConfRef"),
                "must be set",
                "set the Secret and the key that hold sssd.conf, or set sssd.enabled to false",
            ),
        }
        if let Some(strategy) = strategy {
            deployment_strategy(strategy, report);
        }
        service::check(service.as_ref(), report);
    }

    fn check_change(&self, old: &Self, report: &mut Report) {
        references::unchanged(
            &Path::spec().field("controllerRef"),
            &old.spec.controller_ref,
            &self.spec.controller_ref,
            "users are logged in to that cluster",
            report,
        );
    }
}

fn authorized_keys(keys: Option<&str>, report: &mut Report) {
    let path = Path::spec().field("rootSshAuthorizedKeys");
    text::lines(&path, keys, report);
    let Some(keys) = keys else { return };
    if keys.contains("PRIVATE KEY-----") {
        report.refuse(
            &path,
            "contains a private key",
            "use public keys only, and replace this private key: it has been exposed",
        );
        return;
    }
    let kinds = ["ssh-", "ecdsa-", "sk-ssh-", "sk-ecdsa-", "cert-authority"];
    for (index, line) in keys.lines().map(str::trim).enumerate() {
        let names_a_kind = line
            .split([' ', '\t', ','])
            .any(|word| kinds.iter().any(|kind| word.starts_with(kind)));
        if !line.is_empty() && !line.starts_with('#') && !names_a_kind {
            report.warn(
                &path,
                format!("line {} does not look like a public key", index + 1),
            );
        }
    }
}

fn deployment_strategy(strategy: &DeploymentStrategy, report: &mut Report) {
    let path = Path::spec().field("strategy");
    match strategy.kind.as_deref() {
        None | Some("" | "RollingUpdate") => {}
        Some("Recreate") if strategy.rolling_update.is_none() => {}
        Some("Recreate") => report.refuse(
            &path.field("rollingUpdate"),
            "cannot be used with type Recreate",
            "leave it out, or set type to RollingUpdate",
        ),
        Some(other) => {
            report.refuse(
                &path.field("type"),
                format!("{other:?} is not a valid strategy"),
                "use RollingUpdate or Recreate",
            );
        }
    }
    let path = path.field("rollingUpdate");
    let bounds = strategy.rolling_update.clone().unwrap_or_default();
    for (field, bound) in [
        ("maxSurge", &bounds.max_surge),
        ("maxUnavailable", &bounds.max_unavailable),
    ] {
        if let Some(bound) = bound {
            text::number_or_percent(&path.field(field), bound, 0, report);
        }
    }
    if let Some(bound) = &bounds.max_unavailable {
        text::at_most_all(&path.field("maxUnavailable"), bound, report);
    }
    let is_zero = |bound: &Option<IntOrString>| bound.as_ref().is_some_and(|b| b.scaled_up(100) == Ok(0));
    if is_zero(&bounds.max_surge) && is_zero(&bounds.max_unavailable) {
        report.refuse(
            &path,
            "maxSurge and maxUnavailable are both 0",
            "set one of them to 1 or more",
        );
    }
}
