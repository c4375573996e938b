//! The embedded database: a MariaDB with one pod and one volume, and scheduled dumps of it.
//!
//! The image `mariadb` contains the scripts that make the database, load a dump and write dumps.

mod dump;
mod last_dump;
pub mod operated;
mod server;

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::CronJob,
    core::v1::{Secret, Service},
};
use keelson_api::{
    Accounting, SlurmCluster,
    accounting::StorageConfig,
    references::SecretKeySelector,
    slurmcluster::{EmbeddedDatabase, children},
    well_known::{component, condition, label},
};
use keelson_runtime::{
    Key,
    apply::{Desired, Writer},
};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::{Value, json};

use super::observe::Observed;
use crate::{
    children::{container as containers, metadata::Metadata, volume},
    context::Context,
    error::Error,
    fingerprints::Fingerprints,
    keys,
    problem::Problem,
    secrets,
    workload::{Workload, stateful_set_template},
};

pub use last_dump::problem as problem_of_dumps;

/// User of the image.
const UID: i64 = 999;
const CONTAINER: &str = "mariadb";
const TMP: &str = "tmp";
const TMP_DIR: &str = "/tmp";

/// The objects of the embedded database. Its password Secret is created once and never applied.
#[derive(Debug)]
pub struct Database {
    pub service: Desired<Service>,
    pub stateful_set: Desired<StatefulSet>,
    pub dump: Option<Desired<CronJob>>,
}

/// Creates the password Secrets that are missing. Returns whether it created one that the other steps read. The Secrets have
/// no owner: they outlive the cluster like the volume with the database, which knows no other passwords.
pub async fn make_missing_passwords(
    context: &Context,
    writer: &Writer,
    cluster: &SlurmCluster,
) -> Result<bool, Error> {
    let read = cluster.database_password();
    let mut is_read = false;
    for reference in generated_passwords(cluster) {
        let made = make_missing_password(context, writer, cluster, &reference).await?;
        is_read |= made && read.as_ref() == Some(&reference);
    }
    Ok(is_read)
}

async fn make_missing_password(
    context: &Context,
    writer: &Writer,
    cluster: &SlurmCluster,
    reference: &SecretKeySelector,
) -> Result<bool, Error> {
    let key = Key::new(cluster.namespace().unwrap_or_default(), &reference.name);
    if context.caches.secrets.get(&key).is_some() {
        return Ok(false);
    }
    let desired = password_secret(cluster, reference, rand::random());
    match writer.create(&desired).await {
        Ok(made) => context.secrets.put(&made),
        // The watch has not reported it yet.
        Err(error) if error.is_already_exists() => return Ok(false),
        Err(error) => return Err(Error::Key(error)),
    }
    Ok(true)
}

/// Returns the keys of Secrets with passwords that the operator generates.
fn generated_passwords(cluster: &SlurmCluster) -> Vec<SecretKeySelector> {
    let of_slurmdbd = cluster
        .database_password()
        .filter(|_| cluster.generates_password());
    let of_root = operated::root_password(cluster);
    of_slurmdbd.into_iter().chain(of_root).collect()
}

fn password_secret(
    cluster: &SlurmCluster,
    reference: &SecretKeySelector,
    random: [u8; 32],
) -> Desired<Secret> {
    let SecretKeySelector { name, key, .. } = reference;
    Desired::new(keys::build_password(cluster, name, key, random))
}

/// Builds the database; `None` if the cluster has none of its own.
pub fn build(observed: &Observed) -> Result<Option<Database>, Problem> {
    let cluster = observed.cluster.as_ref();
    let (Some(embedded), Some(password)) = (cluster.embedded_database(), cluster.database_password()) else {
        return Ok(None);
    };
    let plain = secrets::checksum(observed.password.as_deref(), &password)?;
    let live = stateful_set_template(observed.live.database.stateful_set.as_deref());
    let names = Fingerprints::new(observed.hash_key.as_ref(), live)?;
    let hash = names.of(CONTAINER, plain);
    let part = Part {
        cluster,
        embedded: &embedded,
        password: &password,
    };
    Ok(Some(Database {
        service: server::build_service(cluster),
        stateful_set: server::build_stateful_set(&part, hash),
        dump: embedded.dump.as_ref().map(|dump| dump::build(&part, dump)),
    }))
}

/// Reports whether this slurmdbd has changed over from the database at this host to another. The status of the Accounting alone does not say
/// so: it may have been computed just before the new configuration was applied.
pub fn has_left(host: &str, accounting: &Accounting, slurmdbd: Option<&StatefulSet>) -> bool {
    let storage = accounting.spec.storage_config.as_ref();
    let status = accounting.status.clone().unwrap_or_default();
    let says = |kind: &str, value: &str| {
        let generation = accounting.metadata.generation;
        status.conditions.iter().any(|condition| {
            condition.type_ == kind
                && condition.status == value
                && condition.observed_generation == generation
        })
    };
    storage.is_none_or(|storage| storage.host != host)
        && says(condition::READY, "True")
        && says(condition::PROGRESSING, "False")
        && slurmdbd.is_none_or(|set| Workload::from(Some(set)).is_settled())
}

/// The database in the spec.
struct Part<'a> {
    cluster: &'a SlurmCluster,
    embedded: &'a EmbeddedDatabase,
    password: &'a SecretKeySelector,
}

impl Part<'_> {
    /// Returns a container of the image, with a name, mounts and environment of its own.
    fn container(&self, name: &str, mounts: &[Value], env: &[Value]) -> Value {
        let images = self.cluster.spec.images.as_ref();
        let mut all_env = vec![
            json!({ "name": "MARIADB_DATABASE", "value": StorageConfig::default().database }),
            json!({ "name": "MARIADB_USER", "value": children::USER }),
            json!({ "name": "MARIADB_PASSWORD", "valueFrom": { "secretKeyRef": {
                "name": self.password.name, "key": self.password.key } } }),
        ];
        all_env.extend_from_slice(env);
        let mut all_mounts = mounts.to_vec();
        all_mounts.push(volume::mount(TMP, TMP_DIR));
        let mut container = json!({
            "name": name,
            "image": children::image_of(self.cluster, children::MARIADB_IMAGE),
            "env": all_env,
            "securityContext": containers::unprivileged(UID),
            // The status quotes the last line.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": all_mounts,
        });
        put(
            &mut container,
            "imagePullPolicy",
            images.and_then(|images| images.pull_policy.as_ref()),
        );
        container
    }

    /// Returns the spec of a pod with this container.
    fn pod_spec(&self, container: &Value, volumes: &[Value]) -> Value {
        let mut spec = json!({
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": containers::unprivileged_pod(UID),
            "containers": [container],
            "volumes": volumes,
        });
        let secrets = children::pull_secrets(self.cluster);
        put(
            &mut spec,
            "imagePullSecrets",
            Some(&secrets).filter(|secrets| !secrets.is_empty()),
        );
        spec
    }
}

/// Sets a field that has a value.
fn put<T: Serialize>(object: &mut Value, name: &str, value: Option<&T>) {
    if let (Some(value), Value::Object(fields)) = (value, object) {
        fields.insert(name.to_owned(), json!(value));
    }
}

/// Returns the metadata of what belongs to the server, or to its dumps.
fn metadata(cluster: &SlurmCluster, app: &str) -> Metadata {
    Metadata::inherited(cluster).with_labels([
        (label::APP, app.to_owned()),
        (label::INSTANCE, cluster.name_any()),
        (label::COMPONENT, component::DATABASE.to_owned()),
    ])
}

#[cfg(test)]
mod tests;
