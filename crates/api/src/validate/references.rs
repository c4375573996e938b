//! Rules on references to other objects.

use crate::references::{ConfigMapKeySelector, ExternalConfig, LocalObjectReference, SecretKeySelector};
use crate::validate::path::Path;
use crate::validate::report::Report;
use crate::validate::text;

/// The name of an object in the same namespace.
pub(crate) fn local_name(path: &Path, name: &str, kind: &str, report: &mut Report) {
    if name.is_empty() {
        report.refuse(
            path,
            "is empty",
            format!("write the name of a {kind} in the same namespace"),
        );
    } else if name.contains('/') {
        report.refuse(
            path,
            format!("{name:?} names another namespace, which references cannot do"),
            format!("write only the name, and put the {kind} in this namespace"),
        );
    } else if !text::is_dns_subdomain(name) {
        report.refuse(
            path,
            format!("{name:?} cannot be the name of a {kind}"),
            "write lower-case letters, digits, '-' and '.', starting and ending with a letter or digit",
        );
    }
}

pub(crate) fn local(path: &Path, reference: &LocalObjectReference, kind: &str, report: &mut Report) {
    local_name(&path.field("name"), &reference.name, kind, report);
}

/// A list of references; naming one twice is harmless but not meant.
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
                format!("{:?} is listed twice", reference.name),
            );
        }
    }
}

fn key(path: &Path, name: &str, key: &str, kind: &str, report: &mut Report) {
    local_name(&path.field("name"), name, kind, report);
    if !text::is_data_key(key) {
        report.refuse(
            &path.field("key"),
            format!("{key:?} cannot be a key of a {kind}"),
            format!("write a key of the {kind}: letters, digits, '-', '_' and '.'"),
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
            "the pods would start without the key and fail; it is taken as false",
        );
    }
}

/// Keys that a daemon cannot run without; the CRD's rules ask for them too, but only the API server runs those.
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
                "name the Secret and the key that hold the auth/slurm key",
            ),
        }
        if self.jwt_key.is_none() && self.jwt_hs256_key.is_none() && !self.external {
            report.refuse(
                &spec.field("jwtKeyRef"),
                "must be set when external is false",
                "name the Secret and the key that hold the JWT signing key",
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
            Some(_) => report.warn(
                &spec.field("externalConfig"),
                "is not used while external is false",
            ),
            None if self.external => report.refuse(
                &spec.field("externalConfig"),
                "must be set when external is true",
                format!("write the host and port of the {daemon} to use"),
            ),
            None => {}
        }
    }
}

/// The current and the deprecated field for the JWT key.
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

/// A reference that must keep its value.
pub(crate) fn unchanged<T: PartialEq>(path: &Path, old: &T, new: &T, why: &str, report: &mut Report) {
    if old != new {
        report.refuse(
            path,
            format!("cannot be changed: {why}"),
            "put the old value back, or make a new object",
        );
    }
}
