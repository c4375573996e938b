//! Names of the child objects of a custom resource, and addresses inside the cluster. They equal Slinky's, so that the
//! operator adopts existing objects instead of recreating them.

use kube_core::ResourceExt as _;

use crate::well_known::{file, port};
use crate::{Accounting, Controller, LoginSet, NodeSet, RestApi, Token};

/// `<name>.<namespace>`: resolves from every namespace through the pods' DNS search path, for any cluster domain.
fn short_fqdn(name: &str, namespace: &str) -> String {
    format!("{name}.{namespace}")
}

fn namespace_of(resource: &impl kube_core::Resource) -> String {
    resource.meta().namespace.clone().unwrap_or_default()
}

/// A host and a port, in the format of `--conf-server` and the configuration files.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// Host name.
    pub host: String,
    /// Port. As wide as the API's field; validation keeps it in range.
    pub port: i32,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Controller {
    /// Name of the cluster in Slurm.
    pub fn cluster_name(&self) -> String {
        match self.spec.cluster_name.as_deref() {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => format!("{}_{}", namespace_of(self), self.name_any()),
        }
    }

    /// Name of the StatefulSet, the public Service and the ServiceMonitor.
    pub fn controller_name(&self) -> String {
        format!("{}-controller", self.name_any())
    }

    /// Headless Service that gives the pods their names.
    pub fn internal_service_name(&self) -> String {
        format!("{}-internal", self.controller_name())
    }

    /// ConfigMap with slurm.conf.
    pub fn config_name(&self) -> String {
        format!("{}-config", self.name_any())
    }

    /// ConfigMap with the files that slurmctld last accepted.
    pub fn config_in_use_name(&self) -> String {
        format!("{}-config-in-use", self.name_any())
    }

    /// Host of the public Service.
    pub fn service_fqdn(&self) -> String {
        short_fqdn(&self.controller_name(), &namespace_of(self))
    }

    /// Name of one slurmctld pod.
    pub fn pod_name(&self, ordinal: i32) -> String {
        format!("{}-{ordinal}", self.controller_name())
    }

    /// Host of one slurmctld pod.
    pub fn pod_fqdn(&self, ordinal: i32) -> String {
        format!(
            "{}.{}",
            self.pod_name(ordinal),
            short_fqdn(&self.internal_service_name(), &namespace_of(self))
        )
    }

    /// Address of slurmctld for clients: the external address, or the public Service on its configured port.
    pub fn address(&self) -> Address {
        match &self.spec.external_config {
            Some(external) if self.spec.external => Address {
                host: external.host.clone(),
                port: external.port,
            },
            _ => Address {
                host: self.service_fqdn(),
                port: service_port(self.spec.service.as_ref(), port::SLURMCTLD),
            },
        }
    }

    /// Headless Service of all workers of this cluster.
    pub fn workers_service_name(&self) -> String {
        workers_service_name(&self.name_any())
    }

    /// Directory of slurmctld's state.
    pub fn state_save_dir(&self) -> String {
        format!(
            "{}/{}",
            crate::well_known::dir::SLURMCTLD_SPOOL,
            self.cluster_name()
        )
    }
}

/// Headless Service of all workers that register with the Controller of this name.
pub fn workers_service_name(controller: &str) -> String {
    format!("slurm-workers-{controller}")
}

/// Disruption budget of all workers that register with the Controller of this name.
pub fn workers_pdb_name(controller: &str) -> String {
    format!("slurm-workers-pdb-{controller}")
}

/// ConfigMap with slurm.conf of the Controller of this name.
pub fn config_name(controller: &str) -> String {
    format!("{controller}-config")
}

/// Port of a Service: the configured one, or the daemon's own.
pub fn service_port(service: Option<&crate::overrides::ServiceOverride>, own: u16) -> i32 {
    service
        .and_then(|s| s.port)
        .filter(|port| *port != 0)
        .unwrap_or(i32::from(own))
}

impl Accounting {
    /// StatefulSet, Service and config Secret.
    pub fn accounting_name(&self) -> String {
        format!("{}-accounting", self.name_any())
    }

    /// slurmdbd's pod.
    pub fn pod_name(&self) -> String {
        format!("{}-0", self.accounting_name())
    }

    /// Host of the Service.
    pub fn service_fqdn(&self) -> String {
        short_fqdn(&self.accounting_name(), &namespace_of(self))
    }

    /// Address of slurmdbd for slurmctld: the external address, or the Service on its configured port.
    pub fn address(&self) -> Address {
        match &self.spec.external_config {
            Some(external) if self.spec.external => Address {
                host: external.host.clone(),
                port: external.port,
            },
            _ => Address {
                host: self.accounting_name(),
                port: service_port(self.spec.service.as_ref(), port::SLURMDBD),
            },
        }
    }
}

impl RestApi {
    /// Deployment and Service.
    pub fn restapi_name(&self) -> String {
        format!("{}-restapi", self.name_any())
    }

