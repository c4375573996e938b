//! Reads the inputs of an Accounting and its existing children.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Pod, Secret, Service},
};
use keelson_api::{Accounting, well_known::container};
use keelson_runtime::{Key, contents, run::chain};
use kube::{Api, ResourceExt, api::LogParams};

use super::daemon::{self, Daemon};
use crate::{
    caches::{REFERENCE, reference_value},
    context::Context,
    fingerprints::HashKey,
};

/// Enough for several connection attempts.
const LOG_LINES: i64 = 40;
/// Seconds of log that count once slurmdbd listens. slurmdbd does not log that its database is back; it only stops
/// logging errors.
const OF_LATE: i64 = 60;
const LOG_LIMIT: Duration = Duration::from_secs(5);

/// Input of the other steps.
#[derive(Clone)]
pub struct Observed {
    pub accounting: Arc<Accounting>,
    pub slurm_key: Option<Arc<Secret>>,
    pub hash_key: Option<HashKey>,
    /// Fingerprint of the slurm.key that a slurmctld with the same Secret runs with.
    pub slurm_key_in_use: Option<String>,
    pub jwt_key: Option<Arc<Secret>>,
    /// The Secret with the database password.
    pub password: Option<Arc<Secret>>,
    /// The Secret with the certificates that the database's certificate is verified with.
    pub database_ca: Option<Arc<Secret>>,
    /// The Secret with slurmdbd's own certificate.
    pub database_client: Option<Arc<Secret>>,
    pub jwks: Option<Arc<ConfigMap>>,
    pub live: Live,
    /// Recent log of a running slurmdbd.
    pub log: Option<String>,
}

/// The existing children.
#[derive(Clone, Default)]
pub struct Live {
    pub service: Option<Arc<Service>>,
    pub config: Option<Arc<Secret>>,
    pub stateful_set: Option<Arc<StatefulSet>>,
    pub pod: Option<Arc<Pod>>,
}

pub async fn observe(context: &Context, accounting: Arc<Accounting>) -> Result<Observed, contents::Error> {
    let caches = &context.caches;
    let namespace = accounting.namespace().unwrap_or_default();
    let spec = &accounting.spec;
    let name = accounting.accounting_name();
    let here = |name: &str| Key::new(&namespace, name);

    let storage = spec.storage_config.as_ref();
    let tls = storage.and_then(|storage| storage.tls.as_ref());
    let client = tls.and_then(|tls| tls.client_cert_ref.as_ref());
    let mut secrets = [None, None, None, None, None];
    let names = [
        spec.slurm_key_ref.as_ref().map(|key| &key.name),
        spec.jwt_key().map(|key| &key.name),
        storage.map(|storage| &storage.password_key_ref.name),
        tls.map(|tls| &tls.ca_cert_ref.name),
        client.map(|client| &client.name),
    ];
    for (slot, name) in secrets.iter_mut().zip(names) {
        if let Some(name) = name {
            *slot = context.secret(&namespace, name).await?;
        }
    }
    let [slurm_key, jwt_key, password, database_ca, database_client] = secrets;
    let jwks = match &spec.jwks_key_ref {
        Some(reference) => context.config_map(&namespace, &reference.name).await?,
        None => None,
    };
    let hash_key = if spec.external {
        None
    } else {
        context.hash_key(accounting.as_ref()).await?
    };
    let pod = caches.pods.get(&here(&accounting.pod_name()));
    let log = match daemon::of_pod(pod.as_ref(), context.clock.now()) {
        Daemon::Busy => read_log(context, &namespace, &accounting.pod_name(), None).await,
        Daemon::Ready => read_log(context, &namespace, &accounting.pod_name(), Some(OF_LATE)).await,
        Daemon::Starting | Daemon::Troubled(_) => None,
    };
    Ok(Observed {
        slurm_key_in_use: slurm_key_in_use(context, &accounting),
        slurm_key,
        hash_key,
        jwt_key,
        password,
        database_ca,
        database_client,
        jwks,
        live: Live {
            service: caches.services.get(&here(&name)),
            config: context.secret(&namespace, &name).await?,
            stateful_set: caches.stateful_sets.get(&here(&name)),
            pod,
        },
        log,
        accounting,
    })
}

fn slurm_key_in_use(context: &Context, accounting: &Accounting) -> Option<String> {
    let caches = &context.caches;
    let namespace = accounting.namespace().unwrap_or_default();
    let id = reference_value("Accounting", &namespace, &accounting.name_any());
    caches
        .controllers
        .find(REFERENCE, &id)
        .into_iter()
        .filter(|controller| controller.spec.slurm_key_ref == accounting.spec.slurm_key_ref)
        .find_map(|controller| context.slurm_key_in_use(&controller))
}

/// Reads the log of slurmdbd. A failure only makes the status less detailed: Slinky's RBAC roles forbid reading logs.
async fn read_log(
    context: &Context,
    namespace: &str,
    pod: &str,
    since_seconds: Option<i64>,
) -> Option<String> {
    let params = LogParams {
        container: Some(container::SLURMDBD.to_owned()),
        tail_lines: Some(LOG_LINES),
        since_seconds,
        ..LogParams::default()
    };
    let api = Api::<Pod>::namespaced(context.client.clone(), namespace);
    match tokio::time::timeout(LOG_LIMIT, api.logs(pod, &params)).await {
        Ok(Ok(log)) => Some(log),
        Ok(Err(error)) => {
            tracing::debug!(pod, error = chain(&error), "failed to read the log of slurmdbd");
            None
        }
        Err(_) => None,
    }
}
