//! The namespaces of the control plane: the bridge for the nodes, etcd and the Kubernetes programs.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use super::supervisor::{Service, Supervisor};
use super::{PROVISIONER, forward, ip, sysctl};
use crate::command;
use crate::layout::{API_ADDRESS, API_PORT, Layout, NODES_MAX, Node, Spec};
use crate::namespaces::CONTROL_PLANE;

pub fn run(layout: &Layout, spec: &Spec) -> Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("private mounts")?;
    mount("proc", "/proc", "proc", MountFlags::empty(), None).context("mounting /proc")?;
    rustix::system::sethostname(CONTROL_PLANE.as_bytes()).context("setting the host name")?;
    network()?;
    forward::serve_stdin(SocketAddr::from((API_ADDRESS, API_PORT)))?;

    let mut supervisor = Supervisor::default();
    supervisor.start(etcd(layout, spec))?;
    supervisor.start(apiserver(layout, spec)?)?;
    // These exit immediately if the API server has no bootstrap roles yet.
    wait_until_ready(layout, spec);
    supervisor.start(controller_manager(layout, spec))?;
    supervisor.start(scheduler(layout, spec))?;
    supervisor.start(
        Service::new(PROVISIONER, layout.program(), layout.log(PROVISIONER))
            .arg("testbed-init")
            .arg(layout.root())
            .arg(PROVISIONER),
    )?;
    if spec.kwok > 0 {
        supervisor.start(kwok(layout, spec))?;
    }
    supervisor.run()
}

/// The bridge has no connection outside of this namespace: there is no route to other destinations.
fn network() -> Result<()> {
    ip("link set lo up")?;
    ip("link add br0 type bridge")?;
    ip(&format!("addr add {API_ADDRESS}/24 dev br0"))?;
    ip("link set br0 up")?;
    sysctl("net.ipv4.ip_forward", "1")?;
    // Nodes intentionally send pod traffic through this bridge.
    sysctl("net.ipv4.conf.all.send_redirects", "0")?;
    sysctl("net.ipv4.conf.br0.send_redirects", "0")?;
    for node in (1..=NODES_MAX).map(Node) {
        ip(&format!("route add {} via {}", node.pods(), node.address()))?;
    }
    Ok(())
}

fn etcd(layout: &Layout, spec: &Spec) -> Service {
    Service::new("etcd", spec.binaries.component("etcd"), layout.log("etcd"))
        .args([
            "--name=etcd",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=etcd=http://127.0.0.1:2380",
            // The cluster does not survive the machine, so waiting for the disk would only slow it down.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ])
        .arg(format!("--data-dir={}", layout.etcd().display()))
}

/// All writes are logged with user, object and time, because tests count them. Reads are logged only for service accounts that do
/// not belong to Kubernetes, to check permissions.
const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
 "rules": [{"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
           {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
           {"level": "Metadata", "userGroups": ["system:serviceaccounts"], "verbs": ["get", "list", "watch"]},
           {"level": "None"}]}"#;

fn apiserver(layout: &Layout, spec: &Spec) -> Result<Service> {
    let policy = layout.root().join("audit-policy.json");
    fs::write(&policy, AUDIT_POLICY)?;
    let pki = layout.pki();
    let file = |flag: &str, name: &str| format!("--{flag}={}", pki.join(name).display());
    Ok(Service::new(
        "kube-apiserver",
        spec.binaries.component("kube-apiserver"),
        layout.log("kube-apiserver"),
    )
    .args([
        format!("--advertise-address={API_ADDRESS}"),
        format!("--secure-port={API_PORT}"),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", layout.log("audit").display()),
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        file("client-ca-file", "ca.crt"),
        file("service-account-key-file", "sa.pub"),
        file("service-account-signing-key-file", "sa.key"),
        file("kubelet-client-certificate", "apiserver-kubelet.crt"),
        file("kubelet-client-key", "apiserver-kubelet.key"),
        file("kubelet-certificate-authority", "ca.crt"),
        file("requestheader-client-ca-file", "front-proxy-ca.crt"),
        file("proxy-client-cert-file", "front-proxy.crt"),
        file("proxy-client-key-file", "front-proxy.key"),
    ])
    .args([
        "--etcd-servers=http://127.0.0.1:2379",
        "--bind-address=0.0.0.0",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--kubelet-preferred-address-types=InternalIP",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        // The control plane has routes to pods but no kube-proxy, so webhooks are called at pod addresses.
        "--enable-aggregator-routing=true",
        // Tests and benchmarks continue reading from an offset, which rotation would invalidate.
        "--audit-log-maxsize=500",
        "--audit-log-maxbackup=1",
    ]))
}

fn wait_until_ready(layout: &Layout, spec: &Spec) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_mins(2) {
        let mut ready = Command::new(spec.binaries.component("kubectl"));
        ready
            .arg("--kubeconfig")
            .arg(layout.component_kubeconfig("admin"))
            .args(["get", "--raw=/readyz"]);
        if command::succeeds(&mut ready) {
            return;
        }
        std::thread::sleep(Duration::from_millis(150));
    }
    eprintln!("kube-apiserver is not ready after two minutes");
}

fn with_kubeconfigs(service: Service, kubeconfig: &Path) -> Service {
    let kubeconfig = kubeconfig.display();
    service.args([
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        // With the defaults of 20 and 50 requests per second, scale tests would measure these limits.
        "--kube-api-qps=300".to_owned(),
        "--kube-api-burst=600".to_owned(),
    ])
}

fn controller_manager(layout: &Layout, spec: &Spec) -> Service {
    let name = "kube-controller-manager";
    let file = |flag: &str, name: &str| format!("--{flag}={}", layout.pki().join(name).display());
    with_kubeconfigs(
        Service::new(name, spec.binaries.component(name), layout.log(name)),
        &layout.component_kubeconfig(name),
    )
    .args([
        file("service-account-private-key-file", "sa.key"),
        file("root-ca-file", "ca.crt"),
        file("cluster-signing-cert-file", "ca.crt"),
        file("cluster-signing-key-file", "ca.key"),
    ])
    .args([
        "--use-service-account-credentials=true",
        "--cluster-cidr=10.244.0.0/16",
        "--allocate-node-cidrs=false",
        "--service-cluster-ip-range=10.96.0.0/16",
    ])
}

fn scheduler(layout: &Layout, spec: &Spec) -> Service {
    let name = "kube-scheduler";
    with_kubeconfigs(
        Service::new(name, spec.binaries.component(name), layout.log(name)),
        &layout.component_kubeconfig(name),
    )
}

fn kwok(layout: &Layout, spec: &Spec) -> Service {
    Service::new("kwok", &spec.binaries.kwok, layout.log("kwok")).args([
        format!("--config={}", spec.binaries.kwok_stages.display()),
        format!("--kubeconfig={}", layout.component_kubeconfig("admin").display()),
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake".to_owned(),
        "--node-lease-duration-seconds=40".to_owned(),
        "--cidr=10.245.0.0/16".to_owned(),
        format!("--node-ip={API_ADDRESS}"),
    ])
}
