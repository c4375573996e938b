//! Turns the observed state into input for the build, or reports what is missing.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use keelson_api::{
    Accounting, Controller, assemble,
    references::{LocalObjectReference, SecretKeySelector},
    well_known::{file, slurm},
};
use kube::ResourceExt;
use slurm_conf::{
    catalogue::File,
    fingerprint, sizing,
    slurm_conf::{AccountingHost, ExternalSlurmConf, Scripts, SlurmConf},
    syntax,
};

use super::{
    configuration::{
        delivery::JwtKeyNames,
        file_origin::Origins,
        user_files::{self, UserFiles},
    },
    observe::Observed,
    rivals,
};
use crate::{
    children::checksum, fingerprints::Fingerprints, keys, port, problem::Problem, secrets,
    workload::stateful_set_template,
};

/// Validated input of the build.
#[derive(Debug, Clone)]
pub enum Validated {
    /// slurmctld is external; only a configuration for its clients is created.
    External(Box<ExternalSlurmConf>),
    Internal(Box<Internal>),
}

#[derive(Debug, Clone)]
pub struct Internal {
    pub conf: SlurmConf,
    /// Whether to generate a cgroup.conf, because the user supplies none.
    pub cgroup_conf: bool,
    pub slurm_key: SecretKeySelector,
    pub jwt_key: SecretKeySelector,
    pub slurm_key_hash: String,
    pub jwt_key_names: JwtKeyNames,
    /// Files that come from the user's own `ConfigMap`s, by name.
    pub user_files: BTreeMap<String, Vec<u8>>,
    /// The `ConfigMap`s that they come from.
    pub origins: Origins,
    /// Notes about these files; they block nothing.
    pub notes: Vec<String>,
    pub state: State,
}

/// Where slurmctld's state is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// In a claim that the StatefulSet creates.
    Template,
    /// In this existing claim.
    Claim(String),
    /// In an `emptyDir`.
    Scratch,
}

pub fn validate(observed: &Observed) -> Result<Validated, Problem> {
    let Observed {
        controller,
        accounting,
        ..
    } = observed;
    let spec = &controller.spec;
    let cluster_name = controller.cluster_name();
    if cluster_name.len() > slurm::CLUSTER_NAME_MAX {
        return Err(Problem::invalid(format!(
            "the cluster name {cluster_name:?} has {} characters, but Slurm allows at most {}; set clusterName",
            cluster_name.len(),
            slurm::CLUSTER_NAME_MAX
        )));
    }
    let accounting = match (&spec.accounting_ref, accounting) {
        (None, _) => None,
        (Some(_), Some(accounting)) => Some(accounting_host(controller, accounting)?),
        (Some(reference), None) => {
            // Without it slurmctld would start without accounting and lose the records of its jobs.
            let remedy = "create it, or remove accountingRef";
            return Err(Problem::absent("Accounting", &reference.name, remedy));
        }
    };
    if spec.external {
        return external(controller, accounting);
    }
    rivals::check(observed)?;
    internal(observed, accounting)
}

fn external(controller: &Controller, accounting: Option<AccountingHost>) -> Result<Validated, Problem> {
    let address = controller.address();
    Ok(Validated::External(Box::new(ExternalSlurmConf {
        cluster_name: controller.cluster_name(),
        port: port::number("externalConfig.port", address.port)?,
        host: address.host,
        auth: controller.spec.auth_type(),
        accounting,
        extra_conf: controller.spec.extra_conf.clone().unwrap_or_default(),
    })))
}

