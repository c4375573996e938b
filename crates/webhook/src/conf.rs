//! Texts of the user's that end up in a file which Slurm or sshd reads: written here as the operator would write them,
//! to see what cannot be read and what would not be used. What a user writes is used or refused, never ignored.

use std::collections::{BTreeMap, BTreeSet};

use keelson_api::{
    Accounting, Controller,
    validate::{Path, Report},
    well_known::port,
};
use slurm_conf::{
    catalogue::File,
    hostlist::Hostlist,
    merge::{Error, Finding, FindingKind, Rendered},
    node_conf,
    slurm_conf::{
        AccountingHost, ControllerHost, ExternalSlurmConf, NodeSet, Partition, SlurmConf, render_external,
        render_read, unfit_select_type,
    },
    slurmdbd_conf::{self, SlurmdbdConf, Storage},
    sshd_config,
    syntax::{Document, Statement, parse, parse_pairs},
    topology,
    value::{encode_name, encode_nodeset_name, encode_partition_name},
    vocabulary::{self, Note},
};

use crate::{
    around::{Around, Lookup},
    judge::{refuse, warn},
};

/// Attributes and records whose value is a list of hosts.
const HOST_LISTS: [(&str, Option<&str>); 5] = [
    ("NodeName", None),
    ("DownNodes", None),
    ("FrontendName", None),
    ("NodeSet", Some("Nodes")),
    ("PartitionName", Some("Nodes")),
];

/// The user's part of slurm.conf.
pub fn slurm_conf(controller: &Controller, around: &Around, report: &mut Report) {
    let path = Path::spec().field("extraConf");
    let extra_conf = controller.spec.extra_conf.as_deref().unwrap_or_default();
    // A wrong name is refused by itself; here it would only hide the rest.
    let cluster_name = controller.cluster_name();
    if extra_conf.trim().is_empty() || encode_name(&cluster_name).is_err() {
        return;
    }
    let files = included_files(controller, around);
    let document = match parse(File::Slurm, extra_conf, &files) {
        Ok(document) => document,
        Err(problems) => return judge(&path, Err(Error::Unreadable(problems)), report),
    };
    let rendered = if controller.spec.external {
        render_external(&ExternalSlurmConf {
            cluster_name,
            host: "elsewhere".into(),
            port: port::SLURMCTLD,
            accounting: None,
            extra_conf: extra_conf.to_owned(),
        })
    } else {
        render_read(&filled_in(controller, cluster_name, around), &document)
    };
    judge(&path, rendered, report);
    words(&path, &vocabulary::notes(File::Slurm, &document), report);
    host_lists(&path, &document, report);
    includes(&path, &document, report);
    if !controller.spec.external {
        topology_file(&path, &document, &files, report);
        if let Some(line) = unfit_select_type(&document) {
            let origin = line.origin.as_ref().map(ToString::to_string).unwrap_or_default();
            refuse(
                report,
                &path,
                format!(
                    "{origin}: SelectType={}: workers register by themselves, which Slurm allows with select/cons_tres alone",
                    line.head.value
                ),
                "leave SelectType out",
            );
        }
    }
}

/// What the operator would write around the user's text.
fn filled_in(controller: &Controller, cluster_name: String, around: &Around) -> SlurmConf {
    SlurmConf {
        cluster_name,
        hosts: (0..controller.replicas())
            .map(|ordinal| ControllerHost {
                name: controller.pod_name(ordinal),
                address: Some(controller.pod_fqdn(ordinal)),
            })
            .collect(),
        slurmctld_port: port::SLURMCTLD,
        slurmd_port: port::SLURMD,
        service_address: Some(controller.service_fqdn()),
        jwks: controller.spec.jwks_key_ref.is_some(),
        accounting: controller.spec.accounting_ref.as_ref().map(|_| AccountingHost {
            host: "accounting".into(),
            port: port::SLURMDBD,
            backup_host: None,
        }),
        metrics: controller.spec.metrics_enabled(),
        nodesets: nodesets(controller, around),
        ..SlurmConf::default()
    }
}

