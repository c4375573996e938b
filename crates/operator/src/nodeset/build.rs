//! Builds worker pods and the objects that all workers of a cluster share. Pure.

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use keelson_api::{
    NodeSet,
    nodeset::ScalingMode,
    well_known::{
        HOSTNAME_TOPOLOGY_KEY, WORKER_TAINT, annotation, app, component, container, dir, env, file, label,
        port, slurm, volume as volumes,
    },
};
use keelson_runtime::apply::Desired;
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_conf::sshd_config;

use super::{claims, placement, revision::shaping, validate::Validated};
use crate::children::{
    checksum, container as containers,
    metadata::{Metadata, owned_by, selector},
    pod,
    service::{self, Service as ServiceParts},
    volume,
};

/// Reports the node as down to slurmctld immediately. A drain that someone else set is kept with its reason.
const PRE_STOP: &str = "case \"$(sinfo -h -n $(hostname) -o '%T %E')\" in drain*' slurm-operator:'*) ;; drain*) exit 0 ;; esac; \
    scontrol update nodename=$(hostname) state=down reason='slurm-operator: Pod is terminating' || true";

/// A worker pod without the fields that differ between workers.
#[derive(Debug, Clone)]
pub struct Template {
    pub metadata: Metadata,
    pub spec: Value,
    /// Everything that affects the pod; the data of its revision.
    pub inputs: Value,
}

pub fn build_template(validated: &Validated) -> Template {
    let nodeset = &validated.nodeset;
    let spec = &nodeset.spec;
    let user_metadata = spec
        .template
        .as_ref()
        .and_then(|template| template.metadata.as_ref());
    let mut metadata = Metadata::inherited(nodeset.as_ref())
        .with_override(user_metadata)
        .with_labels(worker_labels(nodeset))
        .with_annotations([(annotation::DEFAULT_CONTAINER, container::SLURMD.to_owned())]);
    if let Some((_, sssd_hash)) = &validated.sssd {
        metadata = metadata.with_annotations([(annotation::SSSD_CONF_HASH, sssd_hash.clone())]);
    }
    let workers = nodeset.workers_service_name();
    let search = format!(
        "{workers}.{}.svc.{}",
        nodeset.namespace().unwrap_or_default(),
        validated.cluster_domain
    );
    let base = json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "subdomain": workers,
        "dnsConfig": { "searches": [search] },
        "tolerations": [{ "key": WORKER_TAINT, "operator": "Exists", "effect": "NoExecute" }],
        "initContainers": [containers::logfile(file::SLURMD_LOG, None, spec.logfile.as_ref())],
        "containers": [slurmd(validated)],
        "volumes": pod_volumes(validated),
    });
    let mut template = pod::template(&metadata, base, spec.template.as_ref());
    let mut pod_spec = template.get_mut("spec").map(Value::take).unwrap_or_default();
    if let Value::Object(fields) = &mut pod_spec {
        // The user's host name is a prefix; each pod gets its own. Pods are placed by the scheduler.
        fields.remove("hostname");
        fields.remove("nodeName");
    }
    if !spec.oversubscribe_node {
        keep_apart(&mut pod_spec);
    }
    let inputs = inputs(nodeset, validated, &containers::as_recorded(&pod_spec));
    tell_last_words(&mut pod_spec);
    Template {
        inputs,
        metadata,
        spec: pod_spec,
    }
}

/// Makes Kubernetes report the last log lines of a slurmd that exited with an error. This is not part of the revision,
/// so running workers are not replaced for it.
fn tell_last_words(pod_spec: &mut Value) {
    let containers = pod_spec.get_mut("containers").and_then(Value::as_array_mut);
    let is_slurmd = |found: &&mut Value| found.get("name").is_some_and(|name| name == container::SLURMD);
    if let Some(Value::Object(slurmd)) = containers.into_iter().flatten().find(is_slurmd) {
        slurmd
            .entry("terminationMessagePolicy")
            .or_insert_with(|| json!("FallbackToLogsOnError"));
    }
}

pub fn worker_labels(nodeset: &NodeSet) -> Vec<(&'static str, String)> {
    vec![
        (label::APP, app::SLURMD.to_owned()),
        (label::INSTANCE, nodeset.name_any()),
        (label::COMPONENT, component::WORKER.to_owned()),
        (label::CLUSTER, nodeset.spec.controller_ref.name.clone()),
    ]
}

