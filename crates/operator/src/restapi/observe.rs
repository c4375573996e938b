//! Reads the inputs of a RestApi and its existing children.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use keelson_api::{Controller, RestApi, well_known::app};
use keelson_runtime::{Key, contents};
use kube::ResourceExt;

use crate::{
    caches::{INSTANCE, instance_value},
    context::Context,
    fingerprints::HashKey,
};

/// Input of the other steps.
#[derive(Debug, Clone)]
pub struct Observed {
    pub restapi: Arc<RestApi>,
    pub controller: Option<Arc<Controller>>,
    pub slurm_key: Option<Arc<Secret>>,
    pub hash_key: Option<HashKey>,
    /// Fingerprint of the slurm.key that slurmctld runs with, if we run slurmctld.
    pub slurm_key_in_use: Option<String>,
    /// The newest slurm.conf, which the Controller's own reconcile writes; slurmctld may not have applied it.
    pub candidate: Option<Arc<ConfigMap>>,
    pub live: Live,
}

/// The existing children.
#[derive(Debug, Clone, Default)]
pub struct Live {
    pub config: Option<Arc<ConfigMap>>,
    pub service: Option<Arc<Service>>,
    pub deployment: Option<Arc<Deployment>>,
    pub disruption_budget: Option<Arc<PodDisruptionBudget>>,
    pub pods: Vec<Arc<Pod>>,
}

/// Returns the key of the Service, the Deployment and the other children.
pub fn name(restapi: &RestApi) -> Key {
    Key::new(restapi.namespace().unwrap_or_default(), restapi.restapi_name())
}

pub async fn observe(context: &Context, restapi: Arc<RestApi>) -> Result<Observed, contents::Error> {
    let caches = &context.caches;
    let namespace = restapi.namespace().unwrap_or_default();
    let name = name(&restapi);
    let controller = caches
        .controllers
        .get(&Key::new(&namespace, &restapi.spec.controller_ref.name));
    let key = controller
        .as_ref()
        .and_then(|controller| controller.spec.slurm_key_ref.as_ref());
    let slurm_key = match key {
        Some(key) => context.secret(&namespace, &key.name).await?,
        None => None,
    };
    let candidate = match &controller {
        Some(controller) => context.config_map(&namespace, &controller.config_name()).await?,
        None => None,
    };
    Ok(Observed {
        slurm_key_in_use: controller
            .as_ref()
            .and_then(|controller| context.slurm_key_in_use(controller)),
        controller,
        slurm_key,
        hash_key: context.hash_key(restapi.as_ref()).await?,
        candidate,
        live: Live {
            config: context.config_map(&namespace, &restapi.restapi_name()).await?,
            service: caches.services.get(&name),
            deployment: caches.deployments.get(&name),
            disruption_budget: caches.disruption_budgets.get(&name),
            pods: caches.pods.find(
                INSTANCE,
                &instance_value(app::SLURMRESTD, &namespace, &restapi.name_any()),
            ),
        },
        restapi,
    })
}
