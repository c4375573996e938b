//! One child for each part of the spec.

use std::collections::BTreeMap;

use kube_core::ResourceExt;
use serde_json::{Map, Value, json};
use slurm_conf::catalogue::File;
use slurm_conf::syntax;

use super::pods::{Pods, capabilities_of_login, unprivileged_slurmd};
use super::{
    Around, Child, config_files, config_files_name, database, generated_keys, gpu, nodeset_name, partitions,
    shared,
};
use crate::slurmcluster::SlurmCluster;
use crate::slurmcluster::fields::CONTROLLER_REF;
use crate::validate::{Path, Report};
use crate::well_known::{file, label};
use crate::{Accounting, Controller, LoginSet, NodeSet, RestApi};

/// Merges what the user wrote over our defaults: maps field by field, everything else as a whole.
pub(super) fn over(defaults: Value, written: Value) -> Value {
    match (defaults, written) {
        (Value::Object(mut merged), Value::Object(written)) => {
            for (name, value) in written {
                let value = match merged.remove(&name) {
                    Some(default) => over(default, value),
                    None => value,
                };
                merged.insert(name, value);
            }
            Value::Object(merged)
        }
        (_, written) => written,
    }
}

/// Appends to a list in the spec; what the user wrote comes first.
pub(super) fn append(spec: &mut Value, place: &[&str], items: Vec<Value>) {
    if items.is_empty() {
        return;
    }
    let mut at = spec;
    for name in place {
        let Value::Object(fields) = at else { return };
        at = fields.entry(*name).or_insert_with(|| json!({}));
    }
    match at {
        Value::Array(list) => list.extend(items),
        other => *other = Value::Array(items),
    }
}

/// Sets a field in the spec, and the objects above it.
pub(super) fn put(spec: &mut Value, place: &[&str], value: Value) {
    let mut at = spec;
    for name in place {
        if !at.is_object() {
            *at = json!({});
        }
        let Value::Object(fields) = at else { return };
        at = fields.entry(*name).or_insert(Value::Null);
    }
    *at = value;
}

fn written(fields: &Map<String, Value>) -> Value {
    Value::Object(fields.clone())
}

/// The reference to a key: the user's, or that of a Secret of ours.
fn key(fields: Option<&Map<String, Value>>, names: &[&str], ours: &Value) -> Option<Value> {
    let set = fields.is_some_and(|fields| names.iter().any(|name| fields.contains_key(*name)));
    (!set).then(|| ours.clone())
}

pub(super) fn controller(cluster: &SlurmCluster, around: &Around, report: &mut Report) -> Child<Controller> {
    let spec = &cluster.spec;
    let name = cluster.name_any();
    let field = Path::spec().field("controller");
    let fields = spec.controller.as_ref().map(|fields| &fields.values);
    let pods = Pods::of(cluster);
    let mut defaults = json!({
        "slurmctld": pods.container("slurmctld"),
        "reconfigure": pods.container("slurmctld"),
        "logfile": pods.container("login"),
    });
    if let Some(template) = pods.template() {
        put(&mut defaults, &["template"], template);
    }
    if let Some(auth) = spec.auth {
        put(&mut defaults, &["auth"], json!(auth));
    }
    let mut generated = Vec::new();
    let (slurm_key, jwt_key) = own_keys(&name);
    let keys = [
        ("slurmKey", "slurmKeyRef", vec!["slurmKeyRef"], slurm_key),
        (
            "jwtKey",
            "jwtKeyRef",
            vec!["jwtKeyRef", "jwtHs256KeyRef"],
            jwt_key,
        ),
    ];
    for (word, reference, names, ours) in keys {
        if let Some(ours) = key(fields, &names, &ours) {
            put(&mut defaults, &[reference], ours);
            generated.push(word);
        }
    }
    let external = fields.is_some_and(|fields| fields.get("external") == Some(&json!(true)));
    if external {
        // Keys of a slurmctld that runs elsewhere cannot be generated.
        generated.clear();
    }
    if spec
        .accounting
        .as_ref()
        .is_some_and(|accounting| accounting.enabled)
    {
        put(&mut defaults, &["accountingRef"], json!({ "name": name }));
        if fields.is_some_and(|fields| fields.contains_key("accountingRef")) {
            report.refuse(
                &field.field("accountingRef"),
                "this cluster has an Accounting of its own in spec.accounting",
                "remove one of them",
            );
        }
    }
    let mut merged = over(defaults, written(fields.unwrap_or(&Map::new())));
    let lines = conf_lines(cluster, around, report);
    if !lines.is_empty() {
        let text = merged
            .get("extraConf")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let text = text.trim_end_matches('\n');
        let all: Vec<&str> = std::iter::once(text)
            .filter(|text| !text.is_empty())
            .chain(lines.iter().map(String::as_str))
            .collect();
        let text = all.join("\n");
        put(&mut merged, &["extraConf"], json!(text));
    }
    if !config_files(cluster, around).is_empty() {
        append(
            &mut merged,
            &["configFileRefs"],
            vec![json!({ "name": config_files_name(cluster) })],
        );
    }
    let mut child = Child::new(name, field, merged);
    child.annotations = generated_keys(&generated);
    if fields.is_none_or(|fields| !fields.contains_key("auth")) {
        let auth = Path::spec().field("auth");
        child.origins.push((auth.clone(), auth));
    }
    child
}

