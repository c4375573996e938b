//! Metrics of slurmctld and the ServiceMonitor that scrapes them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// slurmctld's metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Whether slurmctld serves OpenMetrics.
    #[serde(default)]
    pub enabled: bool,
    /// ServiceMonitor of the Prometheus operator. It is made once the cluster has its CRD; until then the condition Degraded
    /// says that it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub service_monitor: Option<ServiceMonitor>,
}

/// ServiceMonitor of the Prometheus operator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMonitor {
    /// Whether it is made.
    #[serde(default)]
    pub enabled: bool,
    /// Labels of the ServiceMonitor, by which a Prometheus selects it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the ServiceMonitor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub annotations: Option<BTreeMap<String, String>>,
    /// How often every endpoint is scraped unless it says otherwise, such as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// How long a scrape may take unless the endpoint says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrape_timeout: Option<String>,
    /// Paths to scrape; jobs, nodes, partitions and scheduler when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub endpoints: Option<Vec<MetricsEndpoint>>,
}

/// One path to scrape.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricsEndpoint {
    /// HTTP path.
    pub path: String,
    /// How often it is scraped, such as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// How long a scrape may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrape_timeout: Option<String>,
}
