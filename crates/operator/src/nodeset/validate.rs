//! Validates the read objects and prepares the input for building worker pods.

use std::{collections::BTreeMap, sync::Arc};

use keelson_api::{
    Controller, NodeSet, overrides::RawObject, references::SecretKeySelector, scalars::Amount,
    well_known::file,
};
use serde_json::Value;
use slurm_conf::node_conf::{self, NodeConf};

use super::observe::Read;
use crate::{fingerprints::Fingerprints, keys, problem::Problem, secrets};

/// The input for building worker pods.
#[derive(Debug, Clone)]
pub struct Validated {
    pub nodeset: Arc<NodeSet>,
    pub controller: Arc<Controller>,
    pub slurm_key: SecretKeySelector,
    /// slurmd reads its key once, when it starts.
    pub slurm_key_hash: String,
    pub cluster_domain: String,
    /// Parameters of `slurmd --conf`, by key, without features and topology.
    pub conf: BTreeMap<String, String>,
    /// The features that the node registers with, sorted.
    pub features: Vec<String>,
    /// The user's own topology, instead of the Kubernetes node's.
    pub topology: Option<String>,
    /// CPU limit, rounded up; 0 without one.
    pub cpus: i128,
    /// Memory limit in MiB; 0 without one.
    pub memory: i128,
    /// sssd.conf of the SSH server in the workers, if there is one.
    pub sssd: Option<(SecretKeySelector, String)>,
}

/// Validates the objects. `names` are the recorded hashes of Secrets that workers may keep.
pub fn validate(read: &Read, names: Vec<String>) -> Result<Validated, Problem> {
    let nodeset = &read.nodeset;
    let spec = &nodeset.spec;
    let name = &spec.controller_ref.name;
    let controller = read
        .controller
        .clone()
        .ok_or_else(|| Problem::no_controller(name))?;
    let (slurm_key, slurm_key_hash) = keys::of_controller(&controller, read.slurm_key.as_deref())?;
    let names = Fingerprints::among(read.hash_key.as_ref(), names)?;
    let slurm_key_hash = names.follow(file::SLURM_KEY, slurm_key_hash, read.slurm_key_in_use.as_ref());
    let NodeConf {
        parameters: mut conf,
        mut features,
        notes: _,
    } = node_conf(spec.extra_conf.as_deref().unwrap_or_default())?;
    features.push(nodeset.slurm_name());
    features.sort();
    features.dedup();
    let topology = take(&mut conf, "topology");
    let sssd = match spec.ssh.as_ref().and_then(|ssh| ssh.sssd_conf_ref.as_ref()) {
        Some(reference) if spec.sssd_enabled() => {
            let hash = secrets::sssd_conf(read.sssd.as_deref(), reference)?;
            Some((reference.clone(), names.of(file::SSSD_CONF, hash)))
        }
        None if spec.sssd_enabled() => {
            return Err(Problem::invalid(
                "ssh.sssdConfRef must be set, or ssh.sssd.enabled must be false",
            ));
        }
        _ => None,
    };
    Ok(Validated {
        controller,
        slurm_key,
        slurm_key_hash,
        cluster_domain: read.cluster_domain.clone(),
        conf,
        features,
        topology,
        cpus: limit(nodeset, "cpu")?.ceil(),
        memory: limit(nodeset, "memory")?.mebibytes(),
        sssd,
        nodeset: Arc::clone(nodeset),
    })
}

fn node_conf(text: &str) -> Result<NodeConf, Problem> {
    node_conf::parse(text).map_err(|faults| {
        let faults: Vec<String> = faults
            .iter()
            .map(|fault| format!("{fault}; {}", fault.remedy()))
            .collect();
        Problem::invalid(format!("extraConf: {}", faults.join(". ")))
    })
}

fn take(conf: &mut BTreeMap<String, String>, key: &str) -> Option<String> {
    let known = conf
        .keys()
        .find(|known| known.eq_ignore_ascii_case(key))
        .cloned()?;
    conf.remove(&known)
}

/// Returns the limit of the slurmd container, or else of the pod, or else zero.
fn limit(nodeset: &NodeSet, resource: &str) -> Result<Amount, Problem> {
    let pointer = format!("/resources/limits/{resource}");
    let of = |object: Option<&RawObject>| object.and_then(|object| object.pointer(&pointer).cloned());
    let container = of(nodeset.spec.slurmd.as_ref());
    let pod = of(nodeset
        .spec
        .template
        .as_ref()
        .and_then(|template| template.spec.as_ref()));
    let text = match container.or(pod) {
        None | Some(Value::Null) => return Ok(Amount::ZERO),
        Some(Value::String(text)) => text,
        Some(number) => number.to_string(),
    };
    Amount::parse(&text).map_err(|error| Problem::invalid(format!("invalid {resource} limit: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_slurmd_would_start_with_is_told_with_what_to_write() {
        let problem = node_conf("Weight=abc Port=1").unwrap_err();
        assert_eq!(
            problem.message,
            "extraConf: Port is set by the operator: slurmctld and the worker's probes use the cluster's SlurmdPort; \
             remove it. Weight=abc is not an integer up to 4294967295; set an integer, for example Weight=1"
        );
    }
}
