//! Turns what was observed into input that can be built from, or says what is missing.

use std::collections::{BTreeMap, BTreeSet};

use keelson_api::{
    Accounting, Controller,
    references::{LocalObjectReference, SecretKeySelector},
    well_known::{file, port, slurm},
};
use slurm_conf::{
    catalogue::File,
    slurm_conf::{
        AccountingHost, ControllerHost, ExternalSlurmConf, NodeSet, Partition, Scripts, SlurmConf,
        unfit_select_type,
    },
    syntax::parse,
    topology,
};

use super::observe::Observed;
use crate::{children::checksum, problem::Problem, secrets};

/// What the children are built from.
#[derive(Debug, Clone)]
pub enum Validated {
    /// slurmctld runs elsewhere; only a configuration for its clients is made.
    External(Box<ExternalSlurmConf>),
    Internal(Box<Internal>),
}

#[derive(Debug, Clone)]
pub struct Internal {
    pub conf: SlurmConf,
    /// Whether a cgroup.conf is to be made: nobody supplied one.
    pub cgroup_conf: bool,
    pub slurm_key: SecretKeySelector,
    pub jwt_key: SecretKeySelector,
    pub slurm_key_hash: String,
    pub jwt_key_hash: String,
    /// Files that come from the user's own `ConfigMap`s, by name.
    pub user_files: BTreeMap<String, Vec<u8>>,
    pub state: State,
}

/// Where slurmctld's state lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// In a claim that the StatefulSet makes.
    Template,
    /// In this claim.
    Claim(String),
    /// Nowhere that outlives the pod.
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
            "the cluster name {cluster_name:?} has {} characters, Slurm takes at most {}; set clusterName",
            cluster_name.len(),
            slurm::CLUSTER_NAME_MAX
        )));
    }
    let accounting = match (&spec.accounting_ref, accounting) {
        (None, _) => None,
        (Some(_), Some(accounting)) => Some(accounting_host(accounting)?),
        (Some(reference), None) => {
            // Without it slurmctld would start with no accounting at all and lose the records of its jobs.
            let remedy = "create it, or take accountingRef out";
            return Err(Problem::absent("Accounting", &reference.name, remedy));
        }
    };
    if spec.external {
        return external(controller, accounting);
    }
    internal(observed, cluster_name, accounting)
}

fn external(controller: &Controller, accounting: Option<AccountingHost>) -> Result<Validated, Problem> {
    let address = controller.address();
    Ok(Validated::External(Box::new(ExternalSlurmConf {
        cluster_name: controller.cluster_name(),
        port: port_number("externalConfig.port", address.port)?,
        host: address.host,
        accounting,
        extra_conf: controller.spec.extra_conf.clone().unwrap_or_default(),
    })))
}

fn internal(
    observed: &Observed,
    cluster_name: String,
    accounting: Option<AccountingHost>,
) -> Result<Validated, Problem> {
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
    let jwt_key_hash = checksum::of_bytes(secrets::value(observed.jwt_key.as_deref(), &jwt_key)?);
    let state = state(observed)?;

    let config_maps = config_maps(&observed.controller);
    let user_files = user_files(observed, &config_maps)?;
    let texts = user_files
        .iter()
        .filter_map(|(name, bytes)| Some((name.clone(), String::from_utf8(bytes.clone()).ok()?)))
        .collect();
    let names_in = |references: &Option<Vec<LocalObjectReference>>| -> BTreeSet<String> {
        references
            .iter()
            .flatten()
            .filter_map(|reference| observed.config_maps.get(&reference.name)?.as_ref())
            .flat_map(|map| map.data.iter().flatten().map(|(name, _)| name.clone()))
            .collect()
    };
    let config_files = names_in(&spec.config_file_refs);
    if let Some(reserved) = file::RESERVED.iter().find(|name| config_files.contains(**name)) {
        return Err(Problem::invalid(format!(
            "configFileRefs carry {reserved}, which the operator writes itself"
        )));
    }
    let replicas = controller.replicas();
    let through_service = replicas == 1 && controller.address().port == i32::from(port::SLURMCTLD);
    let mut extra_conf = spec.extra_conf.clone().unwrap_or_default();
    if let Some(count) = spec.max_node_count {
        extra_conf = format!("{}\nMaxNodeCount={count}\n", extra_conf.trim_end());
    }
    let conf = SlurmConf {
        cluster_name,
        hosts: (0..replicas)
            .map(|i| ControllerHost {
                name: controller.pod_name(i),
                address: Some(controller.pod_fqdn(i)),
            })
            .collect(),
        slurmctld_port: port::SLURMCTLD,
        slurmd_port: port::SLURMD,
        // Clients connect to the address on SlurmctldPort: a Service on another port cannot stand in.
        service_address: through_service.then(|| controller.service_fqdn()),
        jwks: spec.jwks_key_ref.is_some(),
        accounting,
        metrics: spec.metrics_enabled(),
        scripts: Scripts {
            prolog: names_in(&spec.prolog_script_refs),
            epilog: names_in(&spec.epilog_script_refs),
            prolog_slurmctld: names_in(&spec.prolog_slurmctld_script_refs),
            epilog_slurmctld: names_in(&spec.epilog_slurmctld_script_refs),
        },
        nodesets: nodesets(observed),
        nodes: wanted_nodes(observed),
        retained: vec![],
        extra_conf,
        included_files: texts,
    };
    if let Some(problem) = unusable(&conf, &user_files) {
        return Err(problem);
    }
    Ok(Validated::Internal(Box::new(Internal {
        conf,
        cgroup_conf: !config_files.contains(file::CGROUP_CONF),
        slurm_key,
        jwt_key,
        slurm_key_hash,
        jwt_key_hash,
        user_files,
        state,
    })))
}

