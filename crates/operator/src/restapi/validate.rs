//! Turns what was observed into input that can be built from, or says what is missing.

use std::sync::Arc;

use keelson_api::{Controller, references::SecretKeySelector, well_known::file};

use super::observe::Observed;
use crate::{children::checksum, problem::Problem, secrets};

/// What the children are built from.
#[derive(Debug, Clone)]
pub struct Validated {
    pub controller: Arc<Controller>,
    pub slurm_key: SecretKeySelector,
    pub slurm_key_hash: String,
    pub slurm_conf_hash: String,
    pub accounting: bool,
}

pub fn validate(observed: &Observed) -> Result<Validated, Problem> {
    let Observed {
        restapi,
        controller,
        slurm_key,
        slurm_key_in_use,
        config,
        live: _,
    } = observed;
    let controller_name = &restapi.spec.controller_ref.name;
    let controller = controller
        .clone()
        .ok_or_else(|| Problem::no_controller(controller_name))?;
    let reference = controller.spec.slurm_key_ref.clone().ok_or_else(|| {
        Problem::missing(format!(
            "Controller {controller_name} has no slurmKeyRef, without which slurmrestd cannot reach slurmctld"
        ))
    })?;
    let slurm_key_hash = secrets::checksum(slurm_key.as_deref(), &reference)?;
    let slurm_key_hash = slurm_key_in_use.clone().unwrap_or(slurm_key_hash);
    let slurm_conf = config
        .as_ref()
        .and_then(|config| config.data.as_ref()?.get(file::SLURM_CONF))
        .ok_or_else(|| {
            Problem::missing(format!(
                "the configuration of Controller {controller_name} is not made yet"
            ))
        })?;
    Ok(Validated {
        slurm_key: reference,
        slurm_key_hash,
        slurm_conf_hash: checksum::of_bytes(slurm_conf.as_bytes()),
        accounting: controller.spec.accounting_ref.is_some(),
        controller,
    })
}
