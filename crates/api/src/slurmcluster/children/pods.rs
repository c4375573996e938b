//! What all pods have in common: images, pull secrets, shared volumes and files.

use serde_json::{Map, Value, json};
use slurm_conf::container::file_key;

use super::parts::{append, put};
use super::{Around, files_name};
use crate::references::LocalObjectReference;
use crate::slurmcluster::{File, FileUpdate, SlurmCluster, Volume};
use crate::validate::{Path, Report};
use crate::well_known::dir;

/// Images that are on the nodes already.
const REGISTRY: &str = "localhost/keelson";
/// Volume with the files of `spec.files`.
pub const FILES_VOLUME: &str = "keelson-files";
/// Volume with those that are kept up to date in running pods.
const LIVE_VOLUME: &str = "keelson-live-files";
/// Pod annotation: changes when files that roll out change.
const FILES_HASH: &str = "keelson.dev/files-hash";

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

    /// Adds the shared volumes and the files to the pods of logins and workers.
    pub fn share(
        &self,
        spec: &mut Value,
        container: &str,
        around: &Around,
        field: &Path,
        report: &mut Report,
    ) {
        let mut volumes = Vec::new();
        let mut mounts = Vec::new();
        for (path, at, name, volume) in self.volumes() {
            check_volume(&path, &at, volume, report);
            let mut mount = json!({ "name": name, "mountPath": at });
            if let Some(sub_path) = &volume.sub_path {
                put(&mut mount, &["subPath"], json!(sub_path));
            }
            if let Some(read_only) = volume.read_only {
                put(&mut mount, &["readOnly"], json!(read_only));
            }
            mounts.push(mount);
            volumes.push(source(&name, volume));
        }
        self.files(&mut volumes, &mut mounts, report);
        refuse_twice(spec, container, &mounts, field, report);
        append(spec, &["template", "spec", "volumes"], volumes);
        append(spec, &[container, "volumeMounts"], mounts);
        if let Some(hash) = &around.file_hash {
            put(
                spec,
                &["template", "metadata", "annotations", FILES_HASH],
                json!(hash),
            );
        }
    }

    /// The shared volumes: field, mount point, name and source.
    fn volumes(&self) -> Vec<(Path, String, String, &'a Volume)> {
        let Some(storage) = &self.cluster.spec.storage else {
            return Vec::new();
        };
        let path = Path::spec().field("storage");
        let home = storage
            .home
            .iter()
            .map(|home| (path.field("home"), "/home".to_owned(), "home".to_owned(), home));
        let shared = storage.shared.iter().enumerate().map(|(index, shared)| {
            let path = path.field("shared").index(index);
            (
                path,
                shared.path.clone(),
                format!("shared-{index}"),
                &shared.volume,
            )
        });
        home.chain(shared).collect()
    }

    fn files(&self, volumes: &mut Vec<Value>, mounts: &mut Vec<Value>, report: &mut Report) {
        let files = &self.cluster.spec.files;
        if files.is_empty() {
            return;
        }
        let (live, fixed): (Vec<_>, Vec<_>) = files
            .iter()
            .partition(|(_, file)| file.update.unwrap_or_default() == FileUpdate::Live);
        for (path, file) in files {
            check_file(path, file, report);
        }
        // Items, so that a volume does not change with files of the other sort.
        let volume = |name: &str, files: &[(&String, &File)]| {
            let items: Vec<Value> = files
                .iter()
                .map(|(path, _)| json!({ "key": file_key(path), "path": file_key(path) }))
                .collect();
            json!({ "name": name, "configMap": { "name": files_name(self.cluster), "defaultMode": 0o644, "items": items } })
        };
        if !fixed.is_empty() {
            volumes.push(volume(FILES_VOLUME, &fixed));
        }
        for (path, _) in &fixed {
            mounts.push(json!({ "name": FILES_VOLUME, "mountPath": path, "subPath": file_key(path), "readOnly": true }));
        }
        if !live.is_empty() {
            volumes.push(volume(LIVE_VOLUME, &live));
            mounts.push(json!({ "name": LIVE_VOLUME, "mountPath": dir::LIVE_FILES, "readOnly": true }));
        }
    }
}

impl SlurmCluster {
    /// The claims of `spec.storage`: field, name, and whether pods only read it.
    pub fn shared_claims(&self) -> Vec<(Path, String, bool)> {
        let volumes = Pods::of(self).volumes().into_iter();
        volumes
            .filter_map(|(path, _, _, volume)| {
                Some((path, volume.claim.clone()?, volume.read_only.unwrap_or(false)))
            })
            .collect()
    }

