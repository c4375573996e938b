//! Creates a directory for every claim of our storage classes, and removes it after the claim is deleted.
//!
//! All nodes share the directory, so both `ReadWriteOnce` and `ReadWriteMany` work. Volumes have the type `local`, not
//! hostPath: like with a storage driver, the kubelet applies the `fsGroup` of a pod to them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{
    LocalVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config, ResourceExt};

use crate::cache::remove_tree;
use crate::layout::{Layout, VOLUMES};
use crate::manifests::PROVISIONER as OURS;

const CLAIM_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

pub fn run(layout: &Layout) -> Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(serve(layout))
}

async fn serve(layout: &Layout) -> Result<()> {
    let kubeconfig = Kubeconfig::read_from(layout.component_kubeconfig("admin"))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client);
    let mut made = watcher(claims, watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    let mut ended = watcher(volumes.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    loop {
        // The watch retries its own errors. On other errors, the process exits and is restarted.
        tokio::select! {
            claim = made.try_next() => match claim {
                Ok(Some(claim)) => provide(&volumes, layout, &claim).await?,
                _ => tokio::time::sleep(Duration::from_millis(500)).await,
            },
            volume = ended.try_next() => match volume {
                Ok(Some(volume)) => reclaim(&volumes, layout, &volume).await?,
                _ => tokio::time::sleep(Duration::from_millis(500)).await,
            },
        }
    }
}

async fn provide(
    volumes: &Api<PersistentVolume>,
    layout: &Layout,
    claim: &PersistentVolumeClaim,
) -> Result<()> {
    let Some(volume) = volume_for(claim) else {
        return Ok(());
    };
    let place = directory(layout, &volume.name_any());
    fs::create_dir_all(&place)?;
    // The mode of a new file system: home directories require search permission for all users. The kubelet applies the fsGroup of a pod.
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
    match volumes.create(&PostParams::default(), &volume).await {
        Ok(_) => println!("created {} for {}", volume.name_any(), claim.name_any()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        Err(error) => return Err(error).context("creating a volume"),
    }
    Ok(())
}

/// The volume for a pending claim of our storage classes.
fn volume_for(claim: &PersistentVolumeClaim) -> Option<PersistentVolume> {
    let spec = claim.spec.as_ref()?;
    if claim.annotations().get(CLAIM_PROVISIONER).map(String::as_str) != Some(OURS)
        || spec.volume_name.is_some()
        || claim.metadata.deletion_timestamp.is_some()
    {
        return None;
    }
    let name = format!("pvc-{}", claim.uid()?);
    Some(PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some([(PROVISIONED_BY.to_owned(), OURS.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes.clone(),
            capacity: spec
                .resources
                .as_ref()
                .and_then(|resources| resources.requests.clone()),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("PersistentVolumeClaim".into()),
                name: claim.metadata.name.clone(),
                namespace: claim.namespace(),
                uid: claim.uid(),
                ..ObjectReference::default()
            }),
            local: Some(LocalVolumeSource {
                path: format!("{VOLUMES}/{name}"),
                fs_type: None,
            }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(any_node()),
            }),
            persistent_volume_reclaim_policy: Some("Delete".into()),
            storage_class_name: spec.storage_class_name.clone(),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    })
}

/// A local volume requires a node affinity; this one matches all nodes.
fn any_node() -> NodeSelector {
    let has_name = NodeSelectorRequirement {
        key: "kubernetes.io/hostname".into(),
        operator: "Exists".into(),
        values: None,
    };
    NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm {
            match_expressions: Some(vec![has_name]),
            ..NodeSelectorTerm::default()
        }],
    }
}

async fn reclaim(volumes: &Api<PersistentVolume>, layout: &Layout, volume: &PersistentVolume) -> Result<()> {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let policy = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let ours = volume.annotations().get(PROVISIONED_BY).map(String::as_str) == Some(OURS);
    if !ours
        || phase != Some("Released")
        || policy != Some("Delete")
        || volume.metadata.deletion_timestamp.is_some()
    {
        return Ok(());
    }
    remove_tree(&directory(layout, &volume.name_any()))?;
    match volumes.delete(&volume.name_any(), &DeleteParams::default()).await {
        Ok(_) => println!("removed {}", volume.name_any()),
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => return Err(error).context("deleting a volume"),
    }
    Ok(())
}

fn directory(layout: &Layout, volume: &str) -> PathBuf {
    layout
        .volumes()
        .join(Path::new(volume).file_name().unwrap_or_default())
}
