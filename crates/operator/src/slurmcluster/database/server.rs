//! Builds the server: Service and StatefulSet. Pure.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Service};
use keelson_api::{
    SlurmCluster,
    scalars::Quantity,
    slurmcluster::{DumpFile, children},
    well_known::{annotation, app, port},
};
use keelson_runtime::apply::Desired;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{CONTAINER, Part, TMP, metadata, put};
use crate::children::{
    container as containers,
    metadata::{owned_by, selector},
    pod, volume,
};

const DATA: &str = children::DATABASE_VOLUME;
const DATA_DIR: &str = "/var/lib/mysql";
const RUN: &str = "run";
const RUN_DIR: &str = "/run/mysqld";
const RESTORE: &str = "restore";
const RESTORE_DIR: &str = "/restore";
const DEFAULT_SIZE: &str = "10Gi";
/// Whether the server answers. Access denied is an answer too. While it is made or loads a dump, it has another socket.
const PING: [&str; 3] = ["mariadb-admin", "--socket=/run/mysqld/mysqld.sock", "ping"];

fn named(cluster: &SlurmCluster) -> Value {
    let namespace = cluster.namespace().unwrap_or_default();
    metadata(cluster, app::DATABASE).of_object(
        &namespace,
        &children::database_name(cluster),
        &[owned_by(cluster)],
    )
}

pub fn build_service(cluster: &SlurmCluster) -> Desired<Service> {
    Desired::new(json!({
        "metadata": named(cluster),
        "spec": {
            "selector": selector(app::DATABASE, &cluster.name_any()),
            "ports": [{ "name": "mysql", "port": port::STORAGE, "targetPort": "mysql", "protocol": "TCP" }],
        },
    }))
}

/// `password_hash` replaces the pod when the password changes: the server sets it when it starts.
pub fn build_stateful_set(part: &Part, password_hash: String) -> Desired<StatefulSet> {
    let cluster = part.cluster;
    let user = part.embedded.template.as_ref();
    let pod_metadata = metadata(cluster, app::DATABASE)
        .with_override(user.and_then(|user| user.metadata.as_ref()))
        .with_annotations([
            (annotation::DATABASE_PASSWORD_HASH, password_hash),
            (annotation::DEFAULT_CONTAINER, CONTAINER.to_owned()),
        ]);
    Desired::new(json!({
        "metadata": named(cluster),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 0,
            "podManagementPolicy": "Parallel",
            "serviceName": children::database_name(cluster),
            "selector": { "matchLabels": selector(app::DATABASE, &cluster.name_any()) },
            "template": pod::template(&pod_metadata, pod_spec(part), user),
            // The records outlive the cluster.
            "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Retain", "whenScaled": "Retain" },
            "volumeClaimTemplates": [{ "metadata": { "name": DATA }, "spec": claim_spec(part) }],
        },
    }))
}

fn claim_spec(part: &Part) -> Value {
    let size = size(part.embedded.storage.as_ref());
    let mut claim = json!({
        "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": size } },
    });
    put(
        &mut claim,
        "storageClassName",
        part.embedded.storage_class_name.as_ref(),
    );
    claim
}

fn pod_spec(part: &Part) -> Value {
    // The files in RUN are small, and one of them contains the password.
    let mut volumes = vec![volume::memory(RUN), volume::scratch(TMP)];
    let mut mounts = vec![volume::mount(DATA, DATA_DIR), volume::mount(RUN, RUN_DIR)];
    let mut env = Vec::new();
    if let Some(DumpFile { claim, file }) = &part.embedded.restore_from {
        volumes.push(volume::claim(RESTORE, claim));
        mounts.push(volume::read_only(RESTORE, RESTORE_DIR));
        env.push(json!({ "name": "MARIADB_RESTORE_DIR", "value": RESTORE_DIR }));
        env.extend(
            file.iter()
                .map(|file| json!({ "name": "MARIADB_RESTORE_FILE", "value": file })),
        );
    }
    let mut base = part.container(CONTAINER, &mounts, &env);
    put(
        &mut base,
        "ports",
        Some(&[containers::port("mysql", port::STORAGE)]),
    );
    let ping = || json!({ "exec": { "command": PING } });
    // InnoDB recovers before it listens. However long that takes, a restart would only begin it anew.
    put(
        &mut base,
        "startupProbe",
        Some(&slow(containers::patient(ping()))),
    );
    put(&mut base, "readinessProbe", Some(&containers::often(ping())));
    let mut alive = containers::forbearing(ping());
    put(&mut alive, "timeoutSeconds", Some(&10));
    put(&mut base, "livenessProbe", Some(&alive));
    let container = pod::container(base, part.embedded.mariadb.as_ref());
    let mut spec = part.pod_spec(&container, &volumes);
    // A clean shutdown of a large buffer pool takes time; what is cut short has to be recovered at the next start.
    put(&mut spec, "terminationGracePeriodSeconds", Some(&300));
    spec
}

/// Lets a start take two days.
fn slow(mut probe: Value) -> Value {
    put(&mut probe, "periodSeconds", Some(&2));
    put(&mut probe, "failureThreshold", Some(&86_400));
    probe
}

/// Returns the size of a database's volume.
pub fn size(written: Option<&Quantity>) -> String {
    written.map_or_else(|| DEFAULT_SIZE.to_owned(), |size| size.0.to_string())
}