fn nodesets(controller: &Controller, around: &Around) -> Vec<NodeSet> {
    let own = controller.metadata.name.as_deref().unwrap_or_default();
    let own = around
        .nodesets
        .iter()
        .filter(|nodeset| nodeset.spec.controller_ref.name == own);
    // Two of one name are those two's fault; the file would have what either of them brings.
    let mut partitions: BTreeMap<String, bool> = BTreeMap::new();
    for nodeset in own {
        let enabled = nodeset
            .spec
            .partition
            .as_ref()
            .is_some_and(|partition| partition.enabled);
        *partitions.entry(nodeset.slurm_name()).or_default() |= enabled;
    }
    partitions
        .into_iter()
        // A name that cannot be one is its NodeSet's fault.
        .filter(|(name, enabled)| {
            encode_nodeset_name(name).is_ok() && (!enabled || encode_partition_name(name).is_ok())
        })
        .map(|(name, enabled)| NodeSet {
            feature: name.clone(),
            name,
            // What stands on its line is judged with the NodeSet.
            partition: enabled.then(Partition::default),
        })
        .collect()
}

/// Files that slurm.conf includes, by one of the user's lines or by a file that it includes.
pub fn included_names(controller: &Controller, around: &Around) -> BTreeSet<String> {
    let files = included_files(controller, around);
    let mut texts = vec![controller.spec.extra_conf.as_deref().unwrap_or_default()];
    let mut names = BTreeSet::new();
    while let Some(text) = texts.pop() {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let includes = words
                .next()
                .is_some_and(|word| word.eq_ignore_ascii_case("Include"));
            let Some(name) = words.next().filter(|_| includes) else {
                continue;
            };
            if names.insert(name.to_owned()) {
                texts.extend(files.get(name).map(String::as_str));
            }
        }
    }
    names
}

/// Files that `Include` may name: those beside slurm.conf.
fn included_files(controller: &Controller, around: &Around) -> BTreeMap<String, String> {
    let references = controller.spec.config_file_refs.iter().flatten();
    references
        .filter_map(|reference| match around.config_map(&reference.name) {
            Lookup::Found(files) => Some(files.clone()),
            Lookup::Missing | Lookup::Unknown | Lookup::Impossible => None,
        })
        .flatten()
        .collect()
}

/// The user's part of slurmdbd.conf.
pub fn slurmdbd_conf(accounting: &Accounting, report: &mut Report) {
    let extra_conf = accounting.spec.extra_conf.clone().unwrap_or_default();
    if extra_conf.trim().is_empty() || accounting.spec.external {
        return;
    }
    let rendered = slurmdbd_conf::render(&SlurmdbdConf {
        host: "slurmdbd".into(),
        port: port::SLURMDBD,
        jwks: accounting.spec.jwks_key_ref.is_some(),
        // Its fields are refused by themselves if they are wrong.
        storage: Storage {
            host: "database".into(),
            port: port::STORAGE,
            database: "database".into(),
            user: None,
            password: None,
        },
        extra_conf: extra_conf.clone(),
    });
    let path = Path::spec().field("extraConf");
    judge(&path, rendered, report);
    let Ok(document) = parse(File::Slurmdbd, &extra_conf, &BTreeMap::new()) else {
        return;
    };
    words(&path, &vocabulary::notes(File::Slurmdbd, &document), report);
    for (key, field) in [
        ("StorageHost", "host"),
        ("StoragePort", "port"),
        ("StorageLoc", "database"),
        ("StorageUser", "username"),
    ] {
        if document.get(key).is_some() {
            warn(
                report,
                &path,
                format!("{key} takes the place of storageConfig.{field}: write it there"),
            );
        }
    }
    if document.get("StoragePass").is_some() {
        warn(
            report,
            &path,
            "StoragePass stands in the open here; storageConfig.passwordKeyRef takes it from a Secret",
        );
    }
}

/// The user's part of `sshd_config`.
pub fn sshd(path: &Path, role: sshd_config::Role, extra: Option<&str>, report: &mut Report) {
    judge(path, sshd_config::render(role, extra.unwrap_or_default()), report);
}

/// What workers register with.
pub fn node_parameters(path: &Path, extra_conf: &str, report: &mut Report) {
    match node_conf::parse(extra_conf) {
        Ok(conf) => {
            for note in conf.notes {
                warn(report, path, note.to_string());
            }
        }
        Err(faults) => {
            for fault in faults {
                refuse(report, path, fault.to_string(), fault.remedy());
            }
        }
    }
}