    /// The number of pods that mount `spec.storage`, as far as the spec says.
    pub fn pods_that_share(&self) -> i64 {
        let replicas = |values: &Map<String, Value>| match values.get("replicas") {
            Some(replicas) => replicas.as_i64().unwrap_or(1),
            // One for each node.
            None if values.get("scalingMode") == Some(&json!("DaemonSet")) => 2,
            None => 1,
        };
        let logins = self.spec.login.values().map(|fields| replicas(&fields.values));
        let workers = self
            .spec
            .node_sets
            .values()
            .map(|part| replicas(&part.fields.values));
        logins.chain(workers).sum()
    }
}

/// The ConfigMap with the files: `content` finds those that are in other ConfigMaps.
pub fn content_of(
    cluster: &SlurmCluster,
    content: impl Fn(&crate::references::ConfigMapKeySelector) -> Option<String>,
) -> Vec<(String, Option<String>)> {
    let files = cluster.spec.files.iter();
    files
        .map(|(path, file)| {
            let text = match (&file.content, &file.config_map_key_ref) {
                (Some(text), _) => Some(text.clone()),
                (None, Some(reference)) => content(reference),
                (None, None) => None,
            };
            (path.clone(), text)
        })
        .collect()
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

fn source(name: &str, volume: &Volume) -> Value {
    let Volume {
        claim,
        nfs,
        host_path,
        sub_path: _,
        read_only,
    } = volume;
    let mut out = json!({ "name": name });
    if let Some(claim) = claim {
        put(
            &mut out,
            &["persistentVolumeClaim"],
            json!({ "claimName": claim }),
        );
    } else if let Some(nfs) = nfs {
        put(
            &mut out,
            &["nfs"],
            json!({ "server": nfs.server, "path": nfs.path }),
        );
        if let Some(read_only) = read_only {
            put(&mut out, &["nfs", "readOnly"], json!(read_only));
        }
    } else if let Some(path) = host_path {
        // A typo must not create an empty directory on each node.
        put(
            &mut out,
            &["hostPath"],
            json!({ "path": path, "type": "Directory" }),
        );
    }
    out
}

fn check_volume(path: &Path, mount_path: &str, volume: &Volume, report: &mut Report) {
    let kinds = [
        volume.claim.is_some(),
        volume.nfs.is_some(),
        volume.host_path.is_some(),
    ];
    match kinds.into_iter().filter(|set| *set).count() {
        1 => {}
        0 => report.refuse(path, "has no source", "set claim, nfs or hostPath"),
        _ => report.refuse(
            path,
            "has more than one source",
            "set one of claim, nfs and hostPath",
        ),
    }
    if !mount_path.starts_with('/') || mount_path == "/" {
        report.refuse(
            &path.field("path"),
            format!("{mount_path:?} cannot be a mount point"),
            "use the absolute path of a directory, such as /data",
        );
    }
}

fn check_file(path: &str, file: &File, report: &mut Report) {
    let field = Path::spec().field("files").field(path);
    let sources = usize::from(file.content.is_some()) + usize::from(file.config_map_key_ref.is_some());
    if sources != 1 {
        report.refuse(
            &field,
            if sources == 0 {
                "has no content"
            } else {
                "has two contents"
            },
            "set one of content and configMapKeyRef",
        );
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
    let is_file = path.starts_with('/')
        && path.chars().all(plain)
        && !path.contains("__")
        && path
            .split('/')
            .skip(1)
            .all(|part| !part.is_empty() && part != "." && part != "..");
    if !is_file {
        report.refuse(
            &field,
            format!("{path:?} is not a path that a file can be mounted at"),
            "use an absolute path of letters, digits, '-', '_' and '.', without '__'",
        );
    }
    if path.starts_with("/etc/slurm/") || path.starts_with("/run/slurm") {
        report.refuse(
            &field,
            "Slurm's configuration comes from slurmctld",
            "use controller.extraConf, or controller.configFileRefs for other files",
        );
    }
}

/// Two mounts at one path would be refused by Kubernetes, long after this.
fn refuse_twice(spec: &Value, container: &str, mounts: &[Value], field: &Path, report: &mut Report) {
    let own = spec
        .get(container)
        .and_then(|container| container.get("volumeMounts")?.as_array());
    let path_of = |mount: &Value| mount.get("mountPath").and_then(Value::as_str).map(str::to_owned);
    for (index, mount) in own.into_iter().flatten().enumerate() {
        let taken = path_of(mount);
        if taken.is_some() && mounts.iter().any(|mount| path_of(mount) == taken) {
            report.refuse(
                &field.field(container).field("volumeMounts").index(index),
                format!(
                    "spec.storage or spec.files mounts {} too",
                    taken.unwrap_or_default()
                ),
                "remove one of them",
            );
        }
    }
}
