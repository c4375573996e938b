//! The `ServiceMonitor` CRD from the Go module of the Prometheus operator, for clusters that use it.

use std::fs;

use anyhow::{Context, Result};

use crate::binaries::Go;

const VERSION: &str = "0.85.0";
/// The path of the CRD in the module.
const CRD: &str = "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml";

/// The CRD as YAML.
pub fn service_monitor_crd() -> Result<String> {
    let module = Go::find()?.module(&format!(
        "github.com/prometheus-operator/prometheus-operator@v{VERSION}"
    ))?;
    let file = module.join(CRD);
    fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))
}