/// Returns everything that cannot be changed on a running worker: the pod spec and the user's labels and annotations.
fn inputs(nodeset: &NodeSet, validated: &Validated, pod_spec: &Value) -> Value {
    let spec = &nodeset.spec;
    let user = spec
        .template
        .as_ref()
        .and_then(|template| template.metadata.clone())
        .unwrap_or_default();
    let mut inputs = json!({
        "spec": pod_spec,
        "labels": shaping(user.labels),
        "annotations": shaping(user.annotations),
        "hostname": nodeset.hostname_prefix(),
        "padding": spec.ordinal_padding,
        "slurmKey": validated.slurm_key_hash,
        "sssd": validated.sssd.as_ref().map(|(_, hash)| hash),
        "sshd": spec.ssh.as_ref().and_then(|ssh| ssh.extra_sshd_config.clone()),
    });
    let claims = claims::names(nodeset, "");
    if let (false, Value::Object(fields)) = (claims.is_empty(), &mut inputs) {
        fields.insert("claims".into(), json!(claims));
    }
    inputs
}

/// The values that differ between workers.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub revision: &'a str,
    /// The owner that remains when the NodeSet is deleted.
    pub anchor: Option<&'a Value>,
    /// When the last slurmd of its node started.
    pub registered_before: Option<Timestamp>,
}

/// Builds the worker pod of an ordinal.
pub fn build_pod(
    nodeset: &NodeSet,
    template: &Template,
    ordinal: i32,
    kube_node: Option<&str>,
    place: Place<'_>,
) -> Desired<Pod> {
    let name = nodeset.pod_name(ordinal);
    let hostname = nodeset.pod_hostname(ordinal);
    let labels = vec![
        (label::POD_NAME, name.clone()),
        (label::POD_INDEX, nodeset.padded_ordinal(ordinal)),
        (label::POD_HOSTNAME, hostname.clone()),
        (label::SCALING_MODE, ScalingMode::StatefulSet.as_str().to_owned()),
    ];
    let mut spec = template.spec.clone();
    if let Some(kube_node) = kube_node {
        bind(&mut spec, kube_node);
    }
    claims::mount(nodeset, &nodeset.padded_ordinal(ordinal), &mut spec);
    one_pod(nodeset, template, ("name", &name), &hostname, labels, spec, place)
}

/// Builds the worker pod of a Kubernetes node. The scheduler binds it, but only to this node, so quotas and priorities
/// apply.
pub fn build_pod_on(
    nodeset: &NodeSet,
    template: &Template,
    kube_node: &str,
    hostname: &str,
    place: Place<'_>,
) -> Desired<Pod> {
    let mut spec = template.spec.clone();
    bind(&mut spec, kube_node);
    if let Value::Object(fields) = &mut spec {
        let tolerations = fields.entry("tolerations").or_insert_with(|| json!([]));
        if let Value::Array(tolerations) = tolerations {
            // Otherwise Kubernetes evicts the pod, with its jobs, after its node has not responded for five minutes.
            let stays = placement::SILENT
                .map(|taint| json!({ "key": taint, "operator": "Exists", "effect": "NoExecute" }));
            tolerations.extend(stays);
        }
    }
    claims::mount(nodeset, hostname, &mut spec);
    let labels = vec![
        (label::POD_HOSTNAME, hostname.to_owned()),
        (label::SCALING_MODE, ScalingMode::DaemonSet.as_str().to_owned()),
    ];
    let name = nodeset.pod_generate_name();
    let named = ("generateName", name.as_str());
    one_pod(nodeset, template, named, hostname, labels, spec, place)
}

fn bind(pod_spec: &mut Value, kube_node: &str) {
    let Value::Object(fields) = pod_spec else { return };
    let affinity = fields.entry("affinity").or_insert_with(|| json!({}));
    if let Value::Object(affinity) = affinity {
        let only_there = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [kube_node] }] },
        ] } });
        affinity.insert("nodeAffinity".into(), only_there);
    }
}

