//! Flags, named as Slinky's so that its Deployment can run our image.

use std::path::PathBuf;

use clap::{ArgAction, Args};

/// A switch as Go writes it: `--x`, `--x=true` or `--x=false`.
macro_rules! go_switch {
    () => {
        ArgAction::Set
    };
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one field for each flag")]
pub struct Operator {
    /// Address of the health endpoints; 0 switches them off.
    #[arg(long, default_value = ":8081")]
    pub health_addr: String,
    /// Address of the metrics; 0 switches them off.
    #[arg(long, default_value = ":8080")]
    pub metrics_addr: String,
    /// Serve metrics over TLS, only to those whom the cluster allows it.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub metrics_secure: bool,
    /// Accepted for compatibility.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub enable_http2: bool,
    /// Take part in the election of a leader, so that several replicas may run.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub leader_elect: bool,
    /// Namespace of the Lease; this pod's own when empty.
    #[arg(long, default_value = "")]
    pub leader_elect_namespace: String,
    /// Namespaces to look at, separated by commas; all when empty.
    #[arg(long, value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Node condition types whose text becomes the reason of a drain, separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub propagated_node_conditions: Vec<String>,
    /// The longest list that is read from slurmrestd, such as 256Mi: about 32,000 jobs or 100,000 nodes.
    #[arg(long, default_value = "256Mi")]
    pub slurm_max_answer: String,
    /// Accepted for compatibility; there is no profile endpoint.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub profile: bool,
    /// Accepted for compatibility.
    #[arg(long, default_value = "localhost:6060")]
    pub profile_addr: String,
    /// Path of a kubeconfig; the pod's service account when absent.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub workers: Workers,
    #[command(flatten)]
    pub log: Log,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_field_names, reason = "the fields are Slinky's flag names")]
pub struct Workers {
    /// Accountings worked on at the same time.
    #[arg(long, default_value_t = 1)]
    pub accounting_workers: usize,
    /// Controllers worked on at the same time.
    #[arg(long, default_value_t = 1)]
    pub controller_workers: usize,
    /// LoginSets worked on at the same time.
    #[arg(long, default_value_t = 1)]
    pub loginset_workers: usize,
    /// NodeSets worked on at the same time.
    #[arg(long, default_value_t = 1)]
    pub nodeset_workers: usize,
    /// RestApis worked on at the same time.
    #[arg(long, default_value_t = 1)]
    pub restapi_workers: usize,
    /// Tokens worked on at the same time.
    #[arg(long, default_value_t = 1)]
    pub token_workers: usize,
    /// Slurm connections set up at the same time.
    #[arg(long, default_value_t = 1)]
    pub slurmclient_workers: usize,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_field_names, reason = "the fields are Slinky's flag names")]
pub struct Log {
    /// `debug`, `info`, `warn`, `error`, or a number above 0 for more than debug; or a filter such as `info,kube=debug`.
    #[arg(long, env = "KEELSON_LOG", default_value = "info")]
    pub zap_log_level: String,
    /// `json` or `console`.
    #[arg(long, default_value = "json")]
    pub zap_encoder: String,
    /// Accepted for compatibility: text for people instead of JSON.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub zap_devel: bool,
    /// Accepted for compatibility.
    #[arg(long)]
    pub zap_stacktrace_level: Option<String>,
    /// Accepted for compatibility; times are RFC 3339.
    #[arg(long)]
    pub zap_time_encoding: Option<String>,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one field for each flag")]
pub struct Webhook {
    /// Address of the admission endpoints.
    #[arg(long, default_value = ":9443")]
    pub server_addr: String,
    /// Address of the health endpoints; 0 switches them off.
    #[arg(long, default_value = ":8081")]
    pub health_addr: String,
    /// Address of the metrics; 0 switches them off.
    #[arg(long, default_value = "0")]
    pub metrics_addr: String,
    /// Serve metrics over TLS, only to those whom the cluster allows it.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub metrics_secure: bool,
    /// Accepted for compatibility; HTTP/2 is spoken with whoever offers it.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub enable_http2: bool,
    /// Accepted for compatibility; replicas need no leader.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub leader_elect: bool,
    /// Accepted for compatibility.
    #[arg(long, default_value = "")]
    pub leader_elect_namespace: String,
    /// Namespaces whose objects are compared with each other, separated by commas; all when empty.
    #[arg(long, value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Refuse configuration that no Slurm known to this version can read, instead of warning of it.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub strict_configuration: bool,
    /// Serve the hook on pods/binding, which copies the topology of a node to a worker that is scheduled there.
    #[arg(long, action = go_switch!(), default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub pods_binding: bool,
    /// Path of a kubeconfig; the pod's service account when absent.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// How long requests are still taken after the request to stop, such as 5s: until everyone has heard of it.
    #[arg(long, default_value = "5s")]
    pub drain: String,
    #[command(flatten)]
    pub certificate: Certificate,
    #[command(flatten)]
    pub log: Log,
}

#[derive(Debug, Args)]
pub struct Certificate {
    /// Directory with tls.crt and tls.key that somebody else keeps; not used with --cert-secret.
    #[arg(long, default_value = "/tmp/k8s-webhook-server/serving-certs")]
    pub cert_dir: PathBuf,
    /// Make the certificate and keep it in this Secret.
    #[arg(long)]
    pub cert_secret: Option<String>,
    /// Namespace of the Secret and of the Service; this pod's own when absent.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Service that the API server calls.
    #[arg(long, default_value = "slurm-operator-webhook")]
    pub service_name: String,
    /// Webhook configurations, validating and mutating, that are told whom to trust.
    #[arg(long, default_value = "slurm-operator-webhook")]
    pub webhook_configuration: String,
    /// How long a certificate that we make is good; it is replaced after two thirds of that.
    #[arg(long, default_value = "2160h")]
    pub cert_lifetime: String,
    /// How long an authority that we make is good; it is replaced after two thirds of that.
    #[arg(long, default_value = "43800h")]
    pub ca_lifetime: String,
    /// How long API servers get to learn of a new authority before it is used.
    #[arg(long, default_value = "30s")]
    pub ca_settle: String,
}
