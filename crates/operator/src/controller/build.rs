//! Builds the children of a Controller: two Services, the configuration, the StatefulSet, a `ServiceMonitor`. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Service},
    },
};
use keelson_api::{
    Controller,
    merge::MergeError,
    well_known::{
        HOSTNAME_TOPOLOGY_KEY, annotation, app, component, container, dir, file, label, port, slurm,
        volume as volumes,
    },
};
use keelson_runtime::apply::Desired;
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_conf::{cgroup_conf, slurm_conf as conf};

use super::{
    configuration::choose::Chosen,
    monitor,
    observe::Live,
    validate::{Internal, State, Validated},
};
use crate::children::{
    container as containers,
    metadata::{Metadata, owned_by, selector},
    pod,
    service::{self, Service as ServiceParts},
    service_monitor::ServiceMonitor,
    volume,
};

const RECONFIGURE_SCRIPT: &str = include_str!("scripts/reconfigure.sh");

/// The objects that a Controller consists of.
#[derive(Debug)]
pub struct Children {
    pub config: Desired<ConfigMap>,
    /// The configuration that slurmctld accepted last, if known.
    pub config_in_use: Option<Desired<ConfigMap>>,
    /// `None` if slurmctld is external.
    pub daemon: Option<Daemon>,
    /// `None` unless the spec asks for it.
    pub monitor: Option<Desired<ServiceMonitor>>,
}

#[derive(Debug)]
pub struct Daemon {
    pub internal_service: Desired<Service>,
    pub service: Desired<Service>,
    pub stateful_set: Desired<StatefulSet>,
}

/// The generated files, and findings about lines of the user that are not in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub files: BTreeMap<String, String>,
    pub findings: Vec<String>,
}

/// The configuration that slurmctld is to run with: all of its files except the keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    pub files: BTreeMap<String, Vec<u8>>,
    /// Changes when slurmctld has to restart to load the files.
    pub restart_hash: Option<String>,
    /// Fingerprint of the files, by which slurmctld's pods report what they run with.
    pub name: Option<String>,
}

pub fn build(
    controller: &Controller,
    validated: &Validated,
    chosen: &Chosen,
    live: &Live,
) -> Result<Children, MergeError> {
    let daemon = match validated {
        Validated::External(_) => None,
        Validated::Internal(internal) => Some(Daemon {
            internal_service: build_internal_service(controller),
            service: build_service(controller)?,
            stateful_set: build_restarted(controller, internal, chosen, live),
        }),
    };
    Ok(Children {
        config: build_config(controller, &controller.config_name(), &chosen.configuration),
        config_in_use: chosen
            .in_use
            .as_ref()
            .map(|in_use| build_config(controller, &controller.config_in_use_name(), in_use)),
        daemon,
        monitor: monitor::build_monitor(controller),
    })
}

/// Renders the files that are generated.
pub fn render(validated: &Validated) -> Result<Rendered, slurm_conf::merge::Error> {
    match validated {
        Validated::External(external) => Ok(rendered(conf::render_external(external)?)),
        Validated::Internal(internal) => render_internal(&internal.conf, internal.cgroup_conf),
    }
}

/// Renders the files for a slurmctld of ours.
pub fn render_internal(
    slurm_conf: &conf::SlurmConf,
    cgroup_conf: bool,
) -> Result<Rendered, slurm_conf::merge::Error> {
    let mut rendered = rendered(conf::render(slurm_conf)?);
    if cgroup_conf {
        let text = cgroup_conf::render(cgroup_conf::CgroupPlugin::default(), "")?.text;
        rendered.files.insert(file::CGROUP_CONF.to_owned(), text);
    }
    Ok(rendered)
}

fn rendered(slurm_conf: slurm_conf::merge::Rendered) -> Rendered {
    Rendered {
        files: BTreeMap::from([(file::SLURM_CONF.to_owned(), slurm_conf.text)]),
        findings: slurm_conf.findings.iter().map(ToString::to_string).collect(),
    }
}

pub(super) fn labels(controller: &Controller) -> Vec<(&'static str, String)> {
    vec![
        (label::APP, app::SLURMCTLD.to_owned()),
        (label::INSTANCE, controller.name_any()),
        (label::COMPONENT, component::CONTROLLER.to_owned()),
    ]
}

fn metadata(controller: &Controller) -> Metadata {
    Metadata::inherited(controller).with_labels(labels(controller))
}

fn namespace(controller: &Controller) -> String {
    controller.namespace().unwrap_or_default()
}

