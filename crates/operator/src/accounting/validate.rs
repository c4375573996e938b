//! Turns the observed state into input for the build, or reports what is missing.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use keelson_api::{
    accounting::{StorageConfig, StorageTls},
    assemble,
    references::{ConfigMapKeySelector, SecretKeySelector},
    well_known::{self, file},
};
use slurm_conf::slurmdbd_conf::{SlurmdbdConf, Storage};

use super::observe::Observed;
use crate::{
    children::checksum, fingerprints::Fingerprints, keys, port, problem::Problem, secrets,
    workload::stateful_set_template,
};

/// Validated input of the build.
#[derive(Debug, Clone)]
pub enum Validated {
    /// slurmdbd is external: clusters use its address, and no children are created.
    External,
    Internal(Box<Internal>),
}

#[derive(Debug, Clone)]
pub struct Internal {
    pub conf: SlurmdbdConf,
    pub slurm_key: SecretKeySelector,
    pub slurm_key_hash: String,
    pub jwt_key: SecretKeySelector,
    pub jwt_key_hash: String,
    pub jwks: Option<Jwks>,
    pub database_files: Vec<DatabaseFile>,
    /// Computes the fingerprint of slurmdbd.conf, which is rendered later and contains the database password.
    pub names: Fingerprints,
}

/// A file for the connection to the database.
#[derive(Debug, Clone)]
pub struct DatabaseFile {
    pub reference: SecretKeySelector,
    /// Name of the file in slurmdbd's pod.
    pub name: &'static str,
    pub checksum: String,
}

/// The key set for tokens that others sign.
#[derive(Debug, Clone)]
pub struct Jwks {
    pub reference: ConfigMapKeySelector,
    pub text: String,
}

pub fn validate(observed: &Observed) -> Result<Validated, Problem> {
    let Observed {
        accounting,
        slurm_key,
        hash_key,
        slurm_key_in_use,
        jwt_key,
        password,
        database_ca: _,
        database_client: _,
        jwks: _,
        live,
        log: _,
    } = observed;
    let spec = &accounting.spec;
    if spec.external {
        let address = spec
            .external_config
            .as_ref()
            .ok_or_else(|| Problem::invalid("externalConfig must be set when external is true"))?;
        port::number("externalConfig.port", address.port)?;
        return Ok(Validated::External);
    }
    let slurm_key_ref = spec
        .slurm_key_ref
        .clone()
        .ok_or_else(|| Problem::invalid("slurmKeyRef must be set"))?;
    let jwt_key_ref = spec
        .jwt_key()
        .cloned()
        .ok_or_else(|| Problem::invalid("jwtKeyRef must be set"))?;
    let storage = spec
        .storage_config
        .as_ref()
        .ok_or_else(|| Problem::invalid("storageConfig must be set: the database's host and password"))?;
    let slurm_key_hash = secrets::checksum(slurm_key.as_deref(), &slurm_key_ref)?;
    let auth = spec.auth_type();
    keys::check_length(
        auth,
        secrets::value(slurm_key.as_deref(), &slurm_key_ref)?,
        &slurm_key_ref,
    )?;
    let running = stateful_set_template(live.stateful_set.as_deref());
    let names = Fingerprints::new(hash_key.as_ref(), running)?;
    let slurm_key_hash = names.follow(file::SLURM_KEY, slurm_key_hash, slurm_key_in_use.as_ref());
    let jwt_key_hash = names.of(
        file::JWT_KEY,
        secrets::checksum(jwt_key.as_deref(), &jwt_key_ref)?,
    );
    let password = secrets::value(password.as_deref(), &storage.password_key_ref)?;
    let jwks = jwks(observed)?;
    Ok(Validated::Internal(Box::new(Internal {
        conf: SlurmdbdConf {
            host: accounting.pod_name(),
            port: well_known::port::SLURMDBD,
            auth,
            jwks: jwks.is_some(),
            storage: database(storage, password)?,
            extra_conf: spec.extra_conf.clone().unwrap_or_default(),
        },
        slurm_key: slurm_key_ref,
        slurm_key_hash,
        jwt_key: jwt_key_ref,
        jwt_key_hash,
        jwks,
        database_files: database_files(observed)?,
        names,
    })))
}

/// The certificates and the key for TLS with the database.
fn database_files(observed: &Observed) -> Result<Vec<DatabaseFile>, Problem> {
    let storage = observed.accounting.spec.storage_config.as_ref();
    let Some(StorageTls {
        ca_cert_ref,
        client_cert_ref,
    }) = storage.and_then(|storage| storage.tls.as_ref())
    else {
        return Ok(Vec::new());
    };
    let of_client = |key: &str| {
        let client = client_cert_ref.as_ref()?;
        Some(SecretKeySelector {
            name: client.name.clone(),
            key: key.to_owned(),
            optional: None,
        })
    };
    let files = [
        (
            Some(ca_cert_ref.clone()),
            file::DATABASE_CA,
            &observed.database_ca,
        ),
        (
            of_client(file::TLS_CERT),
            file::DATABASE_CERT,
            &observed.database_client,
        ),
        (
            of_client(file::TLS_KEY),
            file::DATABASE_CERT_KEY,
            &observed.database_client,
        ),
    ];
    let read = |(reference, name, secret): (Option<SecretKeySelector>, _, &Option<Arc<Secret>>)| {
        let reference = reference?;
        let checksum = secrets::value(secret.as_deref(), &reference).map(checksum::of_bytes);
        Some(checksum.map(|checksum| DatabaseFile {
            reference,
            name,
            checksum,
        }))
    };
    files.into_iter().filter_map(read).collect()
}

fn database(storage: &StorageConfig, password: &[u8]) -> Result<Storage, Problem> {
    let SecretKeySelector { name, key, .. } = &storage.password_key_ref;
    let password = str::from_utf8(password)
        .map_err(|_| Problem::invalid(format!("key {key:?} of Secret {name} is not text")))?;
    Ok(Storage {
        host: storage.host.clone(),
        port: port::number("storageConfig.port", storage.port())?,
        database: storage.database(),
        user: storage.username.clone().filter(|user| !user.is_empty()),
        // The tool that created the Secret may append a line break, which no line of slurmdbd.conf can contain.
        password: Some(password.trim_end_matches(['\r', '\n']).to_owned()),
        tls: assemble::storage_tls(storage),
    })
}

fn jwks(observed: &Observed) -> Result<Option<Jwks>, Problem> {
    let Some(reference) = observed.accounting.spec.jwks_key_ref.clone() else {
        return Ok(None);
    };
    let ConfigMapKeySelector { name, key, .. } = &reference;
    let map = observed
        .jwks
        .as_ref()
        .ok_or_else(|| Problem::absent("ConfigMap", name, format!("create it with the key {key:?}")))?;
    let text = map
        .data
        .as_ref()
        .and_then(|data| data.get(key))
        .cloned()
        .ok_or_else(|| Problem::no_key("ConfigMap", name, key))?;
    Ok(Some(Jwks { reference, text }))
}
