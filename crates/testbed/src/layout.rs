//! The files and the specification of a cluster.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::binaries::Binaries;
use crate::cache::user_directory;
use crate::host::Host;

/// The address of the API server in the cluster network.
pub const API_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The port of the API server in the cluster network.
pub const API_PORT: u16 = 6443;
/// The first address of the service network, which belongs to the Service of the API server.
pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The address of the cluster DNS Service.
pub const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// The directory of volumes on every node.
pub const VOLUMES: &str = "/var/lib/keelson/volumes";

/// Nodes get addresses starting at 198.18.0.11.
pub const NODES_MAX: u8 = 40;

/// The files of one cluster.
#[derive(Debug, Clone)]
pub struct Layout {
    name: String,
    root: PathBuf,
}

impl Layout {
    /// The layout of the cluster with this name. The cluster does not have to exist.
    pub fn of(name: &str) -> Result<Self> {
        let valid = !name.is_empty()
            && name.len() <= 20
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        ensure!(
            valid,
            "{name:?} is not a valid cluster name: use up to 20 lowercase letters, digits and dashes, starting with a letter"
        );
        Ok(Self {
            name: name.to_owned(),
            root: Self::state()?.join(name),
        })
    }

    /// `KEELSON_STATE`, or `keelson` in the user's state directory.
    pub fn state() -> Result<PathBuf> {
        match std::env::var_os("KEELSON_STATE") {
            Some(path) => Ok(PathBuf::from(path)),
            None => Ok(user_directory("XDG_STATE_HOME", ".local/state")?.join("keelson")),
        }
    }

    /// The layout in a known directory, for processes of the cluster.
    pub fn at(root: &Path) -> Result<Self> {
        let name = root
            .file_name()
            .context("the directory of a cluster has no name")?
            .to_string_lossy()
            .into_owned();
        Ok(Self {
            name,
            root: root.to_owned(),
        })
    }

    /// The name of the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of the cluster.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of log files, one per component.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The log file of a component.
    pub fn log(&self, component: &str) -> PathBuf {
        self.logs().join(format!("{component}.log"))
    }

    /// Keys and certificates.
    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// The kubeconfig for programs on this machine.
    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// The kubeconfig for a component in the cluster network.
    pub fn component_kubeconfig(&self, component: &str) -> PathBuf {
        self.pki().join(format!("{component}.kubeconfig"))
    }

    /// The directories of a node.
    pub fn node(&self, node: &str) -> PathBuf {
        self.root.join("nodes").join(node)
    }

    /// Persistent volumes, shared by all nodes.
    pub fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    /// The data of etcd.
    pub fn etcd(&self) -> PathBuf {
        self.root.join("etcd")
    }

    /// The copy of this program that runs as the first process in each namespace. A rebuild does not change it.
    pub fn program(&self) -> PathBuf {
        self.root.join("testbed-init")
    }

    fn spec_file(&self) -> PathBuf {
        self.root.join("cluster.json")
    }

    /// The specification of the cluster, if it exists.
    pub fn spec(&self) -> Result<Option<Spec>> {
        let file = self.spec_file();
        match fs::read(&file) {
            Ok(content) => Ok(Some(serde_json::from_slice(&content).with_context(|| {
                format!(
                    "failed to parse {}; remove the cluster with `cargo xtask down --name {}`",
                    file.display(),
                    self.name
                )
            })?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("failed to read {}", file.display())),
        }
    }

    /// Writes the specification of the cluster.
    pub fn write_spec(&self, spec: &Spec) -> Result<()> {
        let partial = self.root.join(".cluster.json");
        fs::write(&partial, serde_json::to_vec_pretty(spec)?)?;
        fs::rename(&partial, self.spec_file())
            .with_context(|| format!("failed to write {}", self.spec_file().display()))
    }
}

/// The specification of a cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The number of real nodes.
    pub nodes: u8,
    /// The number of simulated nodes.
    pub kwok: u32,
    /// The port on the loopback interface of this machine that forwards to the API server.
    pub api_port: u16,
    /// The programs.
    pub binaries: Binaries,
    /// The root file system shared by the nodes.
    pub node_root: PathBuf,
    /// The properties of this machine.
    pub host: Host,
}

impl Spec {
    /// The real nodes.
    pub fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (1..=self.nodes).map(Node)
    }
}

/// A real node, by its number, starting at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node(pub u8);

impl Node {
    /// The name of the node in Kubernetes.
    pub fn name(self) -> String {
        format!("node-{}", self.0)
    }

    /// The node with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        name.strip_prefix("node-")?.parse().ok().map(Self)
    }

    /// The address of the node.
    pub fn address(self) -> IpAddr {
        IpAddr::from([198, 18, 0, 10 + self.0])
    }

    /// The network of the node's pods.
    pub fn pods(self) -> String {
        format!("10.244.{}.0/24", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_escape_the_state_directory_is_refused() {
        for name in ["", "..", "a/b", "A", "1a", "a b", &"a".repeat(21)] {
            assert!(Layout::of(name).is_err(), "{name:?} was taken");
        }
        assert!(Layout::of("dev-2").is_ok());
    }

    #[test]
    fn nodes_are_found_by_name() {
        assert_eq!(Node::from_name(&Node(3).name()), Some(Node(3)));
        assert_eq!(Node::from_name("control-plane"), None);
    }
}
