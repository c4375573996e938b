//! Tests the `ServiceMonitor` of a Controller. The Prometheus operator's CRD is installed and removed while the
//! operator runs.

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

/// The CRD, which is deleted with the test, because other tests run without it.
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
    // An interrupted earlier run may have left the CRD.
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

    // The ServiceMonitor selects the Service, and a port name of the Service.
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
    // slurmctld serves metrics on this path.
    let path = format!(
        "/api/v1/namespaces/{}/pods/slurm-controller-0:6817/proxy/metrics/jobs",
        slurm.space.name
    );
    let text = api::raw(&path)?;
    ensure!(text.contains("slurm_jobs"), "slurmctld serves no metrics: {text}");

    // The operator reverts a manual edit.
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

    // Without the CRD, the Controller stays ready.
    drop(crd);
    slurm.wait_condition(CONTROLLER, "Degraded", "True", "MonitoringUnavailable")?;
    slurm.wait_condition(CONTROLLER, "Ready", "True", "").map(drop)
}
