//! Rules for Accountings.

use crate::accounting::{Accounting, AccountingSpec, StorageConfig, StorageTls};
use crate::validate::path::Path;
use crate::validate::pods::{Own, Pod};
use crate::validate::references::{self, Keys};
use crate::validate::report::Report;
use crate::validate::{Validate, service, text};
use crate::well_known::container;

impl Validate for Accounting {
    fn check(&self, report: &mut Report) {
        let spec = Path::spec();
        let AccountingSpec {
            auth: _,
            slurm_key_ref,
            jwt_key_ref,
            jwt_hs256_key_ref,
            jwks_key_ref,
            external,
            external_config,
            slurmdbd,
            template,
            storage_config,
            extra_conf,
            service,
        } = &self.spec;
        Keys {
            external: *external,
            external_config: external_config.as_ref(),
            slurm_key: slurm_key_ref.as_ref(),
            jwt_key: jwt_key_ref.as_ref(),
            jwt_hs256_key: jwt_hs256_key_ref.as_ref(),
            jwks_key: jwks_key_ref.as_ref(),
        }
        .check("slurmdbd", report);
        Pod {
            containers: &[Own::new(container::SLURMDBD, slurmdbd.as_ref(), !external)],
            init_containers: &[],
            template: template.as_ref(),
        }
        .check(report);
        match storage_config {
            _ if *external => {}
            Some(storage) => database(storage, report),
            None => report.refuse(
                &spec.field("storageConfig"),
                "must be set when external is false",
                "set the host of the database and the Secret with its password",
            ),
        }
        text::lines(&spec.field("extraConf"), extra_conf.as_deref(), report);
        service::check(service.as_ref(), report);
    }

    fn check_change(&self, old: &Self, report: &mut Report) {
        references::auth_unchanged(old.spec.auth.as_ref(), self.spec.auth.as_ref(), report);
        references::unchanged(
            &Path::spec().field("jwtKeyRef"),
            &old.spec.jwt_key(),
            &self.spec.jwt_key(),
            "tokens signed with the old key would be rejected",
            report,
        );
        if let (false, Some(before), Some(after)) = (
            self.spec.external,
            &old.spec.storage_config,
            &self.spec.storage_config,
        ) {
            another_database(before, after, report);
        }
    }
}

/// Warns about a new database: slurmdbd silently creates empty tables there. Only the owner knows whether the records were
/// copied.
fn another_database(before: &StorageConfig, after: &StorageConfig, report: &mut Report) {
    let storage = Path::spec().field("storageConfig");
    let fields = [
        ("database", &before.database, &after.database),
        ("host", &before.host, &after.host),
    ];
    for (field, before, after) in fields.into_iter().filter(|(_, before, after)| before != after) {
        report.warn(
            &storage.field(field),
            format!(
                "changes from {before:?} to {after:?}: slurmdbd does not move the records; unless they are already there, copy the \
                 database first"
            ),
        );
    }
}

fn database(storage: &StorageConfig, report: &mut Report) {
    let path = Path::spec().field("storageConfig");
    text::host(&path.field("host"), &storage.host, report);
    text::port(&path.field("port"), storage.port(), report);
    text::word(&path.field("database"), &storage.database, report);
    if let Some(username) = &storage.username {
        text::word(&path.field("username"), username, report);
    }
    references::secret_key(&path.field("passwordKeyRef"), &storage.password_key_ref, report);
    if let Some(StorageTls {
        ca_cert_ref,
        client_cert_ref,
    }) = &storage.tls
    {
        let path = path.field("tls");
        references::secret_key(&path.field("caCertRef"), ca_cert_ref, report);
        if let Some(certificate) = client_cert_ref {
            references::local(&path.field("clientCertRef"), certificate, "Secret", report);
        }
    }
}
