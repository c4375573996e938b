//! The `ServiceMonitor` of a Controller, with the Prometheus operator's own CRD, which comes and goes while the operator runs.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing entry fails the test, as it should"
)]

use anyhow::{Result, ensure};
use e2e::slurm::Slurm;
use e2e::{api, eventually, kubectl, kubectl_with};
use serde_json::{Value, json};
use testbed::prometheus_operator;

const CONTROLLER: &str = "controllers.slinky.slurm.net/slurm";
const MONITOR: &str = "servicemonitors/slurm-controller";
const CRD: &str = "servicemonitors.monitoring.coreos.com";
const VALUES: &str = "
nodesets: { cpu: { replicas: 0 } }
controller:
  metrics:
    enabled: true
    serviceMonitor:
      enabled: true
      labels: { release: prometheus }
      interval: 20s
      scrapeTimeout: 15s
      endpoints: [{ path: /metrics/jobs }, { path: /metrics/nodes, interval: 1m }]
";

/// The CRD goes with the test: other tests' clusters are without it, too.
struct Crd;

impl Crd {
    fn remove() -> Result<()> {
        kubectl(&["delete", "crd", CRD, "--ignore-not-found", "--timeout=60s"]).map(drop)
    }

    fn install() -> Result<Self> {
        let crd = prometheus_operator::service_monitor_crd()?;
        kubectl_with(&["apply", "--server-side"], &crd)?;
        Ok(Self)
    }
}

impl Drop for Crd {
    fn drop(&mut self) {
        let _ = Self::remove();
    }
}

fn asked_for(slurm: &Slurm, enabled: bool) -> Result<()> {
    let monitor = json!({ "enabled": enabled });
    slurm.patch(
        CONTROLLER,
        &json!({ "spec": { "metrics": { "serviceMonitor": monitor } } }),
    )
}

fn monitor(slurm: &Slurm) -> Result<Value> {
    slurm.get(&[MONITOR])
}

fn is_gone(slurm: &Slurm) -> Result<()> {
    eventually("the ServiceMonitor is gone", || {
        ensure!(monitor(slurm).is_err(), "it is there");
        Ok(())
    })
}

#[test]
fn a_service_monitor_is_made_as_soon_as_the_cluster_has_the_kind() -> Result<()> {
    // From a run before this one.
    Crd::remove()?;
    let slurm = Slurm::install("monitor", VALUES)?;
    let said = slurm.wait_condition(CONTROLLER, "Degraded", "True", "MonitoringUnavailable")?;
    ensure!(said.contains(CRD), "{said}");
    slurm.wait_condition(CONTROLLER, "Ready", "True", "")?;

    let crd = Crd::install()?;
    let made = eventually("the ServiceMonitor is there", || monitor(&slurm))?;
    ensure!(made["metadata"]["labels"]["release"] == "prometheus", "{made}");
    ensure!(
        made["metadata"]["ownerReferences"][0]["kind"] == "Controller",
        "{made}"
    );
    let endpoints = made["spec"]["endpoints"].as_array().cloned().unwrap_or_default();
    let times: Vec<_> = endpoints
        .iter()
        .map(|endpoint| {
            [
                &endpoint["path"],
                &endpoint["interval"],
                &endpoint["scrapeTimeout"],
            ]
        })
        .collect();
    ensure!(
        json!(times) == json!([["/metrics/jobs", "20s", "15s"], ["/metrics/nodes", "1m", "15s"]]),
        "{made}"
    );
    slurm.wait_condition(CONTROLLER, "Degraded", "False", "")?;

    // What it selects: the Service, by a port that has this name.
    let selected = &made["spec"]["selector"]["matchLabels"];
    let service = slurm.get(&["services/slurm-controller"])?;
    let labels = selected.as_object().cloned().unwrap_or_default();
    ensure!(
        !labels.is_empty()
            && labels
                .iter()
                .all(|(key, value)| service["metadata"]["labels"][key] == *value),
        "{selected} does not select {service}"
    );
    ensure!(
        endpoints
            .iter()
            .all(|endpoint| endpoint["port"] == service["spec"]["ports"][0]["name"]),
        "{made}"
    );
    // slurmctld serves what is scraped.
    let path = format!(
        "/api/v1/namespaces/{}/pods/slurm-controller-0:6817/proxy/metrics/jobs",
        slurm.space.name
    );
    let text = api::raw(&path)?;
    ensure!(text.contains("slurm_jobs"), "slurmctld serves no metrics: {text}");

    // Somebody else's edit is undone.
    slurm.patch(MONITOR, &json!({ "spec": { "endpoints": [] } }))?;
    eventually("the endpoints are back", || {
        let now = monitor(&slurm)?;
        ensure!(now["spec"]["endpoints"] == made["spec"]["endpoints"], "{now}");
        Ok(())
    })?;

    asked_for(&slurm, false)?;
    is_gone(&slurm)?;
    asked_for(&slurm, true)?;
    eventually("the ServiceMonitor is there again", || monitor(&slurm))?;

    // Where the kind goes, the rest goes on.
    drop(crd);
    slurm.wait_condition(CONTROLLER, "Degraded", "True", "MonitoringUnavailable")?;
    slurm.wait_condition(CONTROLLER, "Ready", "True", "").map(drop)
}
