//! Builds the children of a LoginSet: host keys, sshd's configuration, Service, Deployment. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret, Service},
};
use keelson_api::{
    LoginSet,
    merge::MergeError,
    well_known::{annotation, app, component, container, dir, env, file, label, port, volume as volumes},
};
use keelson_runtime::apply::Desired;
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_conf::{slurm_conf::AuthType, sshd_config};

use super::{host_keys, validate::Validated};
use crate::children::{
    checksum, container as containers,
    metadata::{Metadata, owned_by, selector},
    pod,
    service::{self, Service as ServiceParts},
    volume,
};

/// Reason why the children cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("extraSshdConfig: {0}")]
    Conf(#[from] slurm_conf::merge::Error),
    #[error(transparent)]
    Merge(#[from] MergeError),
}

/// The objects that a LoginSet consists of, except the host keys, which are created once.
#[derive(Debug)]
pub struct Children {
    pub ssh_config: Desired<ConfigMap>,
    pub service: Desired<Service>,
    pub deployment: Desired<Deployment>,
    /// The user's lines that have no effect, for the status.
    pub findings: Vec<String>,
}

/// How root's keys are mounted into the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// As a directory, which the kubelet keeps up to date.
    Live,
    /// As a single file, which stays as it was when the pod started.
    Fixed,
}

impl Keys {
    fn role(self) -> sshd_config::Role {
        match self {
            Self::Live => sshd_config::Role::Login,
            Self::Fixed => sshd_config::Role::LoginWithFixedKeys,
        }
    }
}

/// The files that sshd reads, and findings about lines of the user that are not in them.
struct Files {
    keys: Keys,
    texts: BTreeMap<String, String>,
    findings: Vec<String>,
}

impl Files {
    fn render(loginset: &LoginSet, keys: Keys) -> Result<Self, Error> {
        let spec = &loginset.spec;
        let sshd = sshd_config::render(keys.role(), spec.extra_sshd_config.as_deref().unwrap_or_default())?;
        let root = spec.root_ssh_authorized_keys.as_deref().unwrap_or_default();
        Ok(Self {
            keys,
            findings: sshd.findings.iter().map(ToString::to_string).collect(),
            texts: BTreeMap::from([
                (file::SSHD_CONFIG.to_owned(), sshd.text),
                (
                    file::AUTHORIZED_KEYS.to_owned(),
                    sshd_config::render_authorized_keys(root),
                ),
            ]),
        })
    }

    /// Returns a checksum that changes when pods have to restart to load the files.
    fn hash(&self) -> String {
        let mut texts = self.texts.clone();
        if self.keys == Keys::Live {
            texts.remove(file::AUTHORIZED_KEYS);
        }
        checksum::of_texts(&texts)
    }
}

/// `live` is the existing Deployment.
pub fn build(
    loginset: &LoginSet,
    validated: &Validated,
    live: Option<&Deployment>,
) -> Result<Children, Error> {
    // Pods of an earlier operator mount their keys as a single file. They keep it until something else replaces them:
    // an upgrade of the operator must not end anyone's session.
    let fixed = Files::render(loginset, Keys::Fixed)?;
    let deployment = build_deployment(loginset, validated, &fixed);
    let (files, deployment) = if live.is_some_and(|live| starts_the_same(live, &deployment.value)) {
        (fixed, deployment)
    } else {
        let files = Files::render(loginset, Keys::Live)?;
        let deployment = build_deployment(loginset, validated, &files);
        (files, deployment)
    };
    Ok(Children {
        ssh_config: build_ssh_config(loginset, &files.texts),
        service: build_service(loginset)?,
        deployment,
        findings: files.findings,
    })
}

/// Reports whether pods of the Deployment start from the same files, keys and images. The rest of the template is not
/// compared, because the API server rewrites quantities and adds defaults.
fn starts_the_same(live: &Deployment, wanted: &Value) -> bool {
    let Some(template) = live.spec.as_ref().map(|spec| &spec.template) else {
        return false;
    };
    let annotations = template
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.annotations.as_ref());
    let hashes = [
        annotation::SSHD_CONF_HASH,
        annotation::SLURM_KEY_HASH,
        annotation::SSH_HOST_KEYS_HASH,
        annotation::SSSD_CONF_HASH,
    ];
    let is_same = |name: &str| {
        let live = annotations
            .and_then(|annotations| annotations.get(name))
            .map(String::as_str);
        let wanted = wanted
            .pointer("/spec/template/metadata/annotations")
            .and_then(|annotations| annotations.get(name)?.as_str());
        live == wanted
    };
    let images = template.spec.as_ref().map(|spec| {
        let containers = spec.containers.iter();
        containers
            .map(|container| json!(container.image))
            .collect::<Vec<_>>()
    });
    let wanted_images = wanted
        .pointer("/spec/template/spec/containers")
        .and_then(Value::as_array)
        .map(|containers| {
            containers
                .iter()
                .map(|container| container.get("image").cloned().unwrap_or_default())
                .collect::<Vec<_>>()
        });
    hashes.into_iter().all(is_same) && images == wanted_images
}

