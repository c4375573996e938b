//! The namespaces of a worker node: its own root file system with containerd, kubelet and kube-proxy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    unmount,
};

use super::supervisor::{Service, Supervisor};
use super::{ip, sysctl};
use crate::cgroups;
use crate::command;
use crate::host::{Cgroups, Host};
use crate::layout::{API_ADDRESS, DNS_SERVICE, Layout, Node, Spec, VOLUMES};

/// The paths of the Kubernetes programs, the certificates and the logs on the node.
const PROGRAMS: &str = "/opt/keelson/bin";
const PKI: &str = "/opt/keelson/pki";
const LOGS: &str = "/var/log/keelson";

pub fn run(layout: &Layout, spec: &Spec, node: Node) -> Result<()> {
    let name = node.name();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("private mounts")?;
    rustix::system::sethostname(name.as_bytes()).context("setting the host name")?;
    let root = mount_root(layout, spec, &name)?;
    write_files(&root, layout, spec.host, node)?;
    network(node)?;
    enter(&root)?;

    let log = |component: &str| Path::new(LOGS).join(format!("{name}-{component}.log"));
    let mut supervisor = Supervisor::default();
    supervisor.start(
        Service::new("containerd", "containerd", log("containerd"))
            .args(["--config", "/etc/containerd/config.toml"]),
    )?;
    wait_for_containerd()?;
    supervisor.start(
        Service::new("kubelet", format!("{PROGRAMS}/kubelet"), log("kubelet")).args([
            "--config=/etc/kubernetes/kubelet.yaml".to_owned(),
            format!("--kubeconfig={PKI}/{name}.kubeconfig"),
            format!("--hostname-override={name}"),
            format!("--node-ip={}", node.address()),
            "--root-dir=/var/lib/kubelet".to_owned(),
        ]),
    )?;
    supervisor.start(
        Service::new("kube-proxy", format!("{PROGRAMS}/kube-proxy"), log("kube-proxy"))
            .arg("--config=/etc/kubernetes/kube-proxy.yaml"),
    )?;
    supervisor.run()
}

/// The machine-wide kernel settings that the kubelet requires. It writes them unless they already have these values. The node gets
/// files with these values, so that the settings of this machine do not change.
const KERNEL_TUNABLES: &[(&str, &str)] = &[
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

fn mount_root(layout: &Layout, spec: &Spec, name: &str) -> Result<PathBuf> {
    let directory = layout.node(name);
    let root = directory.join("root");
    for part in ["root", "upper", "work", "containerd", "kubelet"] {
        fs::create_dir_all(directory.join(part))?;
    }
    fs::create_dir_all(layout.volumes())?;
    let options = std::ffi::CString::new(format!(
        "lowerdir={},upperdir={},workdir={}",
        spec.node_root.display(),
        directory.join("upper").display(),
        directory.join("work").display()
    ))?;
    mount(
        "overlay",
        &root,
        "overlay",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )
    .context("mounting the root")?;
    let fresh = |fs_type: &str, place: &str| {
        let place = root.join(place);
        fs::create_dir_all(&place)?;
        mount(fs_type, &place, fs_type, MountFlags::empty(), None)
            .with_context(|| format!("mounting {fs_type} at {}", place.display()))
    };
    fresh("proc", "proc")?;
    fresh("sysfs", "sys")?;
    fresh("tmpfs", "run")?;
    fresh("tmpfs", "tmp")?;
    mount_bind_recursive("/sys/fs/cgroup", root.join("sys/fs/cgroup")).context("binding cgroups")?;
    mount_bind_recursive("/dev", root.join("dev")).context("binding /dev")?;
    for (from, to) in [
        // overlayfs cannot be the upper layer of another overlayfs, so these must be plain directories.
        (directory.join("containerd"), "/var/lib/containerd"),
        (directory.join("kubelet"), "/var/lib/kubelet"),
        (layout.volumes(), VOLUMES),
        (layout.pki(), PKI),
        (layout.logs(), LOGS),
        (spec.binaries.kubernetes.clone(), PROGRAMS),
    ] {
        let place = inside(&root, to);
        fs::create_dir_all(&place)?;
        mount_bind(&from, &place).with_context(|| format!("binding {}", from.display()))?;
    }
    let tunables = root.join("run/tunables");
    for (name, value) in KERNEL_TUNABLES {
        let shown = tunables.join(name);
        fs::create_dir_all(shown.parent().unwrap_or(&tunables))?;
        fs::write(&shown, format!("{value}\n"))?;
        mount_bind(&shown, root.join("proc/sys").join(name)).with_context(|| format!("showing {name}"))?;
    }
    Ok(root)
}

fn write_files(root: &Path, layout: &Layout, host: Host, node: Node) -> Result<()> {
    let name = node.name();
    let write = |path: &str, content: String| {
        let path = inside(root, path);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))
    };
    write("/etc/resolv.conf", String::new())?;
    write("/etc/hostname", format!("{name}\n"))?;
    write(
        "/etc/hosts",
        format!("127.0.0.1 localhost\n{} {name}\n", node.address()),
    )?;
    write(
        "/etc/machine-id",
        format!("{:032x}\n", 0x6b65_656c_736f_6e00_u128 + u128::from(node.0)),
    )?;
    write("/etc/containerd/config.toml", containerd_config(host))?;
    write("/etc/cni/net.d/10-keelson.conflist", cni_config(node))?;
    write(
        "/etc/kubernetes/kubelet.yaml",
        kubelet_config(layout, host, &name),
    )?;
    write("/etc/kubernetes/kube-proxy.yaml", kube_proxy_config(&name))
}