    /// Host of the Service.
    pub fn service_fqdn(&self) -> String {
        short_fqdn(&self.restapi_name(), &namespace_of(self))
    }

    /// Address of slurmrestd.
    pub fn address(&self) -> Address {
        Address {
            host: self.service_fqdn(),
            port: service_port(self.spec.service.as_ref(), port::SLURMRESTD),
        }
    }

    /// URL of slurmrestd.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// URL of slurmrestd with the fully qualified name of its Service. The trailing dot prevents resolvers from trying their
    /// search domains, one of which may belong to someone else.
    pub fn absolute_url(&self, cluster_domain: &str) -> String {
        let Address { host, port } = self.address();
        format!("http://{host}.svc.{cluster_domain}.:{port}")
    }
}

impl LoginSet {
    /// Deployment and Service: the object's own name.
    pub fn login_name(&self) -> String {
        self.name_any()
    }

    /// ConfigMap with `sshd_config` and `authorized_keys`.
    pub fn ssh_config_name(&self) -> String {
        format!("{}-ssh-config", self.name_any())
    }

    /// Secret with the SSH host keys.
    pub fn ssh_host_keys_name(&self) -> String {
        format!("{}-ssh-host-keys", self.name_any())
    }

    /// Host of the Service.
    pub fn service_fqdn(&self) -> String {
        short_fqdn(&self.login_name(), &namespace_of(self))
    }

    /// Address for SSH.
    pub fn address(&self) -> Address {
        Address {
            host: self.service_fqdn(),
            port: service_port(self.spec.service.as_ref(), port::SSH),
        }
    }
}

impl NodeSet {
    /// ConfigMap with `sshd_config`.
    pub fn ssh_config_name(&self) -> String {
        format!("{}-ssh-config", self.name_any())
    }

    /// Headless Service of all workers of the cluster.
    pub fn workers_service_name(&self) -> String {
        workers_service_name(&self.spec.controller_ref.name)
    }

    /// Disruption budget of all workers of the cluster.
    pub fn workers_pdb_name(&self) -> String {
        workers_pdb_name(&self.spec.controller_ref.name)
    }

    /// Ordinal, padded with zeros as in names.
    pub fn padded_ordinal(&self, ordinal: i32) -> String {
        let width = usize::try_from(self.spec.ordinal_padding).unwrap_or(0);
        format!("{ordinal:0width$}")
    }

    /// Name of one worker pod (`StatefulSet` mode).
    pub fn pod_name(&self, ordinal: i32) -> String {
        format!("{}-{}", self.name_any(), self.padded_ordinal(ordinal))
    }

    /// `generateName` of worker pods (`DaemonSet` mode).
    pub fn pod_generate_name(&self) -> String {
        format!("{}-", self.name_any())
    }

    /// Host name prefix set by the user, if any.
    pub fn hostname_prefix(&self) -> Option<&str> {
        let spec = self.spec.template.as_ref()?.spec.as_ref()?;
        spec.text("hostname").filter(|hostname| !hostname.is_empty())
    }

    /// Host name of one worker, which is also its Slurm node name (`StatefulSet` mode).
    pub fn pod_hostname(&self, ordinal: i32) -> String {
        format!("{}{}", self.node_prefix(), self.padded_ordinal(ordinal))
    }

    /// What the Slurm names of all workers begin with (`StatefulSet` mode).
    pub fn node_prefix(&self) -> String {
        self.hostname_prefix()
            .map_or_else(|| self.pod_generate_name(), str::to_owned)
    }

    /// Name of the Slurm feature, nodeset and partition: the host name prefix without its dashes, or the object's name.
    pub fn slurm_name(&self) -> String {
        self.hostname_prefix()
            .and_then(|prefix| prefix.split_whitespace().next())
            .map(|prefix| prefix.trim_matches('-').to_owned())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| self.name_any())
    }

    /// Claim of one worker: `<template>-<nodeset>-<padded ordinal or host name>`.
    pub fn claim_name(&self, template: &str, identity: &str) -> String {
        format!("{template}-{}-{identity}", self.name_any())
    }

    /// Reservation of a scheduled update.
    pub fn reservation_name(&self) -> String {
        format!(
            "{}{}",
            crate::well_known::slurm::RESERVATION_PREFIX,
            self.name_any()
        )
    }
}

impl Token {
    /// Slurm user of the token. Falls back to `nobody`, as in Slinky.
    pub fn username(&self) -> &str {
        if self.spec.username.is_empty() {
            "nobody"
        } else {
            &self.spec.username
        }
    }

    /// Secret to write the token to.
    pub fn secret_name(&self) -> String {
        match &self.spec.secret_ref {
            Some(secret) => secret.name.clone(),
            None => format!("{}-jwt-{}", self.name_any(), self.spec.username),
        }
    }

