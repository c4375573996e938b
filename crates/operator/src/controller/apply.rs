//! Applies the children of a Controller: first what pods mount and find each other by, then the pods.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret};
use keelson_api::{
    Controller,
    well_known::{annotation, finalizer},
};
use keelson_runtime::{
    Key,
    apply::{self, Desired, Writer},
    optional_kind::Installed,
    run::chain,
};
use kube::ResourceExt;
use serde_json::json;

use super::{
    build::{Children, Daemon},
    configuration::delivery::is_ready,
    observe::{Live, Observed},
};
use crate::{
    apply_child::apply_child,
    caches::{CONTROLLER, REFERENCE, reference_value},
    context::Context,
    error::Error,
    keys,
};

/// The label by which a StatefulSet tells the templates of its pods apart.
const REVISION: &str = "controller-revision-hash";

/// Creates the key Secrets that the Controller asks for and that do not exist; returns whether one was created.
pub async fn make_missing_keys(
    context: &Context,
    writer: &Writer,
    controller: &Controller,
) -> Result<bool, Error> {
    let namespace = controller.namespace().unwrap_or_default();
    let mut made = false;
    for (kind, reference) in keys::wanted(controller) {
        if context
            .caches
            .secrets
            .get(&Key::new(&namespace, &reference.name))
            .is_some()
        {
            continue;
        }
        let desired =
            Desired::<Secret>::new(keys::build_secret(controller, kind, &reference, rand::random()));
        match writer.create(&desired).await {
            Ok(_) => {
                made = true;
                context.events.normal(
                    controller,
                    "KeyCreated",
                    format!("created the key Secret {}", reference.name),
                );
            }
            // The cache was stale, or someone else was faster: the existing Secret counts.
            Err(error) if error.is_already_exists() => {}
            Err(error) => return Err(Error::Key(error)),
        }
    }
    Ok(made)
}

/// Returns the objects that need this Controller's slurmctld.
pub fn users(context: &Context, key: &Key) -> Vec<String> {
    let id = key.to_string();
    let nodesets = context.caches.nodesets.find(CONTROLLER, &id);
    let loginsets = context.caches.loginsets.find(CONTROLLER, &id);
    let nodesets = nodesets
        .iter()
        .map(|nodeset| format!("NodeSet {}", nodeset.name_any()));
    nodesets
        .chain(
            loginsets
                .iter()
                .map(|loginset| format!("LoginSet {}", loginset.name_any())),
        )
        .collect()
}

/// Adds finalizers that keep the Controller and its keys until the objects that need them are gone.
pub async fn hold(context: &Context, writer: &Writer, observed: &Observed) -> Result<(), Error> {
    let Observed {
        controller,
        slurm_key,
        jwt_key,
        ..
    } = observed;
    let written = writer
        .finalizer(controller.as_ref(), finalizer::IN_USE, true)
        .await
        .map_err(Error::Finalizer)?;
    if let Some(written) = written {
        context.caches.controllers.upsert(written);
    }
    for secret in slurm_key.iter().chain(jwt_key) {
        writer
            .finalizer(secret.as_ref(), finalizer::IN_USE, true)
            .await
            .map_err(Error::Finalizer)?;
    }
    Ok(())
}

/// Removes the finalizers from the Controller and from keys that no other Controller uses.
pub async fn release(context: &Context, writer: &Writer, controller: &Controller) -> Result<(), Error> {
    let namespace = controller.namespace().unwrap_or_default();
    for key in controller
        .spec
        .slurm_key_ref
        .iter()
        .chain(controller.spec.jwt_key())
    {
        let others = context
            .caches
            .controllers
            .find(REFERENCE, &reference_value("Secret", &namespace, &key.name));
        if others.iter().any(|other| other.uid() != controller.uid()) {
            continue;
        }
        if let Some(secret) = context.secret(&namespace, &key.name).await? {
            writer
                .finalizer(secret.as_ref(), finalizer::IN_USE, false)
                .await
                .map_err(Error::Finalizer)?;
        }
    }
    writer
        .finalizer(controller, finalizer::IN_USE, false)
        .await
        .map_err(Error::Finalizer)?;
    Ok(())
}