/// Lines for slurm.conf after those of the user.
fn conf_lines(cluster: &SlurmCluster, around: &Around, report: &mut Report) -> Vec<String> {
    let user = cluster.spec.controller.as_ref();
    let user = user.and_then(|fields| fields.values.get("extraConf")?.as_str());
    // Invalid lines are reported with the Controller.
    let (document, _) = syntax::read(File::Slurm, user.unwrap_or_default(), &BTreeMap::new());
    let set_by_user = |key: &str| document.get(key).map(str::to_owned);
    let mut lines = Vec::new();
    if !cluster.spec.confine_jobs {
        for (key, value) in [
            ("ProctrackType", "proctrack/linuxproc"),
            ("TaskPlugin", "task/affinity"),
            ("JobAcctGatherType", "jobacct_gather/linux"),
        ] {
            if set_by_user(key).is_none() {
                lines.push(format!("{key}={value}"));
            }
        }
    }
    lines.extend(gpu::conf_lines(
        &cluster.spec,
        &around.running,
        &set_by_user,
        report,
    ));
    lines.extend(partitions::lines(cluster, around, report));
    lines
}

fn own_keys(cluster: &str) -> (Value, Value) {
    (
        json!({ "name": format!("{cluster}-auth-slurm"), "key": file::SLURM_KEY }),
        json!({ "name": format!("{cluster}-auth-jwt"), "key": file::JWT_KEY }),
    )
}

pub(super) fn accounting(cluster: &SlurmCluster, report: &mut Report) -> Option<Child<Accounting>> {
    let part = cluster.spec.accounting.as_ref().filter(|part| part.enabled)?;
    let name = cluster.name_any();
    let pods = Pods::of(cluster);
    let mut defaults = json!({ "slurmdbd": pods.container("slurmdbd") });
    if let Some(template) = pods.template() {
        put(&mut defaults, &["template"], template);
    }
    // slurmdbd authenticates as slurmctld does, with the same keys.
    let of_controller = cluster.spec.controller.as_ref().map(|fields| &fields.values);
    let auth = cluster.spec.auth.map(|auth| json!(auth));
    let (slurm_key, jwt_key) = own_keys(&name);
    let controller = Path::spec().field("controller");
    let mut origins = Vec::new();
    for (field, names, ours, origin) in [
        ("auth", vec!["auth"], auth, Path::spec().field("auth")),
        (
            "slurmKeyRef",
            vec!["slurmKeyRef"],
            Some(slurm_key),
            controller.field("slurmKeyRef"),
        ),
        (
            "jwtKeyRef",
            vec!["jwtKeyRef", "jwtHs256KeyRef"],
            Some(jwt_key),
            controller.field("jwtKeyRef"),
        ),
    ] {
        if names.iter().any(|name| part.fields.has(name)) {
            continue;
        }
        let inherited = names
            .iter()
            .find_map(|name| Some((controller.field(name), of_controller?.get(*name)?.clone())));
        let (origin, value) = match inherited {
            Some((origin, value)) => (origin, Some(value)),
            None => (origin, ours),
        };
        if let Some(value) = value {
            put(&mut defaults, &[field], value);
        }
        origins.push((Path::spec().field(field), origin));
    }
    if let Some(storage) = database::storage_config(cluster, part, report) {
        put(&mut defaults, &["storageConfig"], storage);
        origins.push((Path::spec().field("storageConfig"), database::field(part)));
    }
    let spec = over(defaults, written(&part.fields.values));
    let mut child = Child::new(name, Path::spec().field("accounting"), spec);
    child.origins = origins;
    Some(child)
}

