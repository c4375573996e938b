//! Turns what was observed into input that can be built from, or says what is missing.

use keelson_api::{
    accounting::StorageConfig,
    references::{ConfigMapKeySelector, SecretKeySelector},
    well_known::{file, port},
};
use slurm_conf::slurmdbd_conf::{SlurmdbdConf, Storage};

use super::observe::Observed;
use crate::{fingerprints::Fingerprints, problem::Problem, secrets, workload::stateful_set_template};

/// What the children are built from.
#[derive(Debug, Clone)]
pub enum Validated {
    /// slurmdbd runs elsewhere; clusters are pointed there and nothing is made.
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
    /// For what is known only when the files are built: slurmdbd.conf holds the database's password.
    pub names: Fingerprints,
}

/// Keys of tokens that others sign.
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
        port_number("externalConfig.port", address.port)?;
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
            port: port::SLURMDBD,
            jwks: jwks.is_some(),
            storage: database(storage, password)?,
            extra_conf: spec.extra_conf.clone().unwrap_or_default(),
        },
        slurm_key: slurm_key_ref,
        slurm_key_hash,
        jwt_key: jwt_key_ref,
        jwt_key_hash,
        jwks,
        names,
    })))
}

fn database(storage: &StorageConfig, password: &[u8]) -> Result<Storage, Problem> {
    let SecretKeySelector { name, key, .. } = &storage.password_key_ref;
    let password = str::from_utf8(password)
        .map_err(|_| Problem::invalid(format!("key {key:?} of Secret {name} is not text")))?;
    Ok(Storage {
        host: storage.host.clone(),
        port: port_number("storageConfig.port", storage.port())?,
        database: storage.database(),
        user: storage.username.clone().filter(|user| !user.is_empty()),
        // A line end behind the password comes from the tool that made the Secret; no line of a file could hold it.
        password: Some(password.trim_end_matches(['\r', '\n']).to_owned()),
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

fn port_number(what: &str, port: i32) -> Result<u16, Problem> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| Problem::invalid(format!("{what} is {port}, which is not a port")))
}
