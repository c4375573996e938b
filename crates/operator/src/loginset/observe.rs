//! Reads the inputs of a LoginSet and its existing children.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Secret, Service},
};
use keelson_api::{Controller, LoginSet, well_known::app};
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
    pub loginset: Arc<LoginSet>,
    pub controller: Option<Arc<Controller>>,
    pub slurm_key: Option<Arc<Secret>>,
    pub hash_key: Option<HashKey>,
    /// Fingerprint of the slurm.key that slurmctld runs with, if we run slurmctld.
    pub slurm_key_in_use: Option<String>,
    pub sssd: Option<Arc<Secret>>,
    pub cluster_domain: String,
    pub live: Live,
}

/// The existing children.
#[derive(Debug, Clone, Default)]
pub struct Live {
    pub host_keys: Option<Arc<Secret>>,
    pub ssh_config: Option<Arc<ConfigMap>>,
    pub service: Option<Arc<Service>>,
    pub deployment: Option<Arc<Deployment>>,
    pub pods: Vec<Arc<Pod>>,
}

/// Returns the key of the Service and the Deployment.
pub fn name(loginset: &LoginSet) -> Key {
    Key::new(loginset.namespace().unwrap_or_default(), loginset.login_name())
}

pub async fn observe(context: &Context, loginset: Arc<LoginSet>) -> Result<Observed, contents::Error> {
    let caches = &context.caches;
    let namespace = loginset.namespace().unwrap_or_default();
    let controller = caches
        .controllers
        .get(&Key::new(&namespace, &loginset.spec.controller_ref.name));
    let mut secrets = [None, None];
    let references = [
        controller
            .as_ref()
            .and_then(|controller| controller.spec.slurm_key_ref.as_ref()),
        loginset.spec.sssd_conf_ref.as_ref(),
    ];
    for (slot, reference) in secrets.iter_mut().zip(references) {
        if let Some(reference) = reference {
            *slot = context.secret(&namespace, &reference.name).await?;
        }
    }
    let [slurm_key, sssd] = secrets;
    let name = name(&loginset);
    Ok(Observed {
        slurm_key_in_use: controller
            .as_ref()
            .and_then(|controller| context.slurm_key_in_use(controller)),
        controller,
        slurm_key,
        hash_key: context.hash_key(loginset.as_ref()).await?,
        sssd,
        cluster_domain: context.settings.cluster_domain.clone(),
        live: Live {
            host_keys: context.secret(&namespace, &loginset.ssh_host_keys_name()).await?,
            ssh_config: context
                .config_map(&namespace, &loginset.ssh_config_name())
                .await?,
            service: caches.services.get(&name),
            deployment: caches.deployments.get(&name),
            pods: caches.pods.find(
                INSTANCE,
                &instance_value(app::LOGIN, &namespace, &loginset.name_any()),
            ),
        },
        loginset,
    })
}
