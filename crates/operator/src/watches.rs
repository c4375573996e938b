//! One watch per kind, wired to whom its changes concern.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use keelson_api::well_known::{app, label};
use keelson_runtime::{Cache, Change, Key, watch::Watches};
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
        service_monitors,
    } = triggers.caches.as_ref();
    let on = triggers;

    tell(controllers, on, |on, controller| {
        on.controller(&Key::of(controller));
        on.rivals(controller);
        if let Some(accounting) = &controller.spec.accounting_ref {
            on.queues.accounting.add(Key::new(
                controller.namespace().unwrap_or_default(),
                &accounting.name,
            ));
        }
    });
    tell(accountings, on, |on, accounting| {
        on.accounting(&Key::of(accounting));
    });
    tell(restapis, on, |on, restapi| {
        on.restapi(&Key::of(restapi), &restapi.spec.controller_ref.name);
    });
    tell(nodesets, on, |on, nodeset| {
        on.nodeset(&Key::of(nodeset), &nodeset.spec.controller_ref.name);
    });
    tell(loginsets, on, |on, loginset| {
        on.loginset(&Key::of(loginset), &loginset.spec.controller_ref.name);
    });
    tell(tokens, on, |on, token| on.queues.token.add(Key::of(token)));
    tell(stateful_sets, on, Triggers::child);
    tell(deployments, on, Triggers::child);
    tell(services, on, Triggers::child);
    tell(disruption_budgets, on, Triggers::child);
    tell(revisions, on, Triggers::child);
    tell(claims, on, Triggers::child);
    tell(pods, on, |on, pod: &Pod| {
        on.child(pod);
        let label = |key| pod.labels().get(key).map(String::as_str);
        if let (Some(app), Some(instance)) = (label(label::APP), label(label::INSTANCE)) {
            on.pod(pod, app, instance);
        }
    });
    let for_nodes = on.clone();
    nodes.tell(move |change| {
        if let Some(name) = node_that_matters(change) {
            for_nodes.node(&name);
        }
    });
    tell(secrets, on, |on, secret| {
        on.content("Secret", &Key::of(secret));
        on.child(secret);
    });
    tell(config_maps, on, |on, map| {
        on.content("ConfigMap", &Key::of(map));
        on.child(map);
    });

    tell(&service_monitors.cache, on, Triggers::child);
    let for_monitors = on.clone();
    service_monitors.tell(move || for_monitors.monitoring());

    watches.custom(controllers);
    watches.custom(accountings);
    watches.custom(restapis);
    watches.custom(nodesets);
    watches.custom(loginsets);
    watches.custom(tokens);
    let children = Config::default().any_semantic();
    watches.namespaced(&children, stateful_sets);
    watches.namespaced(&children, deployments);
    watches.namespaced(&children, services);
    watches.namespaced(&children, disruption_budgets);
    watches.namespaced(&children, revisions);
    watches.namespaced(&children, claims);
    watches.namespaced(&children, secrets);
    watches.namespaced(&children, config_maps);
    watches.cluster(&children, nodes);
    // Those that we make carry this label, and a cluster has many others.
    let of_slurmctld = format!("{}={}", label::APP, app::SLURMCTLD);
    watches.optional(&children.clone().labels(&of_slurmctld), service_monitors);
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
    watches.namespaced(&Config::default().labels(&of_slurm), pods);
}

/// Names whom the changes of a kind concern, on both sides of the change.
fn tell<K: ResourceExt + 'static>(
    cache: &Arc<Cache<K>>,
    triggers: &Triggers,
    concern: impl Fn(&Triggers, &K) + Send + Sync + 'static,
) {
    let triggers = triggers.clone();
    cache.tell(move |change: &Change<K>| {
        for side in change.sides() {
            concern(&triggers, side);
        }
    });
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