    /// Key in the Secret.
    pub fn secret_key(&self) -> &str {
        self.spec
            .secret_ref
            .as_ref()
            .map_or(file::TOKEN, |secret| &secret.key)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(kind: &str, spec: &Value) -> K {
        let object = json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "spec": spec,
            "metadata": { "name": "slurm", "namespace": "hpc" } });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_controllers_children_have_the_peers_names() {
        let controller: Controller = object("Controller", &json!({}));
        assert_eq!(controller.cluster_name(), "hpc_slurm");
        assert_eq!(controller.controller_name(), "slurm-controller");
        assert_eq!(controller.internal_service_name(), "slurm-controller-internal");
        assert_eq!(controller.config_name(), "slurm-config");
        assert_eq!(controller.config_in_use_name(), "slurm-config-in-use");
        assert_eq!(controller.pod_name(1), "slurm-controller-1");
        assert_eq!(
            controller.pod_fqdn(0),
            "slurm-controller-0.slurm-controller-internal.hpc"
        );
        assert_eq!(controller.address().to_string(), "slurm-controller.hpc:6817");
        assert_eq!(controller.workers_service_name(), "slurm-workers-slurm");
        assert_eq!(controller.state_save_dir(), "/var/spool/slurmctld/hpc_slurm");
    }

    #[test]
    fn what_the_user_wrote_about_addresses_is_used() {
        let named: Controller = object(
            "Controller",
            &json!({ "clusterName": "prod", "service": { "port": 7000 } }),
        );
        assert_eq!(named.cluster_name(), "prod");
        assert_eq!(named.address().to_string(), "slurm-controller.hpc:7000");
        let external = json!({ "external": true, "externalConfig": { "host": "elsewhere", "port": 1 } });
        assert_eq!(
            object::<Controller>("Controller", &external)
                .address()
                .to_string(),
            "elsewhere:1"
        );
        assert_eq!(
            object::<Accounting>("Accounting", &external)
                .address()
                .to_string(),
            "elsewhere:1"
        );
        let unused = json!({ "external": false, "externalConfig": { "host": "elsewhere", "port": 1 } });
        assert_eq!(
            object::<Accounting>("Accounting", &unused).address().to_string(),
            "slurm-accounting:6819"
        );
    }

    #[test]
    fn children_of_the_other_kinds_have_the_peers_names() {
        let accounting: Accounting = object("Accounting", &json!({}));
        assert_eq!(accounting.pod_name(), "slurm-accounting-0");
        assert_eq!(accounting.service_fqdn(), "slurm-accounting.hpc");
        let restapi: RestApi = object("RestApi", &json!({ "controllerRef": { "name": "c" } }));
        assert_eq!(restapi.url(), "http://slurm-restapi.hpc:6820");
        assert_eq!(
            restapi.absolute_url("cluster.local"),
            "http://slurm-restapi.hpc.svc.cluster.local.:6820"
        );
        let login: LoginSet = object("LoginSet", &json!({ "controllerRef": { "name": "c" } }));
        assert_eq!(login.ssh_config_name(), "slurm-ssh-config");
        assert_eq!(login.ssh_host_keys_name(), "slurm-ssh-host-keys");
        assert_eq!(login.address().to_string(), "slurm.hpc:22");
    }

    #[rstest]
    #[case::by_name(json!({}), "slurm-7", "slurm-7", "slurm")]
    #[case::padded(json!({ "ordinalPadding": 3 }), "slurm-007", "slurm-007", "slurm")]
    #[case::by_hostname(json!({ "template": { "spec": { "hostname": "gpu-" } } }), "slurm-7", "gpu-7", "gpu")]
    #[case::empty_hostname(json!({ "template": { "spec": { "hostname": "" } } }), "slurm-7", "slurm-7", "slurm")]
    fn workers_have_the_peers_names(
        #[case] mut spec: Value,
        #[case] pod: &str,
        #[case] hostname: &str,
        #[case] slurm: &str,
    ) {
        spec["controllerRef"] = json!({ "name": "c" });
        let nodeset: NodeSet = object("NodeSet", &spec);
        assert_eq!(
            (nodeset.pod_name(7).as_str(), nodeset.pod_hostname(7).as_str()),
            (pod, hostname)
        );
        assert_eq!(nodeset.slurm_name(), slurm);
        assert_eq!(nodeset.workers_service_name(), "slurm-workers-c");
        assert_eq!(nodeset.workers_pdb_name(), "slurm-workers-pdb-c");
        assert_eq!(nodeset.claim_name("data", "007"), "data-slurm-007");
        assert_eq!(nodeset.reservation_name(), "SlurmOperatorMaint-slurm");
    }

    #[test]
    fn a_tokens_secret_is_named_after_token_and_user_unless_told() {
        let token: Token = object("Token", &json!({ "username": "anna" }));
        assert_eq!(
            (token.secret_name().as_str(), token.secret_key()),
            ("slurm-jwt-anna", "SLURM_JWT")
        );
        let told: Token = object(
            "Token",
            &json!({ "username": "anna", "secretRef": { "name": "s", "key": "k" } }),
        );
        assert_eq!((told.secret_name().as_str(), told.secret_key()), ("s", "k"));
    }
}
