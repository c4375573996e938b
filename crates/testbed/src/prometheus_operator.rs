//! The CRD of `ServiceMonitors` from the Prometheus operator's Go module: what a cluster has where people run it.

use std::fs;

use anyhow::{Context, Result};

use crate::binaries::Go;

const VERSION: &str = "0.85.0";
/// Where the module has it.
const CRD: &str = "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml";

/// The CRD as YAML.
pub fn service_monitor_crd() -> Result<String> {
    let module = Go::find()?.module(&format!(
        "github.com/prometheus-operator/prometheus-operator@v{VERSION}"
    ))?;
    let file = module.join(CRD);
    fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
}
