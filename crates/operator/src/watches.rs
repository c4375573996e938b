//! One watch per kind, connected to the triggers for its changes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use keelson_api::well_known::{app, label};
use keelson_runtime::{Cache, Change, Key, watch::Watches};
use kube::{ResourceExt, runtime::watcher::Config};

use crate::{caches::Caches, triggers::Triggers};

pub fn start(watches: &Watches, triggers: &Triggers) {
    let Caches {
        slurm_clusters,
        controllers,
        accountings,
        restapis,
        nodesets,
        loginsets,
        tokens,
        stateful_sets,
        deployments,
        cron_jobs,
        services,
        pods,
        nodes,
        claims,
        disruption_budgets,
        revisions,
        secrets,
        config_maps,
        service_monitors,
        mariadbs,
        foreground_deletions: _,
    } = triggers.caches.as_ref();
    let on = triggers;

    subscribe(slurm_clusters, on, |on, cluster| {
        on.queues.slurm_cluster.add(Key::of(cluster));
    });
    subscribe(controllers, on, |on, controller| {
        on.part_of(controller, &controller.name_any());
        on.controller(&Key::of(controller));
        on.rivals(controller);
        if let Some(accounting) = &controller.spec.accounting_ref {
            on.queues.accounting.add(Key::new(
                controller.namespace().unwrap_or_default(),
                &accounting.name,
            ));
        }
    });
    subscribe(accountings, on, |on, accounting| {
        on.part_of(accounting, &accounting.name_any());
        on.accounting(&Key::of(accounting));
    });
    subscribe(restapis, on, |on, restapi| {
        on.part_of(restapi, &restapi.spec.controller_ref.name);
        on.restapi(&Key::of(restapi), &restapi.spec.controller_ref.name);
    });
    subscribe(nodesets, on, |on, nodeset| {
        on.part_of(nodeset, &nodeset.spec.controller_ref.name);
        on.nodeset(&Key::of(nodeset), &nodeset.spec.controller_ref.name);
    });
    subscribe(loginsets, on, |on, loginset| {
        on.part_of(loginset, &loginset.spec.controller_ref.name);
        on.loginset(&Key::of(loginset), &loginset.spec.controller_ref.name);
    });
    subscribe(tokens, on, |on, token| on.queues.token.add(Key::of(token)));
    subscribe(stateful_sets, on, Triggers::child);
    subscribe(deployments, on, Triggers::child);
    subscribe(cron_jobs, on, Triggers::child);
    subscribe(services, on, Triggers::child);
    subscribe(disruption_budgets, on, Triggers::child);
    subscribe(revisions, on, Triggers::child);
    subscribe(claims, on, |on, claim| {
        on.content("PersistentVolumeClaim", &Key::of(claim));
        on.child(claim);
    });
    subscribe(pods, on, |on, pod: &Pod| {
        on.child(pod);
        let label = |key| pod.labels().get(key).map(String::as_str);
        if let (Some(app), Some(instance)) = (label(label::APP), label(label::INSTANCE)) {
            on.pod(pod, app, instance);
        }
    });
    let for_nodes = on.clone();
    nodes.subscribe(move |change| {
        if let Some(name) = node_that_matters(change) {
            for_nodes.node(&name);
        }
    });
    subscribe(secrets, on, |on, secret| {
        on.content("Secret", &Key::of(secret));
        on.child(secret);
    });
    subscribe(config_maps, on, |on, map| {
        on.content("ConfigMap", &Key::of(map));
        on.child(map);
    });

    subscribe(&service_monitors.cache, on, Triggers::child);
    let for_monitors = on.clone();
    service_monitors.subscribe(move || for_monitors.monitoring());
    subscribe(&mariadbs.cache, on, Triggers::child);
    let for_databases = on.clone();
    mariadbs.subscribe(move || for_databases.databases());

    watches.custom(slurm_clusters);
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
    // Those that we create carry these labels; a cluster has many others.
    let of_slurmctld = format!("{}={}", label::APP, app::SLURMCTLD);
    watches.optional(&children.clone().labels(&of_slurmctld), service_monitors);
    let of_databases = format!("{}={}", label::APP, app::DATABASE);
    watches.optional(&children.clone().labels(&of_databases), mariadbs);
    let of_dumps = format!("{}={}", label::APP, app::DATABASE_DUMP);
    watches.namespaced(&children.clone().labels(&of_dumps), cron_jobs);
    // Only pods of Slurm: a cluster has many others, and none of them is ours.
    let of_slurm = format!(
        "{} in ({},{},{},{},{},{},{})",
        label::APP,
        app::SLURMCTLD,
        app::SLURMD,
        app::SLURMDBD,
        app::SLURMRESTD,
        app::LOGIN,
        app::DATABASE,
        app::DATABASE_DUMP
    );
    watches.namespaced(&Config::default().labels(&of_slurm), pods);
}

/// Calls `concern` for both sides of every change of a kind.
fn subscribe<K: ResourceExt + 'static>(
    cache: &Arc<Cache<K>>,
    triggers: &Triggers,
    concern: impl Fn(&Triggers, &K) + Send + Sync + 'static,
) {
    let triggers = triggers.clone();
    cache.subscribe(move |change: &Change<K>| {
        triggers.caches.foreground_deletions.note(change);
        for side in change.sides() {
            concern(&triggers, side);
        }
    });
}

/// Returns the node's name if the change could matter to a worker.
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
