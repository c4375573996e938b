//! What is kept of the objects that there are many of. Pure.

use k8s_openapi::api::core::v1::{Node, Pod};

/// What nobody reads is most of a pod: thousands of them are kept.
pub fn pod(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    let Some(spec) = &mut pod.spec else { return };
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        container.command = None;
        container.args = None;
        container.env = None;
        container.volume_mounts = None;
        container.startup_probe = None;
        container.liveness_probe = None;
        container.readiness_probe = None;
        container.lifecycle = None;
        container.security_context = None;
    }
    spec.tolerations = None;
    if let Some(volumes) = &mut spec.volumes {
        volumes.retain(|volume| volume.persistent_volume_claim.is_some());
    }
}

/// Heartbeats and image lists change a node every few seconds and concern nobody.
pub fn node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        status.node_info = None;
        status.addresses = None;
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
    }
}
