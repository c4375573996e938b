//! Where a cluster keeps its files, and what it is made of.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::binaries::Binaries;
use crate::cache::user_directory;
use crate::host::Host;

/// The API server's address in the cluster's own network.
pub const API_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The API server's port in the cluster's own network.
pub const API_PORT: u16 = 6443;
/// The first address of the service network, which is the API server's Service.
pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The cluster DNS Service's address.
pub const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// Where volumes are, on every node.
pub const VOLUMES: &str = "/var/lib/keelson/volumes";

/// Nodes get addresses from 198.18.0.11 on.
pub const NODES_MAX: u8 = 40;

/// The files of one cluster.
#[derive(Debug, Clone)]
pub struct Layout {
    name: String,
    root: PathBuf,
}

impl Layout {
    /// The layout of the cluster with this name, which need not exist.
    pub fn of(name: &str) -> Result<Self> {
        let valid = !name.is_empty()
            && name.len() <= 20
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        ensure!(
            valid,
            "{name:?} cannot be a cluster's name: use up to 20 lower-case letters, digits and dashes, beginning with a letter"
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

    /// The layout at a known place: what a process of the cluster is told.
    pub fn at(root: &Path) -> Result<Self> {
        let name = root
            .file_name()
            .context("a cluster's directory has no name")?
            .to_string_lossy()
            .into_owned();
        Ok(Self {
            name,
            root: root.to_owned(),
        })
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster's directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Log files, one a component.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// A component's log file.
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

    /// The kubeconfig that a component inside the cluster's network uses.
    pub fn component_kubeconfig(&self, component: &str) -> PathBuf {
        self.pki().join(format!("{component}.kubeconfig"))
    }

    /// A node's directories.
    pub fn node(&self, node: &str) -> PathBuf {
        self.root.join("nodes").join(node)
    }

    /// Persistent volumes, shared by all nodes.
    pub fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    /// etcd's data.
    pub fn etcd(&self) -> PathBuf {
        self.root.join("etcd")
    }

    /// The copy of this program that runs as the first process of each namespace: a rebuild does not touch it.
    pub fn program(&self) -> PathBuf {
        self.root.join("testbed-init")
    }

    fn spec_file(&self) -> PathBuf {
        self.root.join("cluster.json")
    }

    /// What the cluster is made of, if it exists.
    pub fn spec(&self) -> Result<Option<Spec>> {
        let file = self.spec_file();
        match fs::read(&file) {
            Ok(content) => Ok(Some(serde_json::from_slice(&content).with_context(|| {
                format!(
                    "{} is unreadable; remove the cluster with `cargo xtask down --name {}`",
                    file.display(),
                    self.name
                )
            })?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    /// Notes what the cluster is made of.
    pub fn write_spec(&self, spec: &Spec) -> Result<()> {
        let partial = self.root.join(".cluster.json");
        fs::write(&partial, serde_json::to_vec_pretty(spec)?)?;
        fs::rename(&partial, self.spec_file())
            .with_context(|| format!("cannot write {}", self.spec_file().display()))
    }
}

/// What a cluster is made of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// Real nodes.
    pub nodes: u8,
    /// Simulated nodes.
    pub kwok: u32,
    /// Port on this machine's loopback that leads to the API server.
    pub api_port: u16,
    /// The programs.
    pub binaries: Binaries,
    /// The root file system that nodes share.
    pub node_root: PathBuf,
    /// What this machine can do.
    pub host: Host,
}

impl Spec {
    /// The real nodes.
    pub fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (1..=self.nodes).map(Node)
    }
}

/// A real node, by its number from 1 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node(pub u8);

impl Node {
    /// The node's name in Kubernetes.
    pub fn name(self) -> String {
        format!("node-{}", self.0)
    }

    /// The node with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        name.strip_prefix("node-")?.parse().ok().map(Self)
    }

    /// The node's address.
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
