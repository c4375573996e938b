//! Builds the children of an Accounting: Service, slurmdbd.conf, StatefulSet. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::StatefulSet,
        core::v1::{Secret, Service},
    },
};
use keelson_api::{
    Accounting,
    merge::MergeError,
    well_known::{annotation, app, component, container, dir, file, label, port, slurm, volume as volumes},
};
use keelson_runtime::apply::Desired;
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_conf::slurmdbd_conf as conf;

use super::validate::Internal;
use crate::children::{
    checksum, container as containers,
    metadata::{Metadata, owned_by, selector},
    pod,
    service::{self, Service as ServiceParts},
    volume,
};

/// Reason why the children cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Conf(#[from] slurm_conf::merge::Error),
    #[error(transparent)]
    Merge(#[from] MergeError),
}

/// The objects that an Accounting consists of.
pub struct Children {
    pub service: Desired<Service>,
    /// Contains the database password.
    pub config: Desired<Secret>,
    pub stateful_set: Desired<StatefulSet>,
    /// The user's lines that have no effect, for the status.
    pub findings: Vec<String>,
}

pub fn build(accounting: &Accounting, internal: &Internal) -> Result<Children, Error> {
    let slurm_conf::merge::Rendered { text, findings } = conf::render(&internal.conf)?;
    let mut files = BTreeMap::from([(file::SLURMDBD_CONF.to_owned(), text)]);
    let config = build_config(accounting, &files);
    // slurmdbd reads the JWKS only at startup, like its configuration.
    if let Some(jwks) = &internal.jwks {
        files.insert(file::JWKS.to_owned(), jwks.text.clone());
    }
    // Open connections would go on with the old certificates.
    for file in &internal.database_files {
        files.insert(file.name.to_owned(), file.checksum.clone());
    }
    Ok(Children {
        service: build_service(accounting)?,
        config,
        stateful_set: build_stateful_set(
            accounting,
            internal,
            internal.names.of(file::SLURMDBD_CONF, checksum::of_texts(&files)),
        ),
        findings: findings.iter().map(ToString::to_string).collect(),
    })
}

fn labels(accounting: &Accounting) -> Vec<(&'static str, String)> {
    vec![
        (label::APP, app::SLURMDBD.to_owned()),
        (label::INSTANCE, accounting.name_any()),
        (label::COMPONENT, component::ACCOUNTING.to_owned()),
    ]
}

fn namespace(accounting: &Accounting) -> String {
    accounting.namespace().unwrap_or_default()
}

fn build_service(accounting: &Accounting) -> Result<Desired<Service>, MergeError> {
    let user = accounting.spec.service.as_ref();
    Ok(Desired::new(service::public(ServiceParts {
        namespace: &namespace(accounting),
        name: &accounting.accounting_name(),
        metadata: Metadata::inherited(accounting).with_labels(labels(accounting)),
        owners: vec![owned_by(accounting)],
        selector: selector(app::SLURMDBD, &accounting.name_any()),
        port_name: app::SLURMDBD,
        port: keelson_api::names::service_port(user, port::SLURMDBD),
        user,
    })?))
}

fn build_config(accounting: &Accounting, files: &BTreeMap<String, String>) -> Desired<Secret> {
    let data: BTreeMap<&String, ByteString> = files
        .iter()
        .map(|(name, text)| (name, ByteString(text.clone().into_bytes())))
        .collect();
    let metadata = Metadata::inherited(accounting)
        .with_labels(labels(accounting))
        .of_object(
            &namespace(accounting),
            &accounting.accounting_name(),
            &[owned_by(accounting)],
        );
    Desired::new(json!({ "metadata": metadata, "type": "Opaque", "data": data }))
}

fn build_stateful_set(
    accounting: &Accounting,
    internal: &Internal,
    conf_hash: String,
) -> Desired<StatefulSet> {
    let spec = &accounting.spec;
    let user_metadata = spec
        .template
        .as_ref()
        .and_then(|template| template.metadata.as_ref());
    let base = Metadata::inherited(accounting)
        .with_override(user_metadata)
        .with_labels(labels(accounting));
    let pod_metadata = base.clone().with_annotations([
        (annotation::SLURM_KEY_HASH, internal.slurm_key_hash.clone()),
        (annotation::JWT_KEY_HASH, internal.jwt_key_hash.clone()),
        (annotation::SLURMDBD_CONF_HASH, conf_hash),
        (annotation::DEFAULT_CONTAINER, container::SLURMDBD.to_owned()),
    ]);
    let pod_spec = json!({
        "automountServiceAccountToken": false,
        "securityContext": containers::unprivileged_pod(slurm::UID),
        "containers": [slurmdbd(accounting)],
        "volumes": pod_volumes(accounting, internal),
    });
    let name = accounting.accounting_name();
    Desired::new(json!({
        "metadata": base.of_object(&namespace(accounting), &name, &[owned_by(accounting)]),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 0,
            // With `OrderedReady`, a pod that never became ready would block the update that fixes it.
            "podManagementPolicy": "Parallel",
            "serviceName": name,
            "selector": { "matchLabels": selector(app::SLURMDBD, &accounting.name_any()) },
            "template": pod::template(&pod_metadata, pod_spec, spec.template.as_ref()),
        },
    }))
}

fn slurmdbd(accounting: &Accounting) -> Value {
    let base = json!({
        "name": container::SLURMDBD,
        "ports": [containers::port(app::SLURMDBD, port::SLURMDBD)],
        // No liveness or startup probe: before it listens, slurmdbd converts the tables of an older release, which may
        // take hours and must not be interrupted.
        "readinessProbe": containers::often(containers::tcp_probe(port::SLURMDBD)),
        "securityContext": containers::unprivileged(slurm::UID),
        // The status quotes these last log lines.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            volume::read_only(volumes::SLURM_ETC, dir::SLURM_ETC),
            volume::mount(volumes::RUN, dir::RUN),
            volume::mount(volumes::SLURM_TMP, dir::TMP),
        ],
    });
    pod::container(base, accounting.spec.slurmdbd.as_ref())
}

fn pod_volumes(accounting: &Accounting, internal: &Internal) -> Vec<Value> {
    let config = keelson_api::references::SecretKeySelector {
        name: accounting.accounting_name(),
        key: file::SLURMDBD_CONF.to_owned(),
        optional: None,
    };
    let mut sources = vec![
        volume::secret_key(&config, file::SLURMDBD_CONF, None),
        volume::secret_key(&internal.slurm_key, accounting.spec.auth_type().key_file(), None),
        volume::secret_key(&internal.jwt_key, file::JWT_KEY, None),
    ];
    let jwks = internal.jwks.iter();
    sources.extend(jwks.map(|jwks| volume::jwks(&jwks.reference, file::JWKS)));
    let database = internal.database_files.iter();
    sources.extend(database.map(|file| volume::secret_key(&file.reference, file.name, None)));
    vec![
        volume::projected(volumes::SLURM_ETC, volume::OWNER_ONLY, &sources),
        volume::memory(volumes::RUN),
        volume::scratch(volumes::SLURM_TMP),
    ]
}
