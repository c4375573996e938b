//! Command-line flags. They have the same names as Slinky's flags, so that Slinky's Deployment can run our image.

use std::path::PathBuf;

use clap::{ArgAction, Args};

/// A boolean flag in Go syntax: `--x`, `--x=true` or `--x=false`.
macro_rules! go_switch {
    () => {
        ArgAction::Set
    };
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one field for each flag")]
pub struct Operator {
    /// Listen address of the health endpoints; 0 disables them.
    #[arg(long, default_value = ":8081")]
    pub health_addr: String,
    /// Listen address of the metrics endpoint; 0 disables it.
    #[arg(long, default_value = ":8080")]
    pub metrics_addr: String,
    /// Serve metrics over TLS and only to authorized clients.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub metrics_secure: bool,
    /// Ignored, accepted for compatibility with Slinky.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub enable_http2: bool,
    /// Enable leader election, which allows several replicas.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub leader_elect: bool,
    /// Namespace of the leader election Lease; defaults to the namespace of the pod.
    #[arg(long, default_value = "")]
    pub leader_elect_namespace: String,
    /// Comma-separated list of namespaces to watch; all namespaces if empty.
    #[arg(long, value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Comma-separated list of node condition types whose reason and message become the Slurm drain reason.
    #[arg(long, value_delimiter = ',')]
    pub propagated_node_conditions: Vec<String>,
    /// Maximum size of a list read from slurmrestd; 256Mi is enough for about 32,000 jobs or 100,000 nodes.
    #[arg(long, default_value = "256Mi")]
    pub slurm_max_answer: String,
    /// Ignored, accepted for compatibility with Slinky; there is no profiling endpoint.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub profile: bool,
    /// Ignored, accepted for compatibility with Slinky.
    #[arg(long, default_value = "localhost:6060")]
    pub profile_addr: String,
    /// Path to a kubeconfig file; defaults to the service account of the pod.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub workers: Workers,
    #[command(flatten)]
    pub log: Log,
}

#[derive(Debug, Args)]
#[allow(
    clippy::struct_field_names,
    reason = "the fields are flag names, most of them Slinky's"
)]
pub struct Workers {
    /// Maximum number of Accountings reconciled concurrently.
    #[arg(long, default_value_t = 1)]
    pub accounting_workers: usize,
    /// Maximum number of Controllers reconciled concurrently.
    #[arg(long, default_value_t = 1)]
    pub controller_workers: usize,
    /// Maximum number of LoginSets reconciled concurrently.
    #[arg(long, default_value_t = 1)]
    pub loginset_workers: usize,
    /// Maximum number of NodeSets reconciled concurrently.
    #[arg(long, default_value_t = 1)]
    pub nodeset_workers: usize,
    /// Maximum number of RestApis reconciled concurrently.
    #[arg(long, default_value_t = 1)]
    pub restapi_workers: usize,
    /// Maximum number of SlurmClusters reconciled concurrently.
    #[arg(long, default_value_t = 1)]
    pub slurmcluster_workers: usize,
    /// Maximum number of Tokens reconciled concurrently.
    #[arg(long, default_value_t = 1)]
    pub token_workers: usize,
    /// Maximum number of Slurm connections established concurrently.
    #[arg(long, default_value_t = 1)]
    pub slurmclient_workers: usize,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_field_names, reason = "the fields are Slinky's flag names")]
pub struct Log {
    /// Log level: `debug`, `info`, `warn`, `error`, a number above 0 for increasing detail, or a filter such as `info,kube=debug`.
    #[arg(long, env = "KEELSON_LOG", default_value = "info")]
    pub zap_log_level: String,
    /// Log format: `json` or `console`.
    #[arg(long, default_value = "json")]
    pub zap_encoder: String,
    /// Log human-readable text instead of JSON; accepted for compatibility with Slinky.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub zap_devel: bool,
    /// Ignored, accepted for compatibility with Slinky.
    #[arg(long)]
    pub zap_stacktrace_level: Option<String>,
    /// Ignored, accepted for compatibility with Slinky; timestamps are in RFC 3339 format.
    #[arg(long)]
    pub zap_time_encoding: Option<String>,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one field for each flag")]
pub struct Webhook {
    /// Listen address of the admission endpoints.
    #[arg(long, default_value = ":9443")]
    pub server_addr: String,
    /// Listen address of the health endpoints; 0 disables them.
    #[arg(long, default_value = ":8081")]
    pub health_addr: String,
    /// Listen address of the metrics endpoint; 0 disables it.
    #[arg(long, default_value = "0")]
    pub metrics_addr: String,
    /// Serve metrics over TLS and only to authorized clients.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub metrics_secure: bool,
    /// Ignored, accepted for compatibility with Slinky; HTTP/2 is always enabled.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub enable_http2: bool,
    /// Ignored, accepted for compatibility with Slinky; all replicas serve requests.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub leader_elect: bool,
    /// Ignored, accepted for compatibility with Slinky.
    #[arg(long, default_value = "")]
    pub leader_elect_namespace: String,
    /// Comma-separated list of namespaces in which objects are checked for conflicts; all namespaces if empty.
    #[arg(long, value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Reject configuration that no supported Slurm version can parse, instead of returning a warning.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub strict_configuration: bool,
    /// Serve the pods/binding webhook, which copies the topology annotation of a node to the worker pods scheduled on it.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub pods_binding: bool,
    /// Path to a kubeconfig file; defaults to the service account of the pod.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// How long to keep serving requests after a termination signal, until all clients have stopped using this endpoint.
    #[arg(long, default_value = "5s")]
    pub drain: String,
    #[command(flatten)]
    pub certificate: Certificate,
    #[command(flatten)]
    pub log: Log,
}

#[derive(Debug, Args)]
pub struct Certificate {
    /// Directory with an externally managed tls.crt and tls.key; ignored if --cert-secret is set.
    #[arg(long, default_value = "/tmp/k8s-webhook-server/serving-certs")]
    pub cert_dir: PathBuf,
    /// Issue the serving certificate and store it in this Secret.
    #[arg(long)]
    pub cert_secret: Option<String>,
    /// Namespace of the Secret and the Service; defaults to the namespace of the pod.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Name of the Service that the API server calls.
    #[arg(long, default_value = "slurm-operator-webhook")]
    pub service_name: String,
    /// Name of the validating and mutating webhook configurations to inject the CA bundle into.
    #[arg(long, default_value = "slurm-operator-webhook")]
    pub webhook_configuration: String,
    /// Lifetime of issued serving certificates; they are renewed after two thirds of it.
    #[arg(long, default_value = "2160h")]
    pub cert_lifetime: String,
    /// Lifetime of issued CA certificates; they are renewed after two thirds of it.
    #[arg(long, default_value = "43800h")]
    pub ca_lifetime: String,
    /// How long to wait for API servers to pick up a new CA bundle before the new CA is used.
    #[arg(long, default_value = "30s")]
    pub ca_settle: String,
}