fn one_pod(
    nodeset: &NodeSet,
    template: &Template,
    (field, name): (&str, &str),
    hostname: &str,
    mut labels: Vec<(&'static str, String)>,
    mut spec: Value,
    place: Place<'_>,
) -> Desired<Pod> {
    let Place {
        revision,
        anchor,
        registered_before,
    } = place;
    labels.push((label::REVISION_HASH, revision.to_owned()));
    // Set at creation: a worker must not be evicted before the operator notices its first job.
    if nodeset.spec.workload_disruption_protection {
        labels.push((label::POD_PROTECT, "true".to_owned()));
    }
    let namespace = nodeset.namespace().unwrap_or_default();
    let before = registered_before.map(|at| (annotation::REGISTERED_BEFORE, at.to_string()));
    let metadata = template
        .metadata
        .clone()
        .with_labels(labels)
        .with_annotations(before);
    let owners: Vec<Value> = std::iter::once(owned_by(nodeset))
        .chain(anchor.cloned())
        .collect();
    let mut metadata = metadata.of_object(&namespace, "", &owners);
    if let Value::Object(fields) = &mut metadata {
        fields.remove("name");
        fields.insert(field.into(), json!(name));
    }
    if let Value::Object(fields) = &mut spec {
        fields.insert("hostname".into(), json!(hostname));
    }
    Desired::new(json!({ "metadata": metadata, "spec": spec }))
}

fn slurmd(validated: &Validated) -> Value {
    let spec = &validated.nodeset.spec;
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let mut ports = vec![containers::port(app::SLURMD, port::SLURMD)];
    let mut mounts = vec![
        volume::read_only(volumes::SLURM_ETC, dir::SLURM_ETC),
        volume::mount(volumes::SLURM_LOGFILE, dir::LOG),
    ];
    if spec.ssh_enabled() {
        ports.push(containers::port(port::SSH_NAME, port::SSH));
        mounts.push(volume::file(volumes::SSH_CONFIG, dir::SSH, file::SSHD_CONFIG));
    }
    if validated.sssd.is_some() {
        mounts.push(volume::file(volumes::SSSD_CONF, dir::SSSD, file::SSSD_CONF));
    }
    let base = json!({
        "name": container::SLURMD,
        "args": slurmd_args(validated),
        "env": [
            field(env::SLINKY_TOPOLOGY, &format!("metadata.annotations['{}']", annotation::TOPOLOGY_SPEC)),
            { "name": env::POD_CPUS, "value": validated.cpus.to_string() },
            { "name": env::POD_MEMORY, "value": validated.memory.to_string() },
            field("POD_NAME", "metadata.name"),
            field("NODE_NAME", "spec.nodeName"),
        ],
        "ports": ports,
        "startupProbe": containers::starting(containers::http_probe(slurm::LIVEZ, app::SLURMD)),
        "livenessProbe": containers::patient(containers::http_probe(slurm::LIVEZ, app::SLURMD)),
        "readinessProbe": containers::prompt(containers::http_probe(slurm::READYZ, app::SLURMD)),
        "securityContext": {
            "privileged": true,
            "capabilities": { "add": ["BPF", "NET_ADMIN", "SYS_ADMIN", "SYS_NICE"] },
        },
        "lifecycle": { "preStop": { "exec": { "command": ["/usr/bin/sh", "-c", PRE_STOP] } } },
        "volumeMounts": mounts,
    });
    pod::container(base, spec.slurmd.as_ref())
}

/// Returns the arguments as shell words, as Slinky's images expect them; our images split them by the same rules
/// without a shell.
fn slurmd_args(validated: &Validated) -> Vec<String> {
    let nodeset = &validated.nodeset;
    let topology = validated
        .topology
        .clone()
        .unwrap_or_else(|| format!(r#"'"${}"'"#, env::SLINKY_TOPOLOGY));
    let mut conf: Vec<String> = validated
        .conf
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    conf.push(format!("Features={}", validated.features.join(",")));
    conf.push(format!("Topology={topology}"));
    conf.sort();
    // The node registers with its identity; the kubelet expands the variables.
    let identity = format!(
        "pod={}/$(POD_NAME),node=$(NODE_NAME),nodeset={}/{}",
        nodeset.namespace().unwrap_or_default(),
        nodeset.name_any(),
        nodeset.uid().unwrap_or_default()
    );
    vec![
        "-Z".to_owned(),
        "--conf-server".to_owned(),
        containers::conf_server(&validated.controller),
        "--conf".to_owned(),
        format!("'{}'", conf.join(" ")),
        "--extra".to_owned(),
        identity,
    ]
}

fn pod_volumes(validated: &Validated) -> Vec<Value> {
    let private = volume::OWNER_ONLY;
    let key_file = validated.controller.spec.auth_type().key_file();
    let key = volume::secret_key(&validated.slurm_key, key_file, None);
    let mut all = vec![
        volume::projected(volumes::SLURM_ETC, private, &[key]),
        volume::memory(volumes::SLURM_LOGFILE),
    ];
    if validated.nodeset.spec.ssh_enabled() {
        let name = validated.nodeset.ssh_config_name();
        let source = volume::config_map_key(&name, file::SSHD_CONFIG, file::SSHD_CONFIG, Some(private));
        all.push(volume::projected(volumes::SSH_CONFIG, private, &[source]));
    }
    if let Some((reference, _)) = &validated.sssd {
        let source = volume::secret_key(reference, file::SSSD_CONF, Some(private));
        all.push(volume::projected(volumes::SSSD_CONF, private, &[source]));
    }
    all
}

/// Allows one worker per Kubernetes node, because slurmd registers all resources of the machine.
fn keep_apart(pod_spec: &mut Value) {
    let term = json!({
        "labelSelector": {
            "matchExpressions": [{ "key": label::APP, "operator": "In", "values": [app::SLURMD] }],
        },
        "topologyKey": HOSTNAME_TOPOLOGY_KEY,
    });
    pod::require_anti_affinity(pod_spec, term);
}

/// Builds the headless Service for the DNS names of all workers of a cluster, owned by all its NodeSets.
pub fn build_workers_service(nodeset: &NodeSet, owners: Vec<Value>) -> Desired<Service> {
    let cluster = nodeset.spec.controller_ref.name.clone();
    let mut selected = selector(app::SLURMD, "");
    selected.remove(label::INSTANCE);
    selected.insert(label::CLUSTER, cluster);
    Desired::new(service::headless(ServiceParts {
        namespace: &nodeset.namespace().unwrap_or_default(),
        name: &nodeset.workers_service_name(),
        metadata: shared_metadata(nodeset),
        owners,
        selector: selected,
        port_name: app::SLURMD,
        port: i32::from(port::SLURMD),
        user: None,
    }))
}

/// Builds the PodDisruptionBudget that prevents the eviction of workers with the protect label. A `minAvailable` larger
/// than any fleet works in both scaling modes; `maxUnavailable` would be relative to `spec.replicas`, which does not
/// apply in DaemonSet mode.
pub fn build_workers_budget(nodeset: &NodeSet, owners: &[Value]) -> Desired<PodDisruptionBudget> {
    let namespace = nodeset.namespace().unwrap_or_default();
    Desired::new(json!({
        "metadata": shared_metadata(nodeset).of_object(&namespace, &nodeset.workers_pdb_name(), owners),
        "spec": {
            "minAvailable": i32::MAX,
            "selector": { "matchLabels": {
                label::POD_PROTECT: "true",
                label::CLUSTER: nodeset.spec.controller_ref.name,
            } },
        },
    }))
}

fn shared_metadata(nodeset: &NodeSet) -> Metadata {
    Metadata::default().with_labels([
        (label::APP, app::SLURMD.to_owned()),
        (label::COMPONENT, component::WORKER.to_owned()),
        (label::CLUSTER, nodeset.spec.controller_ref.name.clone()),
    ])
}

/// Builds the `sshd_config` of the workers, if SSH is enabled.
pub fn build_ssh_config(nodeset: &NodeSet) -> Result<Option<Desired<ConfigMap>>, slurm_conf::merge::Error> {
    let Some(ssh) = nodeset.spec.ssh.as_ref().filter(|ssh| ssh.enabled) else {
        return Ok(None);
    };
    let extra = ssh.extra_sshd_config.as_deref().unwrap_or_default();
    let text = sshd_config::render(sshd_config::Role::Worker, extra)?.text;
    let metadata = Metadata::inherited(nodeset)
        .with_labels(worker_labels(nodeset))
        .with_annotations([(annotation::SSHD_CONF_HASH, checksum::of_bytes(text.as_bytes()))]);
    let namespace = nodeset.namespace().unwrap_or_default();
    let metadata = metadata.of_object(&namespace, &nodeset.ssh_config_name(), &[owned_by(nodeset)]);
    Ok(Some(Desired::new(
        json!({ "metadata": metadata, "data": { file::SSHD_CONFIG: text } }),
    )))
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    #[test]
    fn kubernetes_quotes_slurmd_unless_the_user_wants_it_otherwise() {
        let policy = |slurmd: Value| {
            let mut spec = json!({ "containers": [{ "name": "other" }, slurmd] });
            tell_last_words(&mut spec);
            assert_eq!(spec["containers"][0], json!({ "name": "other" }));
            spec["containers"][1]["terminationMessagePolicy"].clone()
        };
        assert_eq!(policy(json!({ "name": "slurmd" })), "FallbackToLogsOnError");
        let own = json!({ "name": "slurmd", "terminationMessagePolicy": "File" });
        assert_eq!(policy(own), "File");
    }
}