/// The rest of a partition's line.
pub fn partition_config(path: &Path, config: &str, report: &mut Report) {
    match parse_pairs(config) {
        Err(error) => refuse(
            report,
            path,
            error.to_string(),
            "write Key=Value pairs with blanks between them, such as MaxTime=UNLIMITED State=UP",
        ),
        Ok(attributes) => {
            words(path, &vocabulary::partition_notes(&attributes), report);
            let mut line = Statement::new("PartitionName", "partition");
            line.attributes = attributes;
            host_list(path, &line, "", report);
        }
    }
}

fn judge(path: &Path, rendered: Result<Rendered, Error>, report: &mut Report) {
    match rendered {
        Ok(Rendered { findings, .. }) => {
            for finding in findings {
                judge_finding(path, &finding, report);
            }
        }
        Err(Error::Unreadable(problems)) => {
            for problem in problems {
                refuse(
                    report,
                    path,
                    problem.to_string(),
                    "write one parameter a line as the manual has it",
                );
            }
        }
        Err(Error::Repeated {
            key,
            name,
            first,
            second,
        }) => refuse(
            report,
            path,
            format!("{second}: {key}={name} repeats {first}, and slurmctld would not start"),
            "leave one of them out",
        ),
        Err(
            error @ (Error::Value { .. }
            | Error::Twice { .. }
            | Error::PartitionConfig { .. }
            | Error::Topology { .. }),
        ) => {
            refuse(
                report,
                path,
                error.to_string(),
                "write it so that Slurm can read it back",
            );
        }
    }
}

fn judge_finding(path: &Path, finding: &Finding, report: &mut Report) {
    let text = finding.to_string();
    match &finding.kind {
        FindingKind::Required { .. } | FindingKind::Refused { .. } => {
            refuse(report, path, text, format!("leave {} out", finding.key));
        }
        FindingKind::NameTaken { .. } => refuse(
            report,
            path,
            text,
            format!(
                "give this {} another name, or put what it says into the NodeSet",
                finding.key
            ),
        ),
        FindingKind::Superseded { .. } => warn(report, path, text),
    }
}

/// A newer Slurm may know more than we do, so these are no reasons to refuse.
fn words(path: &Path, notes: &[Note], report: &mut Report) {
    for note in notes {
        warn(report, path, note.to_string());
    }
}

fn host_lists(path: &Path, document: &Document, report: &mut Report) {
    for statement in &document.statements {
        let origin = statement
            .origin
            .as_ref()
            .map(|origin| format!("{origin}: "))
            .unwrap_or_default();
        host_list(path, statement, &origin, report);
    }
}

fn host_list(path: &Path, statement: &Statement, origin: &str, report: &mut Report) {
    for (key, attribute) in HOST_LISTS {
        if !statement.head.is(key) {
            continue;
        }
        let (name, value) = match attribute {
            Some(attribute) => (attribute, statement.attribute(attribute)),
            None => (key, Some(statement.head.value.as_str())),
        };
        if let Some(error) = value.and_then(|value| value.parse::<Hostlist>().err()) {
            refuse(
                report,
                path,
                format!("{origin}{name} is no host list: {error}"),
                "write names such as gpu-[0-3,7],login1",
            );
        }
    }
}

fn topology_file(path: &Path, document: &Document, files: &BTreeMap<String, String>, report: &mut Report) {
    if let Some((plugin, needed)) = topology::plugin_without_file(document, |file| files.contains_key(file)) {
        let origin = plugin
            .origin
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        warn(
            report,
            path,
            format!(
                "{origin}: TopologyPlugin={} needs {}, and no ConfigMap of configFileRefs has it; the configuration waits until \
                 one has it",
                plugin.head.value,
                needed.join(" or ")
            ),
        );
    }
}

fn includes(path: &Path, document: &Document, report: &mut Report) {
    for (origin, file) in &document.includes {
        if !file.starts_with('/') {
            warn(
                report,
                path,
                format!(
                    "{origin}: no ConfigMap of configFileRefs has the file {file}; the configuration waits until one has it"
                ),
            );
        }
    }
}
