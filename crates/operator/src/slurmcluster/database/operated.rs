//! The database that mariadb-operator runs: one object, from which it creates the database, its user and its rights.

use keelson_api::{
    SlurmCluster,
    accounting::StorageConfig,
    overrides::RawObject,
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
    slurmcluster::observe::Observed,
};

/// What Slurm asks of its database.
const SETTINGS: &str =
    "[mariadb]\ninnodb_lock_wait_timeout=900\ninnodb_snapshot_isolation=OFF\nmax_allowed_packet=16M\n";

/// Builds the object; `None` if the spec asks for no such database.
pub fn build(observed: &Observed) -> Result<Option<Desired<MariaDb>>, Problem> {
    let cluster = observed.cluster.as_ref();
    let Some(operated) = cluster.operated_database() else {
        return Ok(None);
    };
    match observed.mariadb_operator {
        Installed::Yes => Ok(Some(build_object(cluster, &operated))),
        Installed::No => Err(Problem::missing(format!(
            "spec.accounting.database.mariadbOperator needs the CRD {CRD}, which is not installed: install mariadb-operator, \
             or set embedded instead"
        ))),
        Installed::Unknown => Err(Problem::missing(format!(
            "waiting to learn whether the CRD {CRD} is installed"
        ))),
    }
}

fn build_object(cluster: &SlurmCluster, operated: &OperatedDatabase) -> Desired<MariaDb> {
    let name = children::operated_database_name(cluster);
    let password = cluster.database_password();
    let ours = json!({
        "rootPasswordSecretKeyRef": { "name": format!("{name}-root"), "key": children::PASSWORD, "generate": true },
        "database": StorageConfig::default().database,
        "username": children::USER,
        "passwordSecretKeyRef": password.map(|password| json!({ "name": password.name, "key": password.key })),
        "storage": { "size": server::size(operated.storage.as_ref()) },
        "replicas": 1,
        "myCnf": SETTINGS,
    });
    let spec = match &operated.spec {
        Some(RawObject(written)) => over(ours, Value::Object(written.clone())),
        None => ours,
    };
    let namespace = cluster.namespace().unwrap_or_default();
    Desired::new(json!({
        "metadata": metadata(cluster, app::DATABASE).of_object(&namespace, &name, &[owned_by(cluster)]),
        "spec": spec,
    }))
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
