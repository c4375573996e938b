//! The database that mariadb-operator runs: one object, from which it creates the database, its user and its rights.

use keelson_api::{
    SlurmCluster,
    accounting::StorageConfig,
    overrides::RawObject,
    references::SecretKeySelector,
    slurmcluster::{OperatedDatabase, children},
    well_known::app,
};
use keelson_runtime::{apply::Desired, optional_kind::Installed};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{metadata, server};
use crate::{
    children::{
        mariadb::{CRD, MariaDb},
        metadata::owned_by,
    },
    problem::Problem,
    secrets,
    slurmcluster::observe::Observed,
};

/// What Slurm asks of its database.
const SETTINGS: &str =
    "[mariadb]\ninnodb_lock_wait_timeout=900\ninnodb_snapshot_isolation=OFF\nmax_allowed_packet=16M\n";

const ROOT_PASSWORD: &str = "rootPasswordSecretKeyRef";

/// Builds the object; `None` if the spec asks for no such database.
pub fn build(observed: &Observed) -> Result<Option<Desired<MariaDb>>, Problem> {
    let cluster = observed.cluster.as_ref();
    let Some(operated) = cluster.operated_database() else {
        return Ok(None);
    };
    match observed.mariadb_operator {
        Installed::Yes => {
            check_password(observed)?;
            Ok(Some(build_object(cluster, &operated)))
        }
        Installed::No => Err(Problem::missing(format!(
            "spec.accounting.database.mariadbOperator needs the CRD {CRD}, which is not installed: install mariadb-operator, \
             or set embedded instead"
        ))),
        Installed::Unknown => Err(Problem::missing(format!(
            "waiting to learn whether the CRD {CRD} is installed"
        ))),
    }
}

/// Returns the key of the Secret with the password of `root`, unless the user names a Secret for it. mariadb-operator could
/// generate that too, but some of its versions delete what they generated with the MariaDB, whose volume stays.
pub fn root_password(cluster: &SlurmCluster) -> Option<SecretKeySelector> {
    let spec = spec(cluster, &cluster.operated_database()?);
    let reference = spec.get(ROOT_PASSWORD)?;
    let text = |field| Some(reference.get(field)?.as_str()?.to_owned());
    Some(SecretKeySelector {
        name: text("name").filter(|name| *name == root_password_name(cluster))?,
        key: text("key")?,
        optional: None,
    })
}

fn root_password_name(cluster: &SlurmCluster) -> String {
    format!("{}-root", children::operated_database_name(cluster))
}

/// slurmdbd.conf gets the password without a line break at its end, and mariadb-operator would set it with one.
fn check_password(observed: &Observed) -> Result<(), Problem> {
    let Some(reference) = observed.cluster.database_password() else {
        return Ok(());
    };
    match secrets::value(observed.password.as_deref(), &reference) {
        Ok(password) if password.iter().any(|byte| matches!(byte, b'\r' | b'\n')) => {
            let SecretKeySelector { name, key, .. } = reference;
            Err(Problem::invalid(format!(
                "key {key:?} of Secret {name} contains a line break, which mariadb-operator would take as a part of the \
                 password: write the password without it"
            )))
        }
        // If there is none yet, mariadb-operator waits for it.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn build_object(cluster: &SlurmCluster, operated: &OperatedDatabase) -> Desired<MariaDb> {
    let name = children::operated_database_name(cluster);
    let namespace = cluster.namespace().unwrap_or_default();
    Desired::new(json!({
        "metadata": metadata(cluster, app::DATABASE).of_object(&namespace, &name, &[owned_by(cluster)]),
        "spec": spec(cluster, operated),
    }))
}

fn spec(cluster: &SlurmCluster, operated: &OperatedDatabase) -> Value {
    let password = cluster.database_password();
    let ours = json!({
        ROOT_PASSWORD: { "name": root_password_name(cluster), "key": children::PASSWORD, "generate": false },
        "database": StorageConfig::default().database,
        "username": children::USER,
        "passwordSecretKeyRef": password.map(|password| json!({ "name": password.name, "key": password.key })),
        "storage": { "size": server::size(operated.storage.as_ref()) },
        "replicas": 1,
        "myCnf": SETTINGS,
    });
    match &operated.spec {
        Some(RawObject(written)) => over(ours, Value::Object(written.clone())),
        None => ours,
    }
}

/// Merges what the user wrote over ours: maps field by field, everything else as a whole.
fn over(ours: Value, written: Value) -> Value {
    match (ours, written) {
        (Value::Object(mut merged), Value::Object(written)) => {
            for (name, value) in written {
                let value = match merged.remove(&name) {
                    Some(ours) => over(ours, value),
                    None => value,
                };
                merged.insert(name, value);
            }
            Value::Object(merged)
        }
        (_, written) => written,
    }
}
