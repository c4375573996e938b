//! The connection of slurmdbd to its database.

use serde_json::{Value, json};

use super::parts::put;
use super::{data_claim_name, database_name, dump_name, operated_database_name};
use crate::accounting::StorageConfig;
use crate::defaults;
use crate::references::SecretKeySelector;
use crate::slurmcluster::{
    AccountingPart, Database, DumpFile, EmbeddedDatabase, ExternalDatabase, OperatedDatabase, SlurmCluster,
};
use crate::validate::{Path, Report};
use crate::well_known::port;

/// Image of the embedded database, without registry.
pub const MARIADB_IMAGE: &str = "mariadb:11.8";
/// Key of the password in the Secret of the embedded database.
pub const PASSWORD: &str = "password";
/// Volume of the embedded database.
pub const DATABASE_VOLUME: &str = "data";
/// User of slurmdbd in the embedded database.
pub const USER: &str = "slurm";

impl SlurmCluster {
    /// The database that the operator runs for this cluster, if any.
    pub fn embedded_database(&self) -> Option<EmbeddedDatabase> {
        let part = self.spec.accounting.as_ref().filter(|part| part.enabled)?;
        match &part.database {
            Some(database) => database.embedded.clone(),
            None => (!connects_elsewhere(part)).then(EmbeddedDatabase::default),
        }
    }
}

impl SlurmCluster {
    /// The database that mariadb-operator runs for this cluster, if any.
    pub fn operated_database(&self) -> Option<OperatedDatabase> {
        let part = self.spec.accounting.as_ref().filter(|part| part.enabled)?;
        part.database.as_ref()?.mariadb_operator.clone()
    }

    /// The user's reference to the password of the cluster's own database. `None` if the operator generates it, or if there is
    /// no such database.
    fn written_password(&self) -> Option<SecretKeySelector> {
        let embedded = self
            .embedded_database()
            .and_then(|database| database.password_key_ref);
        embedded.or_else(|| self.operated_database()?.password_key_ref)
    }

    /// Whether the cluster has a database whose password the operator generates.
    pub fn generates_password(&self) -> bool {
        let has_own = self.embedded_database().is_some() || self.operated_database().is_some();
        has_own && self.written_password().is_none()
    }

    /// The password of the cluster's own database, if there is one.
    pub fn database_password(&self) -> Option<SecretKeySelector> {
        let generated = || SecretKeySelector {
            name: database_name(self),
            key: PASSWORD.to_owned(),
            optional: None,
        };
        self.written_password()
            .or_else(|| self.generates_password().then(generated))
    }
}

/// Whether the user's own fields say where the database or slurmdbd is.
fn connects_elsewhere(part: &AccountingPart) -> bool {
    ["storageConfig", "external"]
        .iter()
        .any(|name| part.fields.has(name))
}

/// The field that says where the database is, unless the user wrote `storageConfig`.
pub(super) fn field(part: &AccountingPart) -> Path {
    let name = match &part.database {
        Some(Database {
            external: Some(_), ..
        }) => "external",
        Some(Database {
            mariadb_operator: Some(_),
            ..
        }) => "mariadbOperator",
        _ => "embedded",
    };
    Path::spec().field("accounting").field("database").field(name)
}

/// `storageConfig` of the Accounting, unless the user wrote it.
pub(super) fn storage_config(
    cluster: &SlurmCluster,
    part: &AccountingPart,
    report: &mut Report,
) -> Option<Value> {
    let path = Path::spec().field("accounting").field("database");
    if part.database.is_some() && connects_elsewhere(part) {
        report.refuse(
            &path,
            "accounting.storageConfig or accounting.external says where the database is, too",
            "remove one of them",
        );
    }
    match &part.database {
        Some(Database {
            embedded,
            external,
            mariadb_operator,
        }) if [embedded.is_some(), external.is_some(), mariadb_operator.is_some()]
            .into_iter()
            .filter(|set| *set)
            .count()
            != 1 =>
        {
            let none = embedded.is_none() && external.is_none() && mariadb_operator.is_none();
            report.refuse(
                &path,
                if none {
                    "names no database"
                } else {
                    "there are two databases"
                },
                "set one of embedded, external and mariadbOperator",
            );
            None
        }
        Some(Database {
            external: Some(external),
            ..
        }) => Some(external_storage(external)),
        Some(Database {
            mariadb_operator: Some(operated),
            ..
        }) => {
            let mut storage = own_storage(cluster);
            let host = operated.host.clone();
            let host = host.unwrap_or_else(|| operated_database_name(cluster));
            put(&mut storage, &["host"], json!(host));
            Some(storage)
        }
        _ => cluster.embedded_database().map(|embedded| {
            check(cluster, &embedded, &path.field("embedded"), report);
            own_storage(cluster)
        }),
    }
}

/// Longest name of a CronJob: its Jobs are named after it.
const CRON_JOB_NAME_MAX: usize = 52;
/// Words that cron accepts instead of five fields.
const SCHEDULES: [&str; 7] = [
    "@annually",
    "@daily",
    "@hourly",
    "@midnight",
    "@monthly",
    "@weekly",
    "@yearly",
];

fn check(cluster: &SlurmCluster, embedded: &EmbeddedDatabase, path: &Path, report: &mut Report) {
    let EmbeddedDatabase {
        dump, restore_from, ..
    } = embedded;
    let own = |claim: &str| claim == data_claim_name(cluster);
    if let Some(dump) = dump {
        let path = path.field("dump");
        if dump.schedule.split_whitespace().count() != 5 && !SCHEDULES.contains(&dump.schedule.as_str()) {
            report.refuse(
                &path.field("schedule"),
                format!("{:?} is not a schedule", dump.schedule),
                "write minute, hour, day of the month, month and day of the week, such as \"15 3 * * *\"",
            );
        }
        if own(&dump.claim) {
            report.refuse(
                &path.field("claim"),
                format!("claim {} is the volume of the database itself", dump.claim),
                "use another claim",
            );
        }
        let name = dump_name(cluster);
        if name.len() > CRON_JOB_NAME_MAX {
            report.refuse(
                &path,
                format!("its CronJob would be named {name}, which is too long"),
                format!(
                    "use a name of the cluster that is {} characters shorter",
                    name.len() - CRON_JOB_NAME_MAX
                ),
            );
        }
    }
    if let Some(DumpFile { claim, file }) = restore_from {
        let path = path.field("restoreFrom");
        if own(claim) {
            report.refuse(
                &path.field("claim"),
                format!("claim {claim} is the volume of the database itself"),
                "use the claim of the dump",
            );
        }
        let is_inside =
            |file: &String| !file.is_empty() && file.split('/').all(|part| !matches!(part, "" | ".."));
        if let Some(file) = file.as_ref().filter(|file| !is_inside(file)) {
            report.refuse(
                &path.field("file"),
                format!("{file:?} is not a path in the claim"),
                "write it without a leading '/' and without '..'",
            );
        }
    }
}

fn own_storage(cluster: &SlurmCluster) -> Value {
    let name = database_name(cluster);
    json!({
        "host": name,
        "port": port::STORAGE,
        "database": defaults::storage_database(),
        "username": USER,
        "passwordKeyRef": cluster.database_password(),
    })
}

fn external_storage(external: &ExternalDatabase) -> Value {
    let ExternalDatabase {
        host,
        port,
        database,
        username,
        password_key_ref,
        tls,
    } = external.clone();
    json!(StorageConfig {
        host,
        port,
        database,
        username,
        password_key_ref,
        tls,
    })
}