fn containerd_config(host: Host) -> String {
    // Without CAP_SYS_RESOURCE, no OOM score can be lowered, and no sandbox would start.
    let restrict = !host.may_raise_limits;
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = {restrict}
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "/etc/cni/net.d"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
"#,
        pause = crate::image::PAUSE
    )
}

/// `ptp` routes all traffic, so it requires no bridge filtering. Leases are in /run, because pods end with the node.
fn cni_config(node: Node) -> String {
    serde_json::json!({
        "cniVersion": "1.0.0",
        "name": "keelson",
        "plugins": [
            {"type": "ptp", "mtu": 1500, "ipMasq": false, "ipam": {
                "type": "host-local", "dataDir": "/run/cni-ipam",
                "ranges": [[{"subnet": node.pods()}]], "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables"}
        ]
    })
    .to_string()
}

fn kubelet_config(layout: &Layout, host: Host, name: &str) -> String {
    let mut config = serde_json::json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups::path(layout, name),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": format!("{PKI}/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": format!("{PKI}/{name}.crt"),
        "tlsPrivateKeyFile": format!("{PKI}/{name}.key"),
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "failSwapOn": false,
        // The interval at which the kubelet refreshes changed pod files without a notification. It is shorter than the
        // default, because tests wait for it.
        "syncFrequency": "20s",
        "maxPods": 200,
        // The disk belongs to the machine and not to the node, so its usage says nothing about the cluster.
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
        "imageMinimumGCAge": "24h",
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    });
    if let Some(config) = config.as_object_mut() {
        if host.cgroups == Cgroups::V1 {
            config.insert("failCgroupV1".into(), false.into());
        }
        if !host.may_raise_limits {
            config.insert("oomScoreAdj".into(), 0.into());
        }
    }
    config.to_string()
}

fn kube_proxy_config(name: &str) -> String {
    serde_json::json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": "10.244.0.0/16",
        "hostnameOverride": name,
        "clientConnection": {"kubeconfig": format!("{PKI}/kube-proxy.kubeconfig")},
        // Connection tracking limits are read-only in a network namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "oomScoreAdj": 0,
    })
    .to_string()
}

/// `eth0` is the end of a veth pair that the starting process moves into the namespace.
fn network(node: Node) -> Result<()> {
    let begun = Instant::now();
    while ip("link show eth0").is_err() {
        if begun.elapsed() > Duration::from_secs(30) {
            bail!("the network interface did not appear within 30 s");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    ip("link set lo up")?;
    ip(&format!("addr add {}/24 dev eth0", node.address()))?;
    ip("link set eth0 up")?;
    ip(&format!("route add default via {API_ADDRESS}"))?;
    sysctl("net.ipv4.ip_forward", "1")
}

fn enter(root: &Path) -> Result<()> {
    std::env::set_current_dir(root)?;
    fs::create_dir_all(".old")?;
    rustix::process::pivot_root(".", ".old").context("entering the node's root")?;
    std::env::set_current_dir("/")?;
    unmount("/.old", UnmountFlags::DETACH).context("unmounting the root of the machine")?;
    // Volumes mounted by the kubelet must be visible in containers.
    mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC).context("sharing mounts")
}

fn wait_for_containerd() -> Result<()> {
    let begun = Instant::now();
    while !command::succeeds(Command::new("ctr").arg("version")) {
        if begun.elapsed() > Duration::from_mins(1) {
            bail!("containerd did not respond within 60 s");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
