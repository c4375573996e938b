//! Images, pull secrets and privileges of the pods.

use serde_json::{Map, Value, json};

use super::parts::put;
use crate::references::LocalObjectReference;
use crate::slurmcluster::SlurmCluster;
use crate::validate::pods::is_image;
use crate::validate::{Path, Report};

/// Images that are on the nodes already.
const REGISTRY: &str = "localhost/keelson";

/// Capabilities that sshd and sackd need.
const OF_LOGIN: [&str; 9] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
];
/// Capabilities that slurmd needs to start jobs as their users.
const OF_SLURMD: [&str; 7] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "KILL",
    "SETGID",
    "SETUID",
    "SYS_NICE",
];

/// The security context of a login container, unless the user makes it privileged.
pub(super) fn capabilities_of_login(written: &Map<String, Value>) -> Value {
    let own = written
        .get("login")
        .and_then(|login| login.get("securityContext"));
    if own.and_then(|own| own.get("privileged")) == Some(&json!(true)) {
        return json!({});
    }
    json!({ "privileged": false, "capabilities": { "drop": ["ALL"], "add": OF_LOGIN } })
}

pub(super) fn unprivileged_slurmd() -> Value {
    json!({ "privileged": false, "capabilities": { "drop": ["ALL"], "add": OF_SLURMD } })
}

/// What all pods of a cluster have in common.
pub(super) struct Pods<'a> {
    cluster: &'a SlurmCluster,
}

impl<'a> Pods<'a> {
    pub fn of(cluster: &'a SlurmCluster) -> Self {
        Self { cluster }
    }

    /// Defaults of a container with our image of this name.
    pub fn container(&self, image: &str) -> Value {
        let mut container =
            json!({ "image": image_of(self.cluster, &format!("{image}:{}", self.cluster.spec.version)) });
        let policy = self
            .cluster
            .spec
            .images
            .as_ref()
            .and_then(|images| images.pull_policy.clone());
        if let Some(policy) = policy {
            put(&mut container, &["imagePullPolicy"], json!(policy));
        }
        container
    }

    /// Defaults of every pod, if there are any.
    pub fn template(&self) -> Option<Value> {
        let secrets: Vec<Value> = pull_secrets(self.cluster)
            .iter()
            .map(|secret| json!(secret))
            .collect();
        (!secrets.is_empty()).then(|| json!({ "spec": { "imagePullSecrets": secrets } }))
    }

    /// Reports a name that no image can have here, instead of once for each component.
    pub fn check_images(&self, report: &mut Report) {
        let (spec, path) = (&self.cluster.spec, Path::spec());
        if !is_image(&image_of(self.cluster, "slurmd")) {
            let registry = spec.images.as_ref().and_then(|images| images.registry.as_deref());
            report.refuse(
                &path.field("images").field("registry"),
                format!("{:?} is not a valid registry", registry.unwrap_or_default()),
                "use host[:port][/path], such as registry.example.org/slurm",
            );
        }
        if !is_image(&format!("slurmd:{}", spec.version)) {
            report.refuse(
                &path.field("version"),
                format!("{:?} is not a valid image tag", spec.version),
                "use a Slurm release, such as 26.05",
            );
        }
    }
}

/// The full reference of an image of ours.
pub fn image_of(cluster: &SlurmCluster, image: &str) -> String {
    let images = cluster.spec.images.as_ref();
    let registry = images
        .and_then(|images| images.registry.as_deref())
        .unwrap_or(REGISTRY);
    format!("{}/{image}", registry.trim_end_matches('/'))
}

/// Secrets with registry credentials.
pub fn pull_secrets(cluster: &SlurmCluster) -> &[LocalObjectReference] {
    cluster
        .spec
        .images
        .as_ref()
        .map_or(&[], |images| images.pull_secrets.as_slice())
}
