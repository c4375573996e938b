//! Services in front of the daemons.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use keelson_api::{
    merge::{MergeError, merge_service_spec},
    overrides::ServiceOverride,
};
use serde_json::{Value, json};

use super::metadata::Metadata;

/// Input for one Service.
#[derive(Debug)]
pub struct Service<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub metadata: Metadata,
    pub owners: Vec<Value>,
    pub selector: BTreeMap<&'static str, String>,
    /// Name of the port, in the Service and in the pods.
    pub port_name: &'a str,
    pub port: i32,
    pub user: Option<&'a ServiceOverride>,
}

/// Builds a Service with its own address, merged with the user's changes.
pub fn public(service: Service<'_>) -> Result<Value, MergeError> {
    let Service {
        namespace,
        name,
        metadata,
        owners,
        selector,
        port_name,
        port,
        user,
    } = service;
    let ours = ServiceSpec {
        ports: Some(vec![ServicePort {
            name: Some(port_name.to_owned()),
            protocol: Some("TCP".to_owned()),
            port,
            target_port: Some(IntOrString::String(port_name.to_owned())),
            node_port: user.and_then(|user| user.node_port).filter(|port| *port != 0),
            app_protocol: None,
        }]),
        selector: Some(
            selector
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        ),
        ..ServiceSpec::default()
    };
    let spec = merge_service_spec(&ours, user)?;
    let metadata = metadata.with_override(user.and_then(|user| user.metadata.as_ref()));
    Ok(json!({ "metadata": metadata.of_object(namespace, name, &owners), "spec": spec }))
}

/// Builds a Service that only gives names to pods, ready or not: daemons must find each other to become ready.
pub fn headless(service: Service<'_>) -> Value {
    let Service {
        namespace,
        name,
        metadata,
        owners,
        selector,
        port_name,
        port,
        user: _,
    } = service;
    json!({
        "metadata": metadata.of_object(namespace, name, &owners),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "ports": [{ "name": port_name, "protocol": "TCP", "port": port, "targetPort": port_name }],
            "selector": selector,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(user: Option<&ServiceOverride>) -> Service<'_> {
        Service {
            namespace: "ns",
            name: "slurm-controller",
            metadata: Metadata::default(),
            owners: vec![],
            selector: super::super::metadata::selector("slurmctld", "slurm"),
            port_name: "slurmctld",
            port: 6817,
            user,
        }
    }

    #[test]
    fn the_node_port_and_the_type_are_the_users() {
        let user = ServiceOverride {
            spec: Some(json!({ "type": "NodePort" }).as_object().unwrap().clone().into()),
            node_port: Some(30_017),
            ..ServiceOverride::default()
        };
        let built = public(service(Some(&user))).unwrap();
        assert_eq!(built.pointer("/spec/type"), Some(&json!("NodePort")));
        assert_eq!(built.pointer("/spec/ports/0/nodePort"), Some(&json!(30_017)));
    }

    #[test]
    fn a_service_that_leads_elsewhere_is_not_built() {
        let spec = json!({ "type": "ExternalName", "externalName": "example.org" });
        let user = ServiceOverride {
            spec: Some(spec.as_object().unwrap().clone().into()),
            ..ServiceOverride::default()
        };
        let error = public(service(Some(&user))).unwrap_err();
        assert!(error.to_string().contains("must not be ExternalName"), "{error}");
    }

    #[test]
    fn the_public_service_needs_no_label_that_the_operator_writes() {
        let built = public(service(None)).unwrap();
        assert_eq!(
            built.pointer("/spec/selector"),
            Some(&json!({ "app.kubernetes.io/name": "slurmctld", "app.kubernetes.io/instance": "slurm" }))
        );
    }
}