fn build_config(
    controller: &Controller,
    object: &str,
    Configuration {
        files,
        restart_hash,
        name,
    }: &Configuration,
) -> Desired<ConfigMap> {
    // In the same object as the files: one write covers both, so that no restart is forgotten between two writes.
    let marks = [
        (annotation::SLURM_CONFIG_HASH, restart_hash),
        (annotation::CONFIG_NAME, name),
    ];
    let marks = marks
        .into_iter()
        .filter_map(|(key, value)| Some((key, value.clone()?)));
    let metadata = metadata(controller).with_annotations(marks).of_object(
        &namespace(controller),
        object,
        &[owned_by(controller)],
    );
    let mut texts = BTreeMap::new();
    let mut bytes = BTreeMap::new();
    for (name, content) in files {
        match std::str::from_utf8(content) {
            Ok(text) => drop(texts.insert(name, text)),
            Err(_) => drop(bytes.insert(name, ByteString(content.clone()))),
        }
    }
    let mut config = json!({ "metadata": metadata, "data": texts });
    if !bytes.is_empty()
        && let Value::Object(config) = &mut config
    {
        config.insert("binaryData".into(), json!(bytes));
    }
    Desired::new(config)
}

fn build_internal_service(controller: &Controller) -> Desired<Service> {
    Desired::new(service::headless(ServiceParts {
        namespace: &namespace(controller),
        name: &controller.internal_service_name(),
        metadata: metadata(controller),
        owners: vec![owned_by(controller)],
        selector: selector(app::SLURMCTLD, &controller.name_any()),
        port_name: app::SLURMCTLD,
        port: i32::from(port::SLURMCTLD),
        user: None,
    }))
}

fn build_service(controller: &Controller) -> Result<Desired<Service>, MergeError> {
    let user = controller.spec.service.as_ref();
    Ok(Desired::new(service::public(ServiceParts {
        namespace: &namespace(controller),
        name: &controller.controller_name(),
        metadata: metadata(controller),
        owners: vec![owned_by(controller)],
        selector: selector(app::SLURMCTLD, &controller.name_any()),
        port_name: app::SLURMCTLD,
        port: keelson_api::names::service_port(user, port::SLURMCTLD),
        user,
    })?))
}

/// Builds the StatefulSet. Pods that are replaced for another reason start with the newest files and need no separate
/// restart. They keep the fingerprint of an unchanged slurm.key, even a plain hash: all pods with that key are compared
/// with it, and after a downgrade the earlier operator would mistake another fingerprint for another key and restart
/// them all. A random key cannot be guessed from its hash.
fn build_restarted(
    controller: &Controller,
    internal: &Internal,
    chosen: &Chosen,
    live: &Live,
) -> Desired<StatefulSet> {
    let build = |restart_hash: Option<&String>| {
        // The JWT key is not included: slurmctld loads a changed one when it is reconfigured.
        let key = chosen.slurm_key_hash.as_ref();
        let key = key.map(|hash| (annotation::SLURM_KEY_HASH, hash.clone()));
        let restart = restart_hash.map(|hash| (annotation::SLURM_CONFIG_HASH, hash.clone()));
        let hashes: Vec<_> = key.into_iter().chain(restart).collect();
        build_stateful_set(controller, internal, &hashes)
    };
    let set = build(chosen.rolled_hash.as_ref());
    if live
        .stateful_set
        .as_ref()
        .is_some_and(|live| set.is_applied_to(live.as_ref()))
    {
        return set;
    }
    build(chosen.configuration.restart_hash.as_ref())
}