pub async fn apply(
    context: &Context,
    writer: &Writer,
    children: &Children,
    live: &Live,
) -> Result<(), apply::Error> {
    let Children {
        config,
        config_in_use,
        daemon,
        // Applied separately: Slurm runs without it.
        monitor: _,
    } = children;
    let caches = &context.caches;
    // Before its replacement.
    if let Some(in_use) = config_in_use {
        apply_child(writer, None, in_use, live.config_in_use.as_ref()).await?;
    }
    apply_child(writer, None, config, live.config.as_ref()).await?;
    let Some(Daemon {
        internal_service,
        service,
        stateful_set,
    }) = daemon
    else {
        return Ok(());
    };
    apply_child(
        writer,
        Some(&caches.services),
        internal_service,
        live.internal_service.as_ref(),
    )
    .await?;
    apply_child(writer, Some(&caches.services), service, live.service.as_ref()).await?;
    apply_child(
        writer,
        Some(&caches.stateful_sets),
        stateful_set,
        live.stateful_set.as_ref(),
    )
    .await?;
    Ok(())
}

/// Creates, updates or deletes the `ServiceMonitor`, if the cluster has its CRD.
pub async fn apply_monitor(
    context: &Context,
    writer: &Writer,
    controller: &Controller,
    children: &Children,
    live: &Live,
) -> Result<(), apply::Error> {
    let kind = &context.caches.service_monitors;
    if kind.installed() != Installed::Yes {
        return Ok(());
    }
    match (&children.monitor, &live.monitor) {
        (Some(desired), live) => {
            apply_child(writer, Some(&kind.cache), desired, live.as_ref()).await?;
        }
        (None, Some(live)) if is_owned(live.as_ref(), controller) => {
            writer.delete(live.as_ref()).await?;
        }
        (None, _) => {}
    }
    Ok(())
}

/// Someone else may have an object of this name.
fn is_owned<K: ResourceExt>(child: &K, controller: &Controller) -> bool {
    let uid = controller.uid();
    let mut owners = child.owner_references().iter();
    owners.any(|owner| Some(&owner.uid) == uid.as_ref())
}

/// Deletes pods that block a rollout. A StatefulSet waits for each pod to become ready before it replaces it, so a pod
/// that cannot start would block its own fix.
pub async fn replace_stuck(writer: &Writer, live: &Live) -> Result<(), Error> {
    for pod in stuck(live) {
        tracing::info!(
            pod = pod.name_any(),
            "deleting an unready pod of an outdated template"
        );
        writer.delete(pod.as_ref()).await.map_err(Error::Apply)?;
    }
    Ok(())
}

fn stuck(live: &Live) -> Vec<&Arc<Pod>> {
    let Some(set) = &live.stateful_set else {
        return vec![];
    };
    let status = set.status.as_ref();
    let seen = status.and_then(|status| status.observed_generation) == set.metadata.generation;
    let newest = status.and_then(|status| status.update_revision.as_ref());
    let Some(newest) = newest.filter(|_| seen) else {
        return vec![];
    };
    let is_old = |pod: &Pod| {
        pod.labels()
            .get(REVISION)
            .is_some_and(|revision| revision != newest)
    };
    live.pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_old(pod) && !is_ready(pod))
        .collect()
}

/// Changes an annotation so that the kubelet updates the pods' volumes now instead of at its next sync. The kubelet may
/// still see the annotation before the changed ConfigMap, so the value changes every few seconds.
pub async fn poke(writer: &Writer, pods: &[Arc<Pod>], hash: &str, now: Timestamp) {
    const EVERY_SECONDS: i64 = 3;
    let short: String = hash.chars().take(12).collect();
    let value = format!("{short}-{}", now.as_second() / EVERY_SECONDS);
    for pod in pods
        .iter()
        .filter(|pod| pod.annotations().get(annotation::CONFIG_POKE) != Some(&value))
    {
        let patch = json!({ "metadata": { "annotations": { annotation::CONFIG_POKE: value } } });
        if let Err(error) = writer.merge(pod.as_ref(), patch).await {
            tracing::debug!(
                pod = pod.name_any(),
                error = chain(&error),
                "failed to annotate the pod"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::cannot_start("old", "False", 2, 1)]
    #[case::serves("old", "True", 2, 0)]
    #[case::starts_with_the_newest("new", "False", 2, 0)]
    #[case::nobody_has_looked_at_the_template_yet("old", "False", 1, 0)]
    fn only_what_cannot_become_ready_is_replaced(
        #[case] revision: &str,
        #[case] ready: &str,
        #[case] seen: i64,
        #[case] expected: usize,
    ) {
        let set = json!({ "metadata": { "generation": 2 },
            "status": { "replicas": 1, "observedGeneration": seen, "updateRevision": "new" } });
        let pod = json!({ "metadata": { "labels": { REVISION: revision } },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
        let live = Live {
            stateful_set: Some(Arc::new(serde_json::from_value(set).unwrap())),
            pods: vec![Arc::new(serde_json::from_value(pod).unwrap())],
            ..Live::default()
        };
        assert_eq!(stuck(&live).len(), expected);
    }
}
