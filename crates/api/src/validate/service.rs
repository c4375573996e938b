//! Rules for the user's overrides of a Service.

use k8s_openapi::api::core::v1::ServiceSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::overrides::ServiceOverride;
use crate::validate::path::Path;
use crate::validate::report::Report;
use crate::validate::{pods, text};

/// Types of Services that have node ports.
const WITH_NODE_PORTS: [&str; 2] = ["NodePort", "LoadBalancer"];

pub(crate) fn check(service: Option<&ServiceOverride>, report: &mut Report) {
    let Some(service) = service else { return };
    let path = Path::spec().field("service");
    if let Some(written) = &service.metadata {
        pods::metadata(&path.field("metadata"), written, report);
    }
    for (field, port, instead) in [
        ("port", service.port, "the operator uses the daemon's port"),
        ("nodePort", service.node_port, "Kubernetes allocates one"),
    ] {
        match port {
            // As in Slinky, where an unset number is 0.
            Some(0) => report.warn(
                &path.field(field),
                format!("0 means unset: {instead}; use a port from 1 to 65535, or leave it out"),
            ),
            Some(port) => text::port(&path.field(field), port, report),
            None => {}
        }
    }
    if service.node_port.is_some_and(|port| port > 0) && !has_node_ports(service) {
        report.refuse(
            &path.field("nodePort"),
            "a Service of type ClusterIP cannot have a node port",
            "set service.spec.type to NodePort or LoadBalancer, or leave nodePort out",
        );
    }
    let path = path.field("spec");
    let Some(raw) = &service.spec else { return };
    if let Some(spec) = pods::read::<ServiceSpec>(&path, raw, "Service", report) {
        ports(&path.field("ports"), &spec, report);
    }
    if raw.is_external_name() {
        report.refuse(
            &path.field("type"),
            "a Service of type ExternalName would send daemons and the operator's tokens to an external host",
            "use ClusterIP, NodePort or LoadBalancer, and remove externalName",
        );
    }
    if raw.0.get("externalIPs").is_some_and(|ips| !ips.is_null()) {
        report.warn(
            &path.field("externalIPs"),
            "is not used: it would let the Service intercept other traffic (CVE-2020-8554)",
        );
    }
}

fn has_node_ports(service: &ServiceOverride) -> bool {
    let kind = service.spec.as_ref().and_then(|spec| spec.text("type"));
    kind.is_some_and(|kind| WITH_NODE_PORTS.contains(&kind))
}

fn ports(path: &Path, spec: &ServiceSpec, report: &mut Report) {
    for (index, port) in spec.ports.iter().flatten().enumerate() {
        let path = path.index(index);
        text::port(&path.field("port"), port.port, report);
        if let Some(node_port) = port.node_port.filter(|port| *port != 0) {
            text::port(&path.field("nodePort"), node_port, report);
        }
        if let Some(IntOrString::Int(target)) = port.target_port {
            text::port(&path.field("targetPort"), target, report);
        }
    }
}
