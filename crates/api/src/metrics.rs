//! Metrics of slurmctld and the ServiceMonitor that scrapes them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Metrics of slurmctld.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Whether slurmctld serves OpenMetrics.
    #[serde(default)]
    pub enabled: bool,
    /// ServiceMonitor of the Prometheus operator. The operator creates it when its CRD is installed; until then the condition
    /// Degraded is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub service_monitor: Option<ServiceMonitor>,
}

/// ServiceMonitor of the Prometheus operator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMonitor {
    /// Whether to create the ServiceMonitor.
    #[serde(default)]
    pub enabled: bool,
    /// Labels of the ServiceMonitor, which Prometheus uses to select it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the ServiceMonitor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Default scrape interval of the endpoints, such as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// Default scrape timeout of the endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrape_timeout: Option<String>,
    /// Paths to scrape. Defaults to jobs, nodes, partitions and scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub endpoints: Option<Vec<MetricsEndpoint>>,
}

/// A path to scrape.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricsEndpoint {
    /// HTTP path.
    pub path: String,
    /// Scrape interval, such as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// Scrape timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrape_timeout: Option<String>,
}