/// The Secret is immutable, so that a host's identity is not changed by accident.
pub fn build_host_keys(loginset: &LoginSet, files: host_keys::Files) -> Desired<Secret> {
    let files: BTreeMap<String, String> = files.into_iter().collect();
    Desired::new(json!({
        "metadata": metadata(loginset).of_object(
            &namespace(loginset),
            &loginset.ssh_host_keys_name(),
            &[owned_by(loginset)],
        ),
        "immutable": true,
        "type": "Opaque",
        "stringData": files,
    }))
}

fn labels(loginset: &LoginSet) -> Vec<(&'static str, String)> {
    vec![
        (label::APP, app::LOGIN.to_owned()),
        (label::INSTANCE, loginset.name_any()),
        (label::COMPONENT, component::LOGIN.to_owned()),
    ]
}

fn metadata(loginset: &LoginSet) -> Metadata {
    Metadata::inherited(loginset).with_labels(labels(loginset))
}

fn namespace(loginset: &LoginSet) -> String {
    loginset.namespace().unwrap_or_default()
}

fn build_ssh_config(loginset: &LoginSet, files: &BTreeMap<String, String>) -> Desired<ConfigMap> {
    let metadata = metadata(loginset).of_object(
        &namespace(loginset),
        &loginset.ssh_config_name(),
        &[owned_by(loginset)],
    );
    Desired::new(json!({ "metadata": metadata, "data": files }))
}

fn build_service(loginset: &LoginSet) -> Result<Desired<Service>, MergeError> {
    let user = loginset.spec.service.as_ref();
    Ok(Desired::new(service::public(ServiceParts {
        namespace: &namespace(loginset),
        name: &loginset.login_name(),
        metadata: metadata(loginset),
        owners: vec![owned_by(loginset)],
        selector: selector(app::LOGIN, &loginset.name_any()),
        port_name: port::LOGIN_NAME,
        port: keelson_api::names::service_port(user, port::SSH),
        user,
    })?))
}

fn build_deployment(loginset: &LoginSet, validated: &Validated, files: &Files) -> Desired<Deployment> {
    let spec = &loginset.spec;
    let user_metadata = spec
        .template
        .as_ref()
        .and_then(|template| template.metadata.as_ref());
    let base = Metadata::inherited(loginset)
        .with_override(user_metadata)
        .with_labels(labels(loginset));
    let mut hashes = vec![
        (annotation::SLURM_KEY_HASH, validated.slurm_key_hash.clone()),
        (annotation::SSH_HOST_KEYS_HASH, validated.host_keys_hash.clone()),
        // Mounted as a single file, which the kubelet never updates.
        (annotation::SSHD_CONF_HASH, files.hash()),
    ];
    hashes.extend(
        validated
            .sssd
            .iter()
            .map(|sssd| (annotation::SSSD_CONF_HASH, sssd.hash.clone())),
    );
    let pod_metadata = base
        .clone()
        .with_annotations(hashes)
        .with_annotations([(annotation::DEFAULT_CONTAINER, container::LOGIN.to_owned())]);
    let workers = keelson_api::names::workers_service_name(&spec.controller_ref.name);
    let search = format!(
        "{workers}.{}.svc.{}",
        namespace(loginset),
        validated.cluster_domain
    );
    let pod_spec = json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "dnsConfig": { "searches": [search] },
        "initContainers": [containers::initconf(spec.initconf.as_ref())],
        "containers": [login(loginset, validated, files.keys)],
        "volumes": pod_volumes(loginset, validated, files.keys),
    });
    let mut deployment = json!({
        "replicas": spec.replicas,
        "revisionHistoryLimit": 0,
        "selector": { "matchLabels": selector(app::LOGIN, &loginset.name_any()) },
        "template": pod::template(&pod_metadata, pod_spec, spec.template.as_ref()),
    });
    if let (Some(strategy), Value::Object(fields)) = (&spec.strategy, &mut deployment) {
        fields.insert("strategy".into(), json!(strategy));
    }
    let metadata = base.of_object(
        &namespace(loginset),
        &loginset.login_name(),
        &[owned_by(loginset)],
    );
    Desired::new(json!({ "metadata": metadata, "spec": deployment }))
}