fn internal(observed: &Observed, accounting: Option<AccountingHost>) -> Result<Validated, Problem> {
    let controller = &observed.controller;
    let spec = &controller.spec;
    let slurm_key = spec
        .slurm_key_ref
        .clone()
        .ok_or_else(|| Problem::invalid("slurmKeyRef must be set"))?;
    let jwt_key = spec
        .jwt_key()
        .cloned()
        .ok_or_else(|| Problem::invalid("jwtKeyRef must be set"))?;
    let slurm_key_hash = secrets::checksum(observed.slurm_key.as_deref(), &slurm_key)?;
    let running = stateful_set_template(observed.live.stateful_set.as_deref());
    let names = Fingerprints::new(observed.hash_key.as_ref(), running)?;
    let slurm_key_hash = names.of(file::SLURM_KEY, slurm_key_hash);
    let jwt_key_text = secrets::value(observed.jwt_key.as_deref(), &jwt_key)?;
    let slurm_key_text = secrets::value(observed.slurm_key.as_deref(), &slurm_key)?;
    keys::check_length(spec.auth_type(), slurm_key_text, &slurm_key)?;
    let jwt_key_names = JwtKeyNames {
        plain: checksum::of_bytes(jwt_key_text),
        keyed: fingerprint::keyed(slurm_key_text, file::JWT_KEY, jwt_key_text),
    };
    let state = state(observed)?;

    let user_files = UserFiles::read(observed)?;
    user_files.refuse_reserved()?;
    let names_in = |references: &Option<Vec<LocalObjectReference>>| -> BTreeSet<String> {
        references
            .iter()
            .flatten()
            .filter_map(|reference| observed.config_maps.get(&reference.name)?.as_ref())
            .flat_map(|map| map.data.iter().flatten().map(|(name, _)| name.clone()))
            .collect()
    };
    let nodesets = observed.nodesets.iter().map(AsRef::as_ref);
    let conf = SlurmConf {
        scripts: Scripts {
            prolog: names_in(&spec.prolog_script_refs),
            epilog: names_in(&spec.epilog_script_refs),
            prolog_slurmctld: names_in(&spec.prolog_slurmctld_script_refs),
            epilog_slurmctld: names_in(&spec.epilog_slurmctld_script_refs),
        },
        nodes: wanted_nodes(observed),
        included_files: user_files.texts(),
        ..assemble::slurm_conf(controller, accounting, nodesets)
    };
    let notes = user_files::check(&conf, &user_files, controller)?;
    Ok(Validated::Internal(Box::new(Internal {
        conf,
        cgroup_conf: !names_in(&spec.config_file_refs).contains(file::CGROUP_CONF),
        slurm_key,
        jwt_key,
        slurm_key_hash,
        jwt_key_names,
        origins: user_files.origins(),
        user_files: user_files.into_bytes(),
        notes,
        state,
    })))
}

fn accounting_host(controller: &Controller, accounting: &Accounting) -> Result<AccountingHost, Problem> {
    if !accounting.spec.external && accounting.spec.auth_type() != controller.spec.auth_type() {
        return Err(Problem::invalid(format!(
            "auth.type differs from that of Accounting {}: slurmctld and slurmdbd must authenticate each other in the same way. \
             It cannot be changed: create one of the two anew",
            accounting.name_any()
        )));
    }
    let address = accounting.address();
    let port = port::number("the Accounting's port", address.port)?;
    Ok(AccountingHost {
        host: address.host,
        port,
        backup_host: None,
    })
}

fn state(observed: &Observed) -> Result<State, Problem> {
    let spec = &observed.controller.spec;
    let Some(claim) = spec.existing_claim() else {
        return match (spec.ha_enabled(), spec.persistence_enabled()) {
            (true, _) => Err(Problem::invalid(
                "high availability needs one volume for all slurmctlds: set persistence.existingClaim to a ReadWriteMany claim",
            )),
            (false, true) => Ok(State::Template),
            (false, false) => Ok(State::Scratch),
        };
    };
    let modes = observed
        .claim
        .as_ref()
        .and_then(|claim| claim.spec.as_ref()?.access_modes.clone());
    match modes {
        Some(modes) if spec.ha_enabled() && !modes.iter().any(|mode| mode == "ReadWriteMany") => {
            Err(Problem::invalid(format!(
                "high availability needs a ReadWriteMany claim, but {claim} has {}",
                modes.join(", ")
            )))
        }
        _ => Ok(State::Claim(claim.to_owned())),
    }
}

/// Returns how many nodes slurmctld must have room for: those that are wanted or those that Slurm knows, whichever are
/// more. The room never shrinks: while Slurm does not answer, the number of its nodes is unknown.
fn wanted_nodes(observed: &Observed) -> u32 {
    let everywhere = u32::try_from(observed.kubernetes_nodes).unwrap_or(u32::MAX);
    let known = u32::try_from(observed.slurm_nodes).unwrap_or(u32::MAX);
    let config = observed.live.config.as_ref();
    let in_force = config
        .and_then(|config| room_of(config))
        .map_or(0, sizing::nodes_of);
    let wanted = observed
        .nodesets
        .iter()
        .map(|nodeset| match nodeset.spec.scaling_mode {
            keelson_api::nodeset::ScalingMode::DaemonSet => everywhere,
            keelson_api::nodeset::ScalingMode::StatefulSet => {
                u32::try_from(nodeset.spec.replicas).unwrap_or(0)
            }
        })
        .fold(0, u32::saturating_add);
    wanted.max(known).max(in_force)
}

/// Returns `MaxNodeCount` of a published configuration.
fn room_of(config: &ConfigMap) -> Option<u32> {
    let text = config.data.as_ref()?.get(file::SLURM_CONF)?;
    let (document, _) = syntax::read(File::Slurm, text, &BTreeMap::new());
    document.get("MaxNodeCount")?.parse().ok()
}
