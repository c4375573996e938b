//! Rules for references to other objects.

use crate::auth::Auth;
use crate::references::{ConfigMapKeySelector, ExternalConfig, LocalObjectReference, SecretKeySelector};
use crate::validate::path::Path;
use crate::validate::report::Report;
use crate::validate::text;

/// Checks the name of an object in the same namespace.
pub(crate) fn local_name(path: &Path, name: &str, kind: &str, report: &mut Report) {
    if name.is_empty() {
        report.refuse(
            path,
            "is empty",
            format!("set the name of a {kind} in the same namespace"),
        );
    } else if name.contains('/') {
        report.refuse(
            path,
            format!("{name:?} contains a namespace, but references cannot cross namespaces"),
            format!("use only the name, and create the {kind} in this namespace"),
        );
    } else if !text::is_dns_subdomain(name) {
        report.refuse(
            path,
            format!("{name:?} is not a valid {kind} name"),
            "use lower-case letters, digits, '-' and '.', starting and ending with a letter or digit",
        );
    }
}

pub(crate) fn local(path: &Path, reference: &LocalObjectReference, kind: &str, report: &mut Report) {
    local_name(&path.field("name"), &reference.name, kind, report);
}

/// Checks a list of references; a duplicate is harmless but unintended.
pub(crate) fn locals(
    path: &Path,
    references: Option<&Vec<LocalObjectReference>>,
    kind: &str,
    report: &mut Report,
) {
    let references = references.map(Vec::as_slice).unwrap_or_default();
    for (index, reference) in references.iter().enumerate() {
        local(&path.index(index), reference, kind, report);
        if !reference.name.is_empty() && references.iter().take(index).any(|earlier| earlier == reference) {
            report.warn(
                &path.index(index),
                format!("duplicate reference {:?}", reference.name),
            );
        }
    }
}

fn key(path: &Path, name: &str, key: &str, kind: &str, report: &mut Report) {
    local_name(&path.field("name"), name, kind, report);
    if !text::is_data_key(key) {
        report.refuse(
            &path.field("key"),
            format!("{key:?} is not a valid {kind} key"),
            format!("set a key of the {kind}: letters, digits, '-', '_' and '.'"),
        );
    }
}

pub(crate) fn secret_key(path: &Path, selector: &SecretKeySelector, report: &mut Report) {
    key(path, &selector.name, &selector.key, "Secret", report);
    optional(path, selector.optional, report);
}

pub(crate) fn config_map_key(path: &Path, selector: &ConfigMapKeySelector, report: &mut Report) {
    key(path, &selector.name, &selector.key, "ConfigMap", report);
    optional(path, selector.optional, report);
}

fn optional(path: &Path, optional: Option<bool>, report: &mut Report) {
    if optional == Some(true) {
        report.warn(
            &path.field("optional"),
            "the pods would start without the key and fail; the operator treats it as false",
        );
    }
}

/// Keys that a daemon requires. The CRD's validation rules check this too, but only the API server evaluates those.
pub(crate) struct Keys<'a> {
    pub(crate) external: bool,
    pub(crate) external_config: Option<&'a ExternalConfig>,
    pub(crate) slurm_key: Option<&'a SecretKeySelector>,
    pub(crate) jwt_key: Option<&'a SecretKeySelector>,
    pub(crate) jwt_hs256_key: Option<&'a SecretKeySelector>,
    pub(crate) jwks_key: Option<&'a ConfigMapKeySelector>,
}

impl Keys<'_> {
    pub(crate) fn check(&self, daemon: &str, report: &mut Report) {
        let spec = Path::spec();
        match self.slurm_key {
            Some(selector) => secret_key(&spec.field("slurmKeyRef"), selector, report),
            None if self.external => {}
            None => report.refuse(
                &spec.field("slurmKeyRef"),
                "must be set when external is false",
                "set the Secret and the key that hold the auth/slurm key",
            ),
        }
        if self.jwt_key.is_none() && self.jwt_hs256_key.is_none() && !self.external {
            report.refuse(
                &spec.field("jwtKeyRef"),
                "must be set when external is false",
                "set the Secret and the key that hold the JWT signing key",
            );
        }
        jwt_keys(self.jwt_key, self.jwt_hs256_key, report);
        if let Some(selector) = self.jwks_key {
            config_map_key(&spec.field("jwksKeyRef"), selector, report);
        }
        match self.external_config {
            Some(config) if self.external => {
                text::host(&spec.field("externalConfig").field("host"), &config.host, report);
                text::port(&spec.field("externalConfig").field("port"), config.port, report);
            }
            Some(_) => report.warn(&spec.field("externalConfig"), "is not used if external is false"),
            None if self.external => report.refuse(
                &spec.field("externalConfig"),
                "must be set when external is true",
                format!("set the host and port of the external {daemon}"),
            ),
            None => {}
        }
    }
}

/// Refuses another way of authentication: slurmctld would not know its nodes and jobs any more.
pub(crate) fn auth_unchanged(old: Option<&Auth>, new: Option<&Auth>, report: &mut Report) {
    let word = |auth: Option<&Auth>| auth.copied().unwrap_or_default().kind;
    unchanged(
        &Path::spec().field("auth").field("type"),
        &word(old),
        &word(new),
        "the daemons of a cluster would no longer understand each other",
        report,
    );
}

/// Checks the current and the deprecated field for the JWT key.
pub(crate) fn jwt_keys(
    current: Option<&SecretKeySelector>,
    deprecated: Option<&SecretKeySelector>,
    report: &mut Report,
) {
    let spec = Path::spec();
    if let Some(selector) = current {
        secret_key(&spec.field("jwtKeyRef"), selector, report);
    }
    if let Some(selector) = deprecated {
        let path = spec.field("jwtHs256KeyRef");
        match current {
            None => secret_key(&path, selector, report),
            Some(current) if current != selector => {
                report.warn(&path, "is not used because jwtKeyRef is set");
            }
            Some(_) => {}
        }
    }
}

/// Rejects a change of an immutable field.
pub(crate) fn unchanged<T: PartialEq>(path: &Path, old: &T, new: &T, why: &str, report: &mut Report) {
    if old != new {
        report.refuse(
            path,
            format!("cannot be changed: {why}"),
            "restore the old value, or create a new object",
        );
    }
}