fn login(loginset: &LoginSet, validated: &Validated, keys: Keys) -> Value {
    let options = format!("--conf-server {}", containers::conf_server(&validated.controller));
    let mut mounts = vec![
        volume::read_only(volumes::SLURM_ETC, dir::SLURM_ETC),
        volume::mount(volumes::SACKD_DIR, dir::SACKD_RUN),
    ];
    for name in host_key_files() {
        mounts.push(volume::file(volumes::SSH_HOST_KEYS, dir::SSH, &name));
    }
    mounts.push(volume::file(volumes::SSH_CONFIG, dir::SSH, file::SSHD_CONFIG));
    mounts.push(match keys {
        Keys::Live => volume::read_only(volumes::SSH_KEYS, sshd_config::KEYS),
        Keys::Fixed => volume::file(volumes::SSH_CONFIG, dir::ROOT_SSH, file::AUTHORIZED_KEYS),
    });
    if validated.sssd.is_some() {
        mounts.push(volume::file(volumes::SSSD_CONF, dir::SSSD, file::SSSD_CONF));
    }
    let mut base = json!({
        "name": container::LOGIN,
        "env": [{ "name": env::SACKD_OPTIONS, "value": options }],
        "ports": [containers::port(port::LOGIN_NAME, validated.ssh_port)],
        "readinessProbe": { "exec": { "command": can_authenticate(validated) } },
        "volumeMounts": mounts,
    });
    if let (Keys::Live, Value::Object(fields)) = (keys, &mut base) {
        // Makes Kubernetes quote `init` when it cannot start, for example in an image without SSSD.
        fields.insert("terminationMessagePolicy".into(), json!("FallbackToLogsOnError"));
    }
    pod::container(base, loginset.spec.login.as_ref())
}

/// Returns a command that succeeds once commands in the pod can authenticate and have their configuration.
fn can_authenticate(validated: &Validated) -> Vec<String> {
    let run = dir::SACKD_RUN;
    let words = match validated.controller.spec.auth_type() {
        AuthType::Slurm => format!("test -S {run}/sack.socket"),
        AuthType::Munge => format!(
            "test -S {} -a -e {run}/conf/{}",
            dir::MUNGE_SOCKET,
            file::SLURM_CONF
        ),
    };
    words.split(' ').map(str::to_owned).collect()
}

fn host_key_files() -> impl Iterator<Item = String> {
    file::SSH_HOST_KEYS
        .iter()
        .flat_map(|name| [(*name).to_owned(), format!("{name}.pub")])
}

fn pod_volumes(loginset: &LoginSet, validated: &Validated, keys: Keys) -> Vec<Value> {
    let host_keys: Vec<(String, i32)> = host_key_files()
        .map(|name| {
            let mode = if std::path::Path::new(&name)
                .extension()
                .is_some_and(|extension| extension == "pub")
            {
                volume::READABLE
            } else {
                volume::OWNER_ONLY
            };
            (name, mode)
        })
        .collect();
    let private = volume::OWNER_ONLY;
    let slurm_key_file = validated.controller.spec.auth_type().key_file();
    let config = loginset.ssh_config_name();
    let sshd_config = volume::config_map_key(&config, file::SSHD_CONFIG, file::SSHD_CONFIG, Some(private));
    let key_file = |path, mode| volume::config_map_key(&config, file::AUTHORIZED_KEYS, path, Some(mode));
    let mut all = vec![
        volume::memory(volumes::SLURM_ETC),
        volume::memory(volumes::SACKD_DIR),
        volume::projected(
            volumes::SLURM_CONFIG,
            private,
            &[volume::secret_key(&validated.slurm_key, slurm_key_file, None)],
        ),
        volume::projected(
            volumes::SSH_HOST_KEYS,
            private,
            &[volume::secret_keys(&loginset.ssh_host_keys_name(), &host_keys)],
        ),
    ];
    match keys {
        Keys::Live => {
            all.push(volume::projected(volumes::SSH_CONFIG, private, &[sshd_config]));
            // sshd reads them with a command that runs as an unprivileged user.
            let readable = volume::READABLE;
            let key_file = key_file(file::ROOT_KEYS, readable);
            all.push(volume::projected(volumes::SSH_KEYS, readable, &[key_file]));
        }
        Keys::Fixed => {
            let files = [sshd_config, key_file(file::AUTHORIZED_KEYS, private)];
            all.push(volume::projected(volumes::SSH_CONFIG, private, &files));
        }
    }
    if let Some(sssd) = &validated.sssd {
        let source = volume::secret_key(&sssd.reference, file::SSSD_CONF, Some(private));
        all.push(volume::projected(volumes::SSSD_CONF, private, &[source]));
    }
    all
}

#[cfg(test)]
pub fn build_with_fixed_keys(loginset: &LoginSet, validated: &Validated) -> Value {
    let files = Files::render(loginset, Keys::Fixed).unwrap();
    build_deployment(loginset, validated, &files).value
}