fn build_stateful_set(
    controller: &Controller,
    internal: &Internal,
    hashes: &[(&'static str, String)],
) -> Desired<StatefulSet> {
    let name = controller.name_any();
    let user_metadata = controller
        .spec
        .template
        .as_ref()
        .and_then(|template| template.metadata.as_ref());
    let base = Metadata::inherited(controller)
        .with_override(user_metadata)
        .with_labels(labels(controller));
    let mut spec = json!({
        "replicas": controller.replicas(),
        "revisionHistoryLimit": 0,
        "serviceName": controller.internal_service_name(),
        "selector": { "matchLabels": selector(app::SLURMCTLD, &name) },
        "template": build_pod_template(controller, internal, &base, hashes),
    });
    if let (State::Template, Value::Object(spec)) = (&internal.state, &mut spec) {
        let persistence = controller.spec.persistence.clone().unwrap_or_default();
        let claim = json!({ "metadata": { "name": volumes::STATESAVE }, "spec": persistence.claim_spec() });
        spec.insert("volumeClaimTemplates".into(), json!([claim]));
        // Scaling down keeps the state, which the remaining slurmctlds share; only deletion may delete it.
        let deleted = persistence.deletion_policy.unwrap_or_default();
        let retention = json!({ "whenDeleted": deleted, "whenScaled": "Retain" });
        spec.insert("persistentVolumeClaimRetentionPolicy".into(), retention);
    }
    let metadata = base.of_object(
        &namespace(controller),
        &controller.controller_name(),
        &[owned_by(controller)],
    );
    Desired::new(json!({ "metadata": metadata, "spec": spec }))
}

fn build_pod_template(
    controller: &Controller,
    internal: &Internal,
    base: &Metadata,
    hashes: &[(&'static str, String)],
) -> Value {
    let spec = &controller.spec;
    let metadata = base
        .clone()
        .with_annotations(hashes.to_vec())
        .with_annotations([(annotation::DEFAULT_CONTAINER, container::SLURMCTLD.to_owned())]);

    let mut sidecars = Vec::new();
    if spec.inplace_reconfigure {
        sidecars.push(reconfigure(controller));
    }
    sidecars.push(containers::logfile(
        file::SLURMCTLD_LOG,
        Some(slurm::UID),
        spec.logfile.as_ref(),
    ));
    let pod_spec = json!({
        "automountServiceAccountToken": false,
        "securityContext": containers::unprivileged_pod(slurm::UID),
        "containers": [slurmctld(controller)],
        "initContainers": sidecars,
        "volumes": pod_volumes(controller, internal),
    });
    let mut template = pod::template(&metadata, pod_spec, spec.template.as_ref());
    if controller.replicas() > 1 {
        keep_apart(&mut template, &controller.name_any());
    }
    template
}

/// Adds an anti-affinity term so that no two slurmctlds share a Kubernetes node. A single one may run anywhere.
fn keep_apart(template: &mut Value, instance: &str) {
    let term = json!({
        "labelSelector": { "matchLabels": selector(app::SLURMCTLD, instance) },
        "topologyKey": HOSTNAME_TOPOLOGY_KEY,
    });
    if let Some(spec) = template.get_mut("spec") {
        pod::require_anti_affinity(spec, term);
    }
}

fn slurmctld(controller: &Controller) -> Value {
    // Only the active slurmctld reports that it is ready; with backups that would block every rollout.
    let ready = if controller.replicas() > 1 {
        slurm::LIVEZ
    } else {
        slurm::READYZ
    };
    let base = json!({
        "name": container::SLURMCTLD,
        "ports": [containers::port(app::SLURMCTLD, port::SLURMCTLD)],
        "startupProbe": containers::recovering(containers::http_probe(slurm::LIVEZ, app::SLURMCTLD)),
        "livenessProbe": containers::forbearing(containers::http_probe(slurm::LIVEZ, app::SLURMCTLD)),
        "readinessProbe": containers::prompt(containers::http_probe(ready, app::SLURMCTLD)),
        // The status quotes why it terminated.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": containers::unprivileged(slurm::UID),
        "volumeMounts": [
            volume::read_only(volumes::SLURM_ETC, dir::SLURM_ETC),
            volume::mount(volumes::RUN, dir::RUN),
            volume::mount(volumes::SLURM_TMP, dir::TMP),
            volume::mount(volumes::STATESAVE, &controller.state_save_dir()),
            volume::mount(volumes::SLURM_AUTHSOCKET, dir::SLURMCTLD_RUN),
            volume::mount(volumes::SLURM_LOGFILE, dir::LOG),
        ],
    });
    pod::container(base, controller.spec.slurmctld.as_ref())
}

fn reconfigure(controller: &Controller) -> Value {
    let base = json!({
        "name": container::RECONFIGURE,
        "command": ["tini", "-g", "--", "bash", "-c", RECONFIGURE_SCRIPT],
        "restartPolicy": "Always",
        "securityContext": containers::unprivileged(slurm::UID),
        "volumeMounts": [
            volume::read_only(volumes::SLURM_ETC, dir::SLURM_ETC),
            volume::read_only(volumes::SLURM_AUTHSOCKET, dir::SLURMCTLD_RUN),
        ],
    });
    pod::container(base, controller.spec.reconfigure.as_ref())
}

fn pod_volumes(controller: &Controller, internal: &Internal) -> Vec<Value> {
    // slurmctld requires that its group can read the files and execute the scripts.
    const GROUP_EXECUTABLE: i32 = 0o610;
    // The published ConfigMap contains the user's files: all change at once, and exist for as long as needed.
    let sources = [
        volume::config_map(&controller.config_name()),
        volume::secret_key(&internal.slurm_key, controller.spec.auth_type().key_file(), None),
        volume::secret_key(&internal.jwt_key, file::JWT_KEY, None),
    ];
    let mut all = vec![
        volume::projected(volumes::SLURM_ETC, GROUP_EXECUTABLE, &sources),
        volume::memory(volumes::SLURM_LOGFILE),
        volume::memory(volumes::RUN),
        volume::scratch(volumes::SLURM_TMP),
        volume::scratch(volumes::SLURM_AUTHSOCKET),
    ];
    match &internal.state {
        State::Template => {}
        State::Claim(claim) => all.push(volume::claim(volumes::STATESAVE, claim)),
        State::Scratch => all.push(volume::scratch(volumes::STATESAVE)),
    }
    all
}
