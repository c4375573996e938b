//! Worker pods and what all workers of a cluster share. Pure.

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

/// Tells slurmctld at once that the node is gone; a drain that somebody else made is left as it is, with its reason.
const PRE_STOP: &str = "case \"$(sinfo -h -n $(hostname) -o '%T %E')\" in drain*' slurm-operator:'*) ;; drain*) exit 0 ;; esac; \
    scontrol update nodename=$(hostname) state=down reason='slurm-operator: Pod is terminating' || true";

/// A worker pod without what makes one worker different from another.
#[derive(Debug, Clone)]
pub struct Template {
    pub metadata: Metadata,
    pub spec: Value,
    /// Everything that shapes the pod: what a revision is made of.
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
        // A prefix to the user; each pod gets its own. And the scheduler places pods, not we.
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

/// Has Kubernetes quote the log of a slurmd that ended with an error. That shapes what is told and not the worker, so it
/// is no part of its revision: workers at work are not replaced for it.
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

/// Everything that a running worker cannot take in: the pod's spec and the user's own labels and annotations on it.
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

/// What makes one worker different from another.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub revision: &'a str,
    /// The owner that stays when the NodeSet is deleted.
    pub anchor: Option<&'a Value>,
    /// When the slurmd started that served its node last.
    pub registered_before: Option<Timestamp>,
}

/// The pod of one ordinal.
pub fn build_pod(
    nodeset: &NodeSet,
    template: &Template,
    ordinal: i32,
    machine: Option<&str>,
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
    // The only machine that it may run on.
    if let Some(machine) = machine {
        bind(&mut spec, machine);
    }
    claims::mount(nodeset, &nodeset.padded_ordinal(ordinal), &mut spec);
    one_pod(nodeset, template, ("name", &name), &hostname, labels, spec, place)
}

/// The pod of one machine. The scheduler binds it, so that quotas and priorities count; it may bind it nowhere else.
pub fn build_pod_on(
    nodeset: &NodeSet,
    template: &Template,
    machine: &str,
    hostname: &str,
    place: Place<'_>,
) -> Desired<Pod> {
    let mut spec = template.spec.clone();
    bind(&mut spec, machine);
    if let Value::Object(fields) = &mut spec {
        let tolerations = fields.entry("tolerations").or_insert_with(|| json!([]));
        if let Value::Array(tolerations) = tolerations {
            // Kubernetes would give up the pod of a machine that is silent for five minutes, and with it its jobs.
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

fn bind(pod_spec: &mut Value, machine: &str) {
    let Value::Object(fields) = pod_spec else { return };
    let affinity = fields.entry("affinity").or_insert_with(|| json!({}));
    if let Value::Object(affinity) = affinity {
        let only_there = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [machine] }] },
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
    // From birth: a worker must not be evicted in the moment between its first job and our noticing it.
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

/// Shell words, as Slinky's images want them; ours split them by the same rules without a shell.
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
    // Who the node is goes with its registration; the kubelet fills in the names.
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
    let key = volume::secret_key(&validated.slurm_key, file::SLURM_KEY, None);
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

/// One worker per machine: slurmd takes the machine's resources for its own.
fn keep_apart(pod_spec: &mut Value) {
    let term = json!({
        "labelSelector": {
            "matchExpressions": [{ "key": label::APP, "operator": "In", "values": [app::SLURMD] }],
        },
        "topologyKey": HOSTNAME_TOPOLOGY_KEY,
    });
    pod::require_anti_affinity(pod_spec, term);
}

/// The Service that gives every worker of a cluster its name. All its NodeSets own it together.
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

/// Lets nobody evict a worker that carries the protect label. A minimum beyond any fleet holds in both scaling modes;
/// a maximum of unavailable pods would be counted against `spec.replicas`, which says nothing in DaemonSet mode.
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

/// `sshd_config` of the workers, where users may log in to the nodes of their jobs.
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
