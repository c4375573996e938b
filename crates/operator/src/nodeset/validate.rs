//! Turns what was read into input that worker pods can be built from, or says what is missing.

use std::{collections::BTreeMap, sync::Arc};

use keelson_api::{
    Controller, NodeSet, overrides::RawObject, references::SecretKeySelector, scalars::Amount,
};
use serde_json::Value;

use super::observe::Read;
use crate::{children::checksum, problem::Problem, secrets};

/// What worker pods are built from.
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
    /// Features that the node registers with, sorted.
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

pub fn validate(read: &Read) -> Result<Validated, Problem> {
    let nodeset = &read.nodeset;
    let spec = &nodeset.spec;
    let name = &spec.controller_ref.name;
    let controller = read
        .controller
        .clone()
        .ok_or_else(|| Problem::no_controller(name))?;
    let slurm_key = controller
        .spec
        .slurm_key_ref
        .clone()
        .ok_or_else(|| Problem::missing(format!("Controller {name} has no slurmKeyRef")))?;
    let slurm_key_hash = secrets::checksum(read.slurm_key.as_deref(), &slurm_key)?;
    let slurm_key_hash = read.slurm_key_in_use.clone().unwrap_or(slurm_key_hash);
    let (conf, mut features) = slurmd_conf(spec.extra_conf.as_deref().unwrap_or_default())?;
    features.push(nodeset.slurm_name());
    features.sort();
    features.dedup();
    let mut conf = conf;
    let topology = take(&mut conf, "topology");
    let sssd = match spec.ssh.as_ref().and_then(|ssh| ssh.sssd_conf_ref.as_ref()) {
        Some(reference) if spec.sssd_enabled() => {
            let text = secrets::value(read.sssd.as_deref(), reference)?;
            Some((reference.clone(), checksum::of_bytes(text)))
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

/// Reads `Key=Value Key=a,b …`. A key that comes twice has the values of both, as with the peer.
fn slurmd_conf(text: &str) -> Result<(BTreeMap<String, String>, Vec<String>), Problem> {
    let mut conf: BTreeMap<String, String> = BTreeMap::new();
    let mut features = Vec::new();
    for word in text.split_whitespace() {
        let (key, value) = word
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| Problem::invalid(format!("extraConf: {word:?} is not Key=Value")))?;
        if let Some(bad) = word.chars().find(|c| "'\"`$\\;&|<>()".contains(*c)) {
            // It reaches a shell in some images.
            return Err(Problem::invalid(format!(
                "extraConf: {word:?} holds {bad:?}, which cannot stand there"
            )));
        }
        if key.eq_ignore_ascii_case("feature") || key.eq_ignore_ascii_case("features") {
            features.extend(value.split(',').filter(|f| !f.is_empty()).map(str::to_owned));
            continue;
        }
        let known = conf.keys().find(|known| known.eq_ignore_ascii_case(key)).cloned();
        let values = conf.entry(known.unwrap_or_else(|| key.to_owned())).or_default();
        if !values.is_empty() {
            values.push(',');
        }
        values.push_str(value);
    }
    Ok((conf, features))
}

fn take(conf: &mut BTreeMap<String, String>, key: &str) -> Option<String> {
    let known = conf
        .keys()
        .find(|known| known.eq_ignore_ascii_case(key))
        .cloned()?;
    conf.remove(&known)
}

/// The limit of slurmd's container, else of the pod, else nothing.
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
    Amount::parse(&text).map_err(|error| Problem::invalid(format!("the {resource} limit: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_conf_is_read_as_pairs_and_features_are_collected() {
        let (conf, features) =
            slurmd_conf("Gres=gpu:2 feature=a,b  Features=c gres=fpga:1 Weight=5").unwrap();
        assert_eq!(features, ["a", "b", "c"]);
        assert_eq!(conf.get("Gres").map(String::as_str), Some("gpu:2,fpga:1"));
        assert_eq!(conf.get("Weight").map(String::as_str), Some("5"));
    }

    #[test]
    fn what_is_no_pair_or_could_reach_a_shell_is_refused() {
        assert!(
            slurmd_conf("Gres")
                .unwrap_err()
                .message
                .contains("is not Key=Value")
        );
        assert!(
            slurmd_conf("Gres=$(id)")
                .unwrap_err()
                .message
                .contains("cannot stand there")
        );
        assert!(
            slurmd_conf("Gres=a'b")
                .unwrap_err()
                .message
                .contains("cannot stand there")
        );
    }
}
