//! Builds the children of a RestApi: configuration, Service, Deployment, disruption budget. Pure.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Service},
    policy::v1::PodDisruptionBudget,
};
use keelson_api::{
    RestApi,
    merge::MergeError,
    well_known::{
        annotation, app, component, container, dir, env, file, label, port, slurm, volume as volumes,
    },
};
use keelson_runtime::apply::Desired;
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_conf::slurm_conf::AuthType;

use super::validate::Validated;
use crate::children::{
    checksum, container as containers,
    metadata::{Metadata, owned_by, selector},
    pod,
    service::{self, Service as ServiceParts},
    volume,
};

/// The objects that a RestApi consists of.
#[derive(Debug)]
pub struct Children {
    pub config: Desired<ConfigMap>,
    pub service: Desired<Service>,
    pub deployment: Desired<Deployment>,
    /// Only with several replicas, so that some still answer during a disruption.
    pub disruption_budget: Option<Desired<PodDisruptionBudget>>,
}

pub fn build(restapi: &RestApi, validated: &Validated) -> Result<Children, MergeError> {
    Ok(Children {
        config: build_config(restapi, validated),
        service: build_service(restapi)?,
        deployment: build_deployment(restapi, validated),
        disruption_budget: (restapi.spec.replicas > 1).then(|| build_disruption_budget(restapi)),
    })
}

fn labels(restapi: &RestApi) -> Vec<(&'static str, String)> {
    vec![
        (label::APP, app::SLURMRESTD.to_owned()),
        (label::INSTANCE, restapi.name_any()),
        (label::COMPONENT, component::RESTAPI.to_owned()),
    ]
}

fn namespace(restapi: &RestApi) -> String {
    restapi.namespace().unwrap_or_default()
}

/// Builds a copy of the Controller's configuration, with only what slurmctld has accepted.
fn build_config(restapi: &RestApi, validated: &Validated) -> Desired<ConfigMap> {
    let metadata = Metadata::inherited(restapi).with_labels(labels(restapi));
    Desired::new(json!({
        "metadata": metadata.of_object(&namespace(restapi), &restapi.restapi_name(), &[owned_by(restapi)]),
        "data": { file::SLURM_CONF: validated.slurm_conf },
    }))
}

fn build_service(restapi: &RestApi) -> Result<Desired<Service>, MergeError> {
    let user = restapi.spec.service.as_ref();
    Ok(Desired::new(service::public(ServiceParts {
        namespace: &namespace(restapi),
        name: &restapi.restapi_name(),
        metadata: Metadata::inherited(restapi).with_labels(labels(restapi)),
        owners: vec![owned_by(restapi)],
        selector: selector(app::SLURMRESTD, &restapi.name_any()),
        port_name: app::SLURMRESTD,
        port: keelson_api::names::service_port(user, port::SLURMRESTD),
        user,
    })?))
}

fn build_deployment(restapi: &RestApi, validated: &Validated) -> Desired<Deployment> {
    let spec = &restapi.spec;
    let user_metadata = spec
        .template
        .as_ref()
        .and_then(|template| template.metadata.as_ref());
    let base = Metadata::inherited(restapi)
        .with_override(user_metadata)
        .with_labels(labels(restapi));
    // slurmrestd reads both files only at startup.
    let pod_metadata = base.clone().with_annotations([
        (annotation::SLURM_KEY_HASH, validated.slurm_key_hash.clone()),
        (
            annotation::SLURM_CONFIG_HASH,
            checksum::of_bytes(validated.slurm_conf.as_bytes()),
        ),
        (annotation::DEFAULT_CONTAINER, container::SLURMRESTD.to_owned()),
    ]);
    let mut sources = vec![volume::config_map_key(
        &restapi.restapi_name(),
        file::SLURM_CONF,
        file::SLURM_CONF,
        None,
    )];
    // Its users bring tokens, so it needs no key. It gets slurm.key only because Slinky mounts it, and images may expect it.
    if validated.controller.spec.auth_type() == AuthType::Slurm {
        sources.push(volume::secret_key(&validated.slurm_key, file::SLURM_KEY, None));
    }
    let pod_spec = json!({
        "automountServiceAccountToken": false,
        "securityContext": containers::unprivileged_pod(slurm::NOBODY_UID),
        "containers": [slurmrestd(restapi, validated)],
        "volumes": [
            volume::projected(volumes::SLURM_ETC, volume::OWNER_ONLY, &sources),
            volume::scratch(volumes::SLURM_TMP),
        ],
    });
    let metadata = base.of_object(&namespace(restapi), &restapi.restapi_name(), &[owned_by(restapi)]);
    Desired::new(json!({
        "metadata": metadata,
        "spec": {
            "replicas": spec.replicas,
            "revisionHistoryLimit": 0,
            "selector": { "matchLabels": selector(app::SLURMRESTD, &restapi.name_any()) },
            "template": pod::template(&pod_metadata, pod_spec, spec.template.as_ref()),
        },
    }))
}

