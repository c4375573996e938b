//! The OCI image format: configuration, manifest, index, and an archive with any number of images.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, Header};

use super::containerfile::Stage;
use crate::cache::hex;

/// Fixed, so that the same inputs produce the same digest.
const CREATED: &str = "1970-01-01T00:00:00Z";
/// Programs and packages have the architecture of the build machine.
const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    "amd64"
};
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The tar file of a layer and its hash.
#[derive(Debug, Clone)]
pub struct Blob {
    /// The file.
    pub file: PathBuf,
    /// sha256 in hexadecimal.
    pub sha256: String,
}

/// An image before it is written into an archive.
#[derive(Debug, Clone)]
pub struct Image {
    /// The full name, with the tag.
    pub name: String,
    /// `sha256:…` of the manifest.
    pub digest: String,
    config: Vec<u8>,
    manifest: Vec<u8>,
    layers: Vec<Blob>,
}

impl Image {
    /// Assembles an image.
    pub fn assemble(name: &str, stage: &Stage, layers: Vec<Blob>) -> Result<Self> {
        let config = serde_json::to_vec(&config(stage, &layers))?;
        let mut described = Vec::new();
        for layer in &layers {
            let size = fs::metadata(&layer.file)
                .with_context(|| format!("failed to read {}", layer.file.display()))?
                .len();
            described.push(json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": format!("sha256:{}", layer.sha256),
                "size": size,
            }));
        }
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": digest(&config),
                "size": config.len(),
            },
            "layers": described,
        }))?;
        Ok(Self {
            name: name.to_owned(),
            digest: digest(&manifest),
            config,
            manifest,
            layers,
        })
    }
}

fn config(stage: &Stage, layers: &[Blob]) -> Value {
    let Stage {
        copies: _,
        env,
        entrypoint,
        cmd,
        user,
        ports,
        workdir,
        labels,
    } = stage;
    let mut environment = vec![PATH.to_owned()];
    environment.extend(env.iter().cloned());
    let mut process = serde_json::Map::new();
    process.insert("Env".into(), json!(environment));
    for (name, words) in [("Entrypoint", entrypoint), ("Cmd", cmd)] {
        if !words.is_empty() {
            process.insert(name.into(), json!(words));
        }
    }
    for (name, value) in [("User", user), ("WorkingDir", workdir)] {
        if let Some(value) = value {
            process.insert(name.into(), json!(value));
        }
    }
    if !ports.is_empty() {
        let ports: BTreeMap<&String, Value> = ports.iter().map(|port| (port, json!({}))).collect();
        process.insert("ExposedPorts".into(), json!(ports));
    }
    if !labels.is_empty() {
        let labels: BTreeMap<&String, &String> = labels.iter().map(|(name, value)| (name, value)).collect();
        process.insert("Labels".into(), json!(labels));
    }
    json!({
        "created": CREATED,
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": process,
        "rootfs": {
            "type": "layers",
            "diff_ids": layers.iter().map(|layer| format!("sha256:{}", layer.sha256)).collect::<Vec<_>>(),
        },
        "history": layers.iter().map(|_| json!({"created": CREATED})).collect::<Vec<_>>(),
    })
}

/// Writes an OCI layout archive. A layer shared by several images is included once.
pub fn write_archive(images: &[Image], output: &Path) -> Result<()> {
    let file = File::create(output).with_context(|| format!("failed to write {}", output.display()))?;
    let mut archive = Builder::new(BufWriter::with_capacity(1 << 20, file));
    let mut manifests = Vec::new();
    let mut small: BTreeMap<String, &[u8]> = BTreeMap::new();
    let mut layers: BTreeMap<&str, &Path> = BTreeMap::new();
    for image in images {
        let tag = image.name.rsplit(':').next().unwrap_or("latest");
        manifests.push(json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": image.digest,
            "size": image.manifest.len(),
            "platform": {"architecture": ARCHITECTURE, "os": "linux"},
            "annotations": {
                "io.containerd.image.name": image.name,
                "org.opencontainers.image.ref.name": tag,
            },
        }));
        small.insert(sha256(&image.config), &image.config);
        small.insert(sha256(&image.manifest), &image.manifest);
        layers.extend(
            image
                .layers
                .iter()
                .map(|layer| (layer.sha256.as_str(), layer.file.as_path())),
        );
    }
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    }))?;
    append(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    append(&mut archive, "index.json", &index)?;
    for (sha256, content) in small {
        append(&mut archive, &format!("blobs/sha256/{sha256}"), content)?;
    }
    for (sha256, file) in layers {
        let size = fs::metadata(file)?.len();
        archive.append_data(
            &mut header(size),
            format!("blobs/sha256/{sha256}"),
            BufReader::new(File::open(file)?),
        )?;
    }
    archive.into_inner()?.flush()?;
    Ok(())
}

/// The number of distinct layers in the images.
pub fn distinct_layers(images: &[Image]) -> usize {
    images
        .iter()
        .flat_map(|image| &image.layers)
        .map(|layer| &layer.sha256)
        .collect::<BTreeSet<_>>()
        .len()
}

fn append(archive: &mut Builder<BufWriter<File>>, name: &str, content: &[u8]) -> Result<()> {
    Ok(archive.append_data(&mut header(content.len() as u64), name, content)?)
}

fn header(size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

fn sha256(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", sha256(content))
}
