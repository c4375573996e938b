//! Turns the observed state into input for the build, or reports what is missing.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use keelson_api::{
    Controller,
    references::SecretKeySelector,
    well_known::{annotation, condition, file},
};
use kube::ResourceExt;

use super::observe::Observed;
use crate::{fingerprints::Fingerprints, keys, problem::Problem, workload::deployment_template};

/// Validated input of the build.
#[derive(Debug, Clone)]
pub struct Validated {
    pub controller: Arc<Controller>,
    pub slurm_key: SecretKeySelector,
    pub slurm_key_hash: String,
    /// slurm.conf for slurmrestd, which terminates on one that slurmctld refused.
    pub slurm_conf: String,
    pub accounting: bool,
}

pub fn validate(observed: &Observed) -> Result<Validated, Problem> {
    let Observed {
        restapi,
        controller,
        slurm_key,
        hash_key,
        slurm_key_in_use,
        candidate,
        live,
    } = observed;
    let controller_name = &restapi.spec.controller_ref.name;
    let controller = controller
        .clone()
        .ok_or_else(|| Problem::no_controller(controller_name))?;
    let (reference, slurm_key_hash) = keys::of_controller(&controller, slurm_key.as_deref())?;
    let names = Fingerprints::new(hash_key.as_ref(), deployment_template(live.deployment.as_deref()))?;
    let slurm_key_hash = names.follow(file::SLURM_KEY, slurm_key_hash, slurm_key_in_use.as_ref());
    let candidate = candidate.as_deref().ok_or_else(|| {
        Problem::missing(format!(
            "waiting for the configuration of Controller {controller_name}"
        ))
    })?;
    let in_use = live
        .config
        .as_deref()
        .filter(|_| !is_accepted(&controller, candidate));
    let slurm_conf = in_use
        .and_then(slurm_conf)
        .or_else(|| slurm_conf(candidate))
        .cloned()
        .ok_or_else(|| {
            Problem::missing(format!(
                "the configuration of Controller {controller_name} has no {}; delete its ConfigMap {} to recreate it",
                file::SLURM_CONF,
                controller.config_name()
            ))
        })?;
    Ok(Validated {
        slurm_key: reference,
        slurm_key_hash,
        slurm_conf,
        accounting: controller.spec.accounting_ref.is_some(),
        controller,
    })
}

fn slurm_conf(config: &ConfigMap) -> Option<&String> {
    config.data.as_ref()?.get(file::SLURM_CONF)
}

/// Reports whether slurmctld runs with this configuration. An external slurmctld and images of other makers do not
/// report it and count as running with it.
fn is_accepted(controller: &Controller, candidate: &ConfigMap) -> bool {
    let Some(name) = candidate.annotations().get(annotation::CONFIG_NAME) else {
        return true;
    };
    let status = controller.status.as_ref();
    let untold = status.is_some_and(|status| {
        status
            .conditions
            .iter()
            .any(|condition| condition.type_ == condition::CONFIG_APPLIED && condition.status == "Unknown")
    });
    untold || status.and_then(|status| status.active_config_hash.as_ref()) == Some(name)
}