/// What no slurmctld runs with. It waits a minute for a file that is not there and then ends; only what lies elsewhere in its image
/// is out of our sight.
fn unusable(conf: &SlurmConf, user_files: &BTreeMap<String, Vec<u8>>) -> Option<Problem> {
    // What cannot be read is told with the reason when the file is rendered.
    let document = parse(File::Slurm, &conf.extra_conf, &conf.included_files).ok()?;
    if let Some((origin, file)) = document.includes.iter().find(|(_, file)| !file.starts_with('/')) {
        return Some(Problem::missing(format!(
            "spec.extraConf {origin}: Include {file}: no ConfigMap of spec.configFileRefs has a file of this name; add it there, or \
             take the line away"
        )));
    }
    if let Some(line) = unfit_select_type(&document) {
        let origin = line.origin.as_ref().map(ToString::to_string).unwrap_or_default();
        return Some(Problem::invalid(format!(
            "spec.extraConf {origin}: SelectType={}: workers register by themselves, which Slurm allows with select/cons_tres alone; \
             take the line away",
            line.head.value
        )));
    }
    let (plugin, files) = topology::plugin_without_file(&document, |file| user_files.contains_key(file))?;
    let origin = plugin
        .origin
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    Some(Problem::missing(format!(
        "spec.extraConf {origin}: TopologyPlugin={} needs {}, and no ConfigMap of spec.configFileRefs has it; add it there, or take \
         the line away",
        plugin.head.value,
        files.join(" or ")
    )))
}

fn accounting_host(accounting: &Accounting) -> Result<AccountingHost, Problem> {
    let address = accounting.address();
    let port = port_number("the Accounting's port", address.port)?;
    Ok(AccountingHost {
        host: address.host,
        port,
        backup_host: None,
    })
}

fn port_number(what: &str, port: i32) -> Result<u16, Problem> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| Problem::invalid(format!("{what} is {port}, which is not a port")))
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
                "high availability needs a ReadWriteMany claim, {claim} has {}",
                modes.join(", ")
            )))
        }
        _ => Ok(State::Claim(claim.to_owned())),
    }
}

/// The `ConfigMap`s whose keys become files, in the order in which they are projected.
fn config_maps(controller: &Controller) -> Vec<String> {
    let spec = &controller.spec;
    let lists = [
        &spec.config_file_refs,
        &spec.prolog_script_refs,
        &spec.epilog_script_refs,
        &spec.prolog_slurmctld_script_refs,
        &spec.epilog_slurmctld_script_refs,
    ];
    let names: BTreeSet<String> = lists
        .into_iter()
        .flatten()
        .flatten()
        .map(|reference| reference.name.clone())
        .collect();
    names.into_iter().collect()
}

/// The files that the spec's `ConfigMap`s put beside slurm.conf.
fn user_files(observed: &Observed, config_maps: &[String]) -> Result<BTreeMap<String, Vec<u8>>, Problem> {
    let mut files = BTreeMap::new();
    let map = |name: &str| {
        let map = observed.config_maps.get(name).and_then(Option::as_ref);
        map.ok_or_else(|| Problem::absent("ConfigMap", name, "create it, or take the reference out"))
    };
    for name in config_maps {
        let map = map(name)?;
        files.extend(
            map.data
                .iter()
                .flatten()
                .map(|(file, text)| (file.clone(), text.clone().into_bytes())),
        );
        files.extend(
            map.binary_data
                .iter()
                .flatten()
                .map(|(file, bytes)| (file.clone(), bytes.0.clone())),
        );
    }
    if let Some(jwks) = &observed.controller.spec.jwks_key_ref {
        let map = map(&jwks.name)?;
        let text = map
            .data
            .as_ref()
            .and_then(|data| data.get(&jwks.key))
            .ok_or_else(|| Problem::no_key("ConfigMap", &jwks.name, &jwks.key))?;
        files.insert(file::JWKS.to_owned(), text.clone().into_bytes());
    }
    Ok(files)
}

fn nodesets(observed: &Observed) -> Vec<NodeSet> {
    let mut nodesets: Vec<NodeSet> = observed
        .nodesets
        .iter()
        .map(|nodeset| {
            let name = nodeset.slurm_name();
            let partition = nodeset
                .spec
                .partition
                .as_ref()
                .filter(|partition| partition.enabled);
            NodeSet {
                feature: name.clone(),
                name,
                partition: partition.map(|partition| Partition {
                    config: partition.config.clone().unwrap_or_default(),
                    leaving: nodeset.metadata.deletion_timestamp.is_some(),
                }),
            }
        })
        .collect();
    nodesets.sort_by(|a, b| a.name.cmp(&b.name));
    nodesets
}

fn wanted_nodes(observed: &Observed) -> u32 {
    let everywhere = u32::try_from(observed.kubernetes_nodes).unwrap_or(u32::MAX);
    observed
        .nodesets
        .iter()
        .map(|nodeset| match nodeset.spec.scaling_mode {
            keelson_api::nodeset::ScalingMode::DaemonSet => everywhere,
            keelson_api::nodeset::ScalingMode::StatefulSet => {
                u32::try_from(nodeset.spec.replicas).unwrap_or(0)
            }
        })
        .fold(0, u32::saturating_add)
}