fn slurmrestd(restapi: &RestApi, validated: &Validated) -> Value {
    let mut base = json!({
        "name": container::SLURMRESTD,
        "env": [
            { "name": env::SLURM_JWT, "value": "daemon" },
            { "name": env::SLURMRESTD_SECURITY, "value": "disable_unshare_files,disable_unshare_sysv" },
        ],
        "ports": [containers::port(app::SLURMRESTD, port::SLURMRESTD)],
        "startupProbe": containers::starting(containers::tcp_probe(port::SLURMRESTD)),
        "livenessProbe": containers::patient(containers::tcp_probe(port::SLURMRESTD)),
        "readinessProbe": containers::prompt(reaches_slurmctld(validated)),
        // The status quotes why it terminated.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": containers::unprivileged(slurm::NOBODY_UID),
        "volumeMounts": [
            volume::read_only(volumes::SLURM_ETC, dir::SLURM_ETC),
            volume::mount(volumes::SLURM_TMP, dir::TMP),
        ],
    });
    // Without accounting the slurmdbd plug-in could only fail.
    if let (false, Value::Object(base)) = (validated.accounting, &mut base) {
        base.insert("args".into(), json!(["-s", "openapi/slurmctld"]));
    }
    let mut merged = pod::container(base, restapi.spec.slurmrestd.as_ref());
    // The address comes last on slurmrestd's command line, after the user's options.
    if let Value::Object(fields) = &mut merged {
        let args = fields.entry("args").or_insert_with(|| json!([]));
        if let Value::Array(args) = args {
            args.push(json!(format!("0.0.0.0:{}", port::SLURMRESTD)));
        }
    }
    merged
}

/// Builds a probe that needs slurmctld, without which slurmrestd can answer only with errors. Nothing in the pod could
/// ask as a user does, because that takes a token; a connection is what the shell of every image can try.
fn reaches_slurmctld(validated: &Validated) -> Value {
    let servers: Vec<String> = containers::conf_server(&validated.controller)
        .split(',')
        .filter_map(|server| server.rsplit_once(':'))
        .map(|(host, port)| format!("/dev/tcp/{}/{port}", host.trim_matches(['[', ']'])))
        .collect();
    let script = format!(
        ": </dev/tcp/127.0.0.1/{} && for server in {}; do : <$server && exit; done; exit 1",
        port::SLURMRESTD,
        servers.join(" ")
    );
    json!({ "exec": { "command": ["timeout", "4", "bash", "-c", script] }, "timeoutSeconds": 5 })
}

fn build_disruption_budget(restapi: &RestApi) -> Desired<PodDisruptionBudget> {
    let metadata = Metadata::inherited(restapi).with_labels(labels(restapi));
    Desired::new(json!({
        "metadata": metadata.of_object(&namespace(restapi), &restapi.restapi_name(), &[owned_by(restapi)]),
        "spec": {
            "maxUnavailable": 1,
            "selector": { "matchLabels": selector(app::SLURMRESTD, &restapi.name_any()) },
        },
    }))
}
