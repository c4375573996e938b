//! One watch per kind, wired to whom its changes concern. Pods and nodes are stored without what nobody reads.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use keelson_api::well_known::{app, label};
use keelson_runtime::{
    Cache, Change, Key,
    watch::{Subscriber, Watches},
};
use kube::{ResourceExt, runtime::watcher::Config};

use crate::{caches::Caches, triggers::Triggers};

pub fn start(watches: &Watches, triggers: &Triggers) {
    let Caches {
        controllers,
        accountings,
        restapis,
        nodesets,
        loginsets,
        tokens,
        stateful_sets,
        deployments,
        services,
        pods,
        nodes,
        claims,
        disruption_budgets,
        revisions,
        secrets,
        config_maps,
    } = triggers.caches.as_ref();
    let on = triggers;

    watches.custom(&subscriber(controllers, on, |on, controller| {
        on.controller(&Key::of(controller));
        if let Some(accounting) = &controller.spec.accounting_ref {
            on.queues.accounting.add(Key::new(
                controller.namespace().unwrap_or_default(),
                &accounting.name,
            ));
        }
    }));
    watches.custom(&subscriber(accountings, on, |on, accounting| {
        on.accounting(&Key::of(accounting));
    }));
    watches.custom(&subscriber(restapis, on, |on, restapi| {
        on.restapi(&Key::of(restapi), &restapi.spec.controller_ref.name);
    }));
    watches.custom(&subscriber(nodesets, on, |on, nodeset| {
        on.nodeset(&Key::of(nodeset), &nodeset.spec.controller_ref.name);
    }));
    watches.custom(&subscriber(loginsets, on, |on, loginset| {
        on.loginset(&Key::of(loginset), &loginset.spec.controller_ref.name);
    }));
    watches.custom(&subscriber(tokens, on, |on, token| {
        on.queues.token.add(Key::of(token));
    }));

    let children = Config::default().any_semantic();
    watches.namespaced(&children, &subscriber(stateful_sets, on, Triggers::child));
    watches.namespaced(&children, &subscriber(deployments, on, Triggers::child));
    watches.namespaced(&children, &subscriber(services, on, Triggers::child));
    watches.namespaced(&children, &subscriber(disruption_budgets, on, Triggers::child));
    watches.namespaced(&children, &subscriber(revisions, on, Triggers::child));
    watches.namespaced(&children, &subscriber(claims, on, Triggers::child));
    // Only pods of Slurm: a cluster's other pods are many and none of ours.
    let of_slurm = format!(
        "{} in ({},{},{},{},{})",
        label::APP,
        app::SLURMCTLD,
        app::SLURMD,
        app::SLURMDBD,
        app::SLURMRESTD,
        app::LOGIN
    );
    let mut pod_subscriber = subscriber(pods, on, |on, pod: &Pod| {
        on.child(pod);
        let label = |key| pod.labels().get(key).map(String::as_str);
        if let (Some(app), Some(instance)) = (label(label::APP), label(label::INSTANCE)) {
            on.pod(pod, app, instance);
        }
    });
    pod_subscriber.prune = prune_pod;
    watches.namespaced(&Config::default().labels(&of_slurm), &pod_subscriber);

    let mut node_subscriber = subscriber(nodes, on, |_, _| {});
    node_subscriber.prune = prune_node;
    let for_nodes = on.clone();
    node_subscriber.on_change = Arc::new(move |change| {
        if let Some(name) = node_that_matters(change) {
            for_nodes.node(&name);
        }
    });
    watches.cluster(&children, &node_subscriber);

    watches.namespaced(
        &children,
        &subscriber(secrets, on, |on, secret| {
            on.content("Secret", &Key::of(secret));
            on.child(secret);
        }),
    );
    watches.namespaced(
        &children,
        &subscriber(config_maps, on, |on, map| {
            on.content("ConfigMap", &Key::of(map));
            on.child(map);
        }),
    );
}

fn subscriber<K: 'static>(
    cache: &Arc<Cache<K>>,
    triggers: &Triggers,
    concern: impl Fn(&Triggers, &K) + Send + Sync + 'static,
) -> Subscriber<K> {
    let triggers = triggers.clone();
    Subscriber {
        cache: Arc::clone(cache),
        prune: |_| {},
        on_change: Arc::new(move |change: &Change<K>| {
            for side in change.sides() {
                concern(&triggers, side);
            }
        }),
    }
}

/// What nobody reads is most of a pod: thousands of them are kept.
pub fn prune_pod(pod: &mut Pod) {
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
fn prune_node(node: &mut Node) {
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

/// The node's name if the change could matter to a worker.
fn node_that_matters(change: &Change<Node>) -> Option<String> {
    let facts = |node: &Arc<Node>| {
        let mut node = node.as_ref().clone();
        node.metadata.resource_version = None;
        node
    };
    let same = match (&change.old, &change.new) {
        (Some(old), Some(new)) => facts(old) == facts(new),
        _ => false,
    };
    if same {
        None
    } else {
        change.sides().next().map(|node| node.name_any())
    }
}
