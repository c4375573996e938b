//! Builds the `ServiceMonitor` by which Prometheus finds slurmctld's metrics. Pure.

use keelson_api::{
    Controller,
    metrics::{MetricsEndpoint, ServiceMonitor as Wanted},
    overrides,
    well_known::{app, reason, slurm},
};
use keelson_runtime::{apply::Desired, optional_kind::Installed};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::build::labels;
use crate::{
    children::{
        metadata::{Metadata, owned_by, selector},
        service_monitor::{CRD, ServiceMonitor},
    },
    problem::Problem,
};

/// Returns the enabled settings of the spec, if any. An external slurmctld has no Service of ours to scrape.
fn wanted(controller: &Controller) -> Option<&Wanted> {
    let metrics = controller.spec.metrics.as_ref()?;
    let monitor = metrics.service_monitor.as_ref()?;
    (metrics.enabled && monitor.enabled && !controller.spec.external).then_some(monitor)
}

/// Returns why a requested `ServiceMonitor` cannot be created.
pub fn missing_kind(controller: &Controller, installed: Installed) -> Option<Problem> {
    let missing = installed == Installed::No && wanted(controller).is_some();
    missing.then(|| Problem {
        reason: reason::MONITORING_UNAVAILABLE,
        message: format!(
            "spec.metrics.serviceMonitor is enabled and the cluster has no CustomResourceDefinition {CRD}: install the \
             Prometheus operator's CRDs, or disable it"
        ),
    })
}

pub fn build_monitor(controller: &Controller) -> Option<Desired<ServiceMonitor>> {
    let Wanted {
        enabled: _,
        labels: user_labels,
        annotations,
        interval,
        scrape_timeout,
        endpoints,
    } = wanted(controller)?;
    let user = overrides::Metadata {
        labels: user_labels.clone(),
        annotations: annotations.clone(),
    };
    let namespace = controller.namespace().unwrap_or_default();
    let name = controller.controller_name();
    let metadata = Metadata::inherited(controller)
        .with_override(Some(&user))
        .with_labels(labels(controller))
        .of_object(&namespace, &name, &[owned_by(controller)]);

    let listed = endpoints.clone().filter(|endpoints| !endpoints.is_empty());
    let endpoints = listed.unwrap_or_else(|| {
        let of_path = |path: &str| MetricsEndpoint {
            path: path.to_owned(),
            ..MetricsEndpoint::default()
        };
        slurm::METRICS_PATHS.into_iter().map(of_path).collect()
    });
    let endpoints: Vec<Value> = endpoints
        .into_iter()
        .map(|endpoint| build_endpoint(endpoint, interval.as_deref(), scrape_timeout.as_deref(), &name))
        .collect();
    Some(Desired::new(json!({
        "metadata": metadata,
        "spec": {
            "endpoints": endpoints,
            "namespaceSelector": { "matchNames": [namespace] },
            "selector": { "matchLabels": selector(app::SLURMCTLD, &controller.name_any()) },
        },
    })))
}

fn build_endpoint(
    MetricsEndpoint {
        path,
        interval: own_interval,
        scrape_timeout: own_timeout,
    }: MetricsEndpoint,
    interval: Option<&str>,
    scrape_timeout: Option<&str>,
    service: &str,
) -> Value {
    let mut endpoint = json!({
        "port": app::SLURMCTLD,
        "scheme": "http",
        "path": path,
        // The headless Service has the same labels; without this its endpoints would be scraped a second time.
        "relabelings": [{
            "action": "keep",
            "sourceLabels": ["__meta_kubernetes_service_name"],
            "regex": service,
        }],
    });
    let times = [
        ("interval", own_interval.as_deref().or(interval)),
        ("scrapeTimeout", own_timeout.as_deref().or(scrape_timeout)),
    ];
    if let Value::Object(fields) = &mut endpoint {
        for (name, value) in times {
            // An empty value from a chart counts as unset.
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                fields.insert(name.into(), json!(value));
            }
        }
    }
    endpoint
}