pub(super) fn restapi(cluster: &SlurmCluster) -> Child<RestApi> {
    let name = cluster.name_any();
    let pods = Pods::of(cluster);
    let mut defaults = json!({
        CONTROLLER_REF: { "name": name },
        "slurmrestd": pods.container("slurmrestd"),
    });
    if let Some(template) = pods.template() {
        put(&mut defaults, &["template"], template);
    }
    let fields = cluster.spec.rest_api.clone().unwrap_or_default();
    Child::new(
        name,
        Path::spec().field("restApi"),
        over(defaults, written(&fields.values)),
    )
}

pub(super) fn loginsets(
    cluster: &SlurmCluster,
    around: &Around,
    report: &mut Report,
) -> Vec<Child<LoginSet>> {
    let pods = Pods::of(cluster);
    let mut children = Vec::new();
    for (key, fields) in &cluster.spec.login {
        let field = Path::spec().field("login").field(key);
        let mut defaults = json!({
            CONTROLLER_REF: { "name": cluster.name_any() },
            "login": pods.container("login"),
            "initconf": pods.container("login"),
            "template": { "spec": { "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } } } },
        });
        put(
            &mut defaults,
            &["login", "securityContext"],
            capabilities_of_login(&fields.values),
        );
        if let Some(template) = pods.template() {
            defaults = over(defaults, json!({ "template": template }));
        }
        if !fields.has("sssdConfRef") {
            put(&mut defaults, &["sssd"], json!({ "enabled": false }));
        }
        let mut spec = over(defaults, written(&fields.values));
        shared::mount(cluster, &mut spec, "login", around, &field, report);
        children.push(Child::new(
            format!("{}-login-{key}", cluster.name_any()),
            field,
            spec,
        ));
    }
    children
}

/// The host name of these workers, from which Slurm's names of the nodes, the feature and the partition derive.
pub(super) fn hostname(cluster: &SlurmCluster, key: &str) -> Value {
    let fields = cluster.spec.node_sets.get(key).map(|part| &part.fields.values);
    let defaults = json!({ "template": { "spec": { "hostname": format!("{key}-") } } });
    let spec = over(defaults, written(fields.unwrap_or(&Map::new())));
    let hostname = spec.pointer("/template/spec/hostname");
    hostname.cloned().unwrap_or_default()
}

pub(super) fn nodesets(cluster: &SlurmCluster, around: &Around, report: &mut Report) -> Vec<Child<NodeSet>> {
    let pods = Pods::of(cluster);
    let mut children = Vec::new();
    for (key, part) in &cluster.spec.node_sets {
        let field = Path::spec().field("nodeSets").field(key);
        let fields = &part.fields;
        let mut defaults = json!({
            CONTROLLER_REF: { "name": cluster.name_any() },
            "slurmd": pods.container("slurmd"),
            "logfile": pods.container("login"),
            "template": { "spec": {
                "hostname": hostname(cluster, key),
                "topologySpreadConstraints": [{
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": { "matchLabels": { label::CLUSTER: cluster.name_any() } },
                }],
            } },
        });
        if let Some(template) = pods.template() {
            defaults = over(defaults, json!({ "template": template }));
        }
        if !cluster.spec.confine_jobs {
            put(
                &mut defaults,
                &["slurmd", "securityContext"],
                unprivileged_slurmd(),
            );
        }
        let ssh = fields.values.get("ssh").and_then(Value::as_object);
        if ssh.is_some_and(|ssh| !ssh.contains_key("sssdConfRef")) {
            put(&mut defaults, &["ssh"], json!({ "sssd": { "enabled": false } }));
        }
        let mut spec = over(defaults, written(&fields.values));
        if let Some(gpu) = &part.gpu {
            gpu::add(&mut spec, gpu, &field, report);
        }
        shared::mount(cluster, &mut spec, "slurmd", around, &field, report);
        let mut child = Child::new(nodeset_name(cluster, key), field.clone(), spec);
        let template = fields.values.get("template");
        if template.is_none_or(|template| template.pointer("/spec/hostname").is_none()) {
            let hostname = Path::spec().field("template").field("spec").field("hostname");
            child.origins.push((hostname, field));
        }
        children.push(child);
    }
    children
}
