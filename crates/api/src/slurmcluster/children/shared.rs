//! Volumes and files that login pods and workers share.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use slurm_conf::container::file_key;

use super::parts::{append, put};
use super::{Around, files_name};
use crate::references::ConfigMapKeySelector;
use crate::slurmcluster::{File, FileUpdate, SlurmCluster, Volume};
use crate::validate::{Path, Report, references};
use crate::well_known::{dir, limit::CONFIG_MAP_BYTES};

/// Volume with the files of `spec.files`.
const FILES_VOLUME: &str = "keelson-files";
/// Volume with those that are kept up to date in running pods.
const LIVE_VOLUME: &str = "keelson-live-files";
/// Pod annotation: changes when files that roll out change.
const FILES_HASH: &str = "keelson.dev/files-hash";

/// Checks the shared volumes and files, which are the same in all pods.
pub(super) fn check(cluster: &SlurmCluster, report: &mut Report) {
    let volumes = volumes_of(cluster);
    for (field, path, _, volume) in &volumes {
        check_volume(field, path, volume, report);
    }
    for (path, file) in &cluster.spec.files {
        check_file(path, file, report);
    }
    let volumes = volumes
        .iter()
        .map(|(field, path, ..)| (field.field("path"), path.trim_end_matches('/')));
    let files = cluster.spec.files.keys();
    let files = files.map(|path| (file_field(path), path.as_str()));
    // The operator knows those in ConfigMaps, too.
    let inline = cluster
        .spec
        .files
        .values()
        .filter_map(|file| file.content.as_deref());
    if let Err(too_large) = check_size(inline) {
        report.extend(too_large);
    }
    // Kubernetes would refuse two mounts at one path, long after this.
    let mut taken = BTreeSet::from([dir::LIVE_FILES]);
    for (field, path) in volumes.chain(files) {
        if !taken.insert(path) {
            report.refuse(
                &field,
                format!("another volume is mounted at {path}"),
                "use another path, or remove one of them",
            );
        }
    }
}

/// Checks that one ConfigMap can hold all files.
pub fn check_size<'a>(contents: impl Iterator<Item = &'a str>) -> Result<(), Report> {
    let size: usize = contents.map(str::len).sum();
    if size <= CONFIG_MAP_BYTES {
        return Ok(());
    }
    let mut report = Report::default();
    report.refuse(
        &Path::spec().field("files"),
        format!("are {size} bytes in total, and one ConfigMap holds at most {CONFIG_MAP_BYTES}"),
        "put large files into the images or on a volume of spec.storage",
    );
    Err(report)
}

/// Adds the shared volumes and the files to the pods of logins and workers.
pub(super) fn mount(
    cluster: &SlurmCluster,
    spec: &mut Value,
    container: &str,
    around: &Around,
    field: &Path,
    report: &mut Report,
) {
    let mut volumes = Vec::new();
    let mut mounts = Vec::new();
    for (_, at, name, volume) in volumes_of(cluster) {
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
    mount_files(cluster, &mut volumes, &mut mounts);
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
fn volumes_of(cluster: &SlurmCluster) -> Vec<(Path, String, String, &Volume)> {
    let Some(storage) = &cluster.spec.storage else {
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

fn mount_files(cluster: &SlurmCluster, volumes: &mut Vec<Value>, mounts: &mut Vec<Value>) {
    let files = &cluster.spec.files;
    if files.is_empty() {
        return;
    }
    let (live, fixed): (Vec<_>, Vec<_>) = files
        .iter()
        .partition(|(_, file)| file.update.unwrap_or_default() == FileUpdate::Live);
    // Items, so that a volume does not change with files of the other sort.
    let volume = |name: &str, files: &[(&String, &File)]| {
        let items: Vec<Value> = files
            .iter()
            .map(|(path, _)| json!({ "key": file_key(path), "path": file_key(path) }))
            .collect();
        json!({ "name": name, "configMap": { "name": files_name(cluster), "defaultMode": 0o644, "items": items } })
    };
    if !fixed.is_empty() {
        volumes.push(volume(FILES_VOLUME, &fixed));
    }
    for (path, _) in &fixed {
        mounts.push(
            json!({ "name": FILES_VOLUME, "mountPath": path, "subPath": file_key(path), "readOnly": true }),
        );
    }
    if !live.is_empty() {
        volumes.push(volume(LIVE_VOLUME, &live));
        mounts.push(json!({ "name": LIVE_VOLUME, "mountPath": dir::LIVE_FILES, "readOnly": true }));
    }
}

impl SlurmCluster {
    /// The claims of `spec.storage`: field, name, and whether pods only read it.
    pub fn shared_claims(&self) -> Vec<(Path, String, bool)> {
        let volumes = volumes_of(self).into_iter();
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
    content: impl Fn(&ConfigMapKeySelector) -> Option<String>,
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
    if let Some(claim) = &volume.claim {
        references::local_name(&path.field("claim"), claim, "PersistentVolumeClaim", report);
    }
    if let Some(sub_path) = &volume.sub_path
        && (sub_path.starts_with('/') || sub_path.split('/').any(|part| part == ".."))
    {
        report.refuse(
            &path.field("subPath"),
            format!("{sub_path:?} is not a path in the volume"),
            "write it without a leading '/' and without '..'",
        );
    }
    if !mount_path.starts_with('/') || mount_path.trim_end_matches('/').is_empty() {
        report.refuse(
            &path.field("path"),
            format!("{mount_path:?} cannot be a mount point"),
            "use the absolute path of a directory, such as /data",
        );
    } else if belongs_to_slurm(mount_path) {
        report.refuse(
            &path.field("path"),
            format!("Slurm has its own files in {mount_path}"),
            "use another path",
        );
    }
}

fn belongs_to_slurm(path: &str) -> bool {
    [dir::SLURM_ETC, dir::SACKD_RUN]
        .into_iter()
        .any(|own| std::path::Path::new(path).starts_with(own))
}

/// The field with the file at this path.
pub fn file_field(path: &str) -> Path {
    Path::spec().field("files").field(path)
}

fn check_file(path: &str, file: &File, report: &mut Report) {
    let field = file_field(path);
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
        // The key of the file in its ConfigMap could not be turned back into the path.
        && !path.contains("__")
        && !path.contains("_/")
        && path
            .split('/')
            .skip(1)
            .all(|part| !part.is_empty() && part != "." && part != "..");
    if !is_file {
        report.refuse(
            &field,
            format!("{path:?} is not a path that a file can be mounted at"),
            "use an absolute path of letters, digits, '-', '_' and '.', without '__' and '_/'",
        );
    }
    if belongs_to_slurm(path) {
        report.refuse(
            &field,
            "Slurm's configuration comes from slurmctld",
            "use controller.extraConf, or controller.configFileRefs for other files",
        );
    }
}

/// Refuses a mount of the user's own at the path of one of ours.
fn refuse_twice(spec: &Value, container: &str, mounts: &[Value], field: &Path, report: &mut Report) {
    let own = spec
        .get(container)
        .and_then(|container| container.get("volumeMounts")?.as_array());
    let path_of = |mount: &Value| {
        let path = mount.get("mountPath").and_then(Value::as_str)?;
        Some(path.trim_end_matches('/').to_owned())
    };
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
