//! Turns the observed state into input for the build, or reports what is missing.

use std::sync::Arc;

use keelson_api::{
    Controller,
    references::SecretKeySelector,
    well_known::{file, port},
};

use super::observe::Observed;
use crate::{
    children::checksum, fingerprints::Fingerprints, keys, problem::Problem, secrets,
    workload::deployment_template,
};

/// Input of the host keys' fingerprint. Another value would change the fingerprint and restart the login pods.
const SSH_HOST_KEYS: &str = "ssh host keys";

/// Validated input of the build.
#[derive(Debug, Clone)]
pub struct Validated {
    pub controller: Arc<Controller>,
    pub slurm_key: SecretKeySelector,
    pub slurm_key_hash: String,
    /// sssd.conf, if users come from SSSD.
    pub sssd: Option<Sssd>,
    pub cluster_domain: String,
    pub host_keys_hash: String,
    /// Port of sshd inside the pod.
    pub ssh_port: i64,
}

#[derive(Debug, Clone)]
pub struct Sssd {
    pub reference: SecretKeySelector,
    pub hash: String,
}

pub fn validate(observed: &Observed) -> Result<Validated, Problem> {
    let Observed {
        loginset,
        controller,
        slurm_key,
        hash_key,
        slurm_key_in_use,
        sssd,
        cluster_domain,
        live,
    } = observed;
    let spec = &loginset.spec;
    let controller_name = &spec.controller_ref.name;
    let controller = controller
        .clone()
        .ok_or_else(|| Problem::no_controller(controller_name))?;
    let (reference, slurm_key_hash) = keys::of_controller(&controller, slurm_key.as_deref())?;
    let names = Fingerprints::new(hash_key.as_ref(), deployment_template(live.deployment.as_deref()))?;
    let slurm_key_hash = names.follow(file::SLURM_KEY, slurm_key_hash, slurm_key_in_use.as_ref());
    let sssd = if spec.sssd_enabled() {
        let reference = spec
            .sssd_conf_ref
            .clone()
            .filter(|reference| !reference.name.is_empty())
            .ok_or_else(|| Problem::invalid("sssdConfRef must be set, or sssd.enabled must be false"))?;
        let hash = names.of(file::SSSD_CONF, secrets::sssd_conf(sssd.as_deref(), &reference)?);
        Some(Sssd { reference, hash })
    } else {
        None
    };
    let host_keys = live.host_keys.as_ref().and_then(|secret| secret.data.as_ref());
    Ok(Validated {
        controller,
        slurm_key: reference,
        slurm_key_hash,
        sssd,
        cluster_domain: cluster_domain.clone(),
        host_keys_hash: names.of(
            SSH_HOST_KEYS,
            host_keys.map(checksum::of_secret).unwrap_or_default(),
        ),
        ssh_port: ssh_port(observed),
    })
}

/// Returns the port of sshd, which users on the host network change by naming it in `ports`.
fn ssh_port(observed: &Observed) -> i64 {
    let ports = observed
        .loginset
        .spec
        .login
        .as_ref()
        .and_then(|login| login.pointer("/ports")?.as_array());
    ports
        .into_iter()
        .flatten()
        .filter(|candidate| candidate.get("name").and_then(|name| name.as_str()) == Some(port::LOGIN_NAME))
        .filter_map(|named| named.get("containerPort")?.as_i64())
        .find(|number| *number != 0)
        .unwrap_or(i64::from(port::SSH))
}
