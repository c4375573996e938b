//! User text that goes into configuration files of Slurm or sshd. Renders the files as the operator does, to find what
//! cannot be parsed and what would not be used. A setting is used or rejected, never ignored.

use std::collections::BTreeMap;

use keelson_api::{
    Accounting, Controller, assemble,
    validate::{Path, Report},
    well_known::port,
};
use slurm_conf::{
    catalogue::File,
    merge::{Error, Finding, FindingKind, Rendered},
    node_conf,
    precheck::{self, Flaw, MissingFile},
    slurm_conf::{
        AccountingHost, ExternalSlurmConf, NodeSet, Partition, SlurmConf, render_external, render_read,
    },
    slurmdbd_conf::{self, SlurmdbdConf, Storage},
    sshd_config,
    syntax::{Statement, parse, parse_pairs},
    value::{encode_name, encode_nodeset_name, encode_partition_name},
    vocabulary::{self, Note},
};

use crate::{
    namespace_snapshot::NamespaceSnapshot,
    validate::{refuse, warn},
};

/// Checks the user's part of slurm.conf. The operator checks included files, which the webhook cannot read.
pub fn slurm_conf(controller: &Controller, snapshot: &NamespaceSnapshot, report: &mut Report) {
    let path = Path::spec().field("extraConf");
    let extra_conf = controller.spec.extra_conf.as_deref().unwrap_or_default();
    // An invalid name is rejected elsewhere; here it would only hide other errors.
    let cluster_name = controller.cluster_name();
    if extra_conf.trim().is_empty() || encode_name(&cluster_name).is_err() {
        return;
    }
    let conf = assembled(controller, snapshot);
    let document = match parse(File::Slurm, &conf.extra_conf, &BTreeMap::new()) {
        Ok(document) => document,
        Err(problems) => return report_rendered(&path, Err(Error::Unreadable(problems)), report),
    };
    let rendered = if controller.spec.external {
        render_external(&ExternalSlurmConf {
            cluster_name,
            host: "elsewhere".into(),
            port: port::SLURMCTLD,
            auth: conf.auth,
            accounting: None,
            extra_conf: extra_conf.to_owned(),
        })
    } else {
        render_read(&conf, &document)
    };
    report_rendered(&path, rendered, report);
    let checked = precheck::check(&document, |file| {
        file.starts_with('/') || may_have_files(controller)
    });
    words(&path, &checked.notes, snapshot, report);
    for flaw in checked.flaws {
        // Workers of an external slurmctld are not managed by the operator.
        if !(controller.spec.external && matches!(flaw, Flaw::SelectType { .. })) {
            refuse(report, &path, flaw.to_string(), flaw.remedy());
        }
    }
    missing_files(&path, &checked.missing_files, snapshot, report);
}

/// Reports whether a ConfigMap could have a file. The operator checks whether it does.
fn may_have_files(controller: &Controller) -> bool {
    let any = |list: &Option<Vec<_>>| list.as_ref().is_some_and(|list| !list.is_empty());
    controller.spec.external || any(&controller.spec.config_file_refs)
}

/// The slurm.conf that the operator would render.
fn assembled(controller: &Controller, snapshot: &NamespaceSnapshot) -> SlurmConf {
    let own = controller.metadata.name.as_deref().unwrap_or_default();
    let own = snapshot
        .nodesets
        .iter()
        .map(AsRef::as_ref)
        .filter(|nodeset| nodeset.spec.controller_ref.name == own);
    let accounting = controller.spec.accounting_ref.as_ref().map(|_| AccountingHost {
        host: "accounting".into(),
        port: port::SLURMDBD,
        backup_host: None,
    });
    let mut conf = assemble::slurm_conf(controller, accounting, own);
    conf.nodesets = distinct(conf.nodesets);
    conf
}

/// Merges NodeSets of the same name and drops invalid names: both errors are reported on the NodeSets themselves.
fn distinct(nodesets: Vec<NodeSet>) -> Vec<NodeSet> {
    let mut partitions: BTreeMap<String, bool> = BTreeMap::new();
    for NodeSet { name, partition, .. } in nodesets {
        *partitions.entry(name).or_default() |= partition.is_some();
    }
    partitions
        .into_iter()
        .filter(|(name, enabled)| {
            encode_nodeset_name(name).is_ok() && (!enabled || encode_partition_name(name).is_ok())
        })
        .map(|(name, enabled)| NodeSet {
            feature: name.clone(),
            name,
            // The options of the partition are checked with the NodeSet.
            partition: enabled.then(Partition::default),
        })
        .collect()
}

fn missing_files(path: &Path, missing: &[MissingFile], snapshot: &NamespaceSnapshot, report: &mut Report) {
    for missing in missing {
        let origin = missing.origin().map(ToString::to_string).unwrap_or_default();
        let problem = format!("{origin}: {missing}, and configFileRefs is empty");
        if snapshot.strict {
            let remedy = "add a ConfigMap with the file to configFileRefs";
            refuse(report, path, problem, remedy);
        } else {
            let waits = "the operator does not apply the configuration until a ConfigMap in configFileRefs has the file";
            warn(report, path, format!("{problem}; {waits}"));
        }
    }
}

/// Checks the user's part of slurmdbd.conf.
pub fn slurmdbd_conf(accounting: &Accounting, snapshot: &NamespaceSnapshot, report: &mut Report) {
    let extra_conf = accounting.spec.extra_conf.clone().unwrap_or_default();
    if extra_conf.trim().is_empty() || accounting.spec.external {
        return;
    }
    let storage = accounting.spec.storage_config.as_ref();
    let rendered = slurmdbd_conf::render(&SlurmdbdConf {
        host: "slurmdbd".into(),
        port: port::SLURMDBD,
        auth: accounting.spec.auth_type(),
        jwks: accounting.spec.jwks_key_ref.is_some(),
        // Invalid fields are rejected elsewhere.
        storage: Storage {
            host: "database".into(),
            port: port::STORAGE,
            database: "database".into(),
            user: None,
            password: None,
            tls: storage.and_then(assemble::storage_tls),
        },
        extra_conf: extra_conf.clone(),
    });
    let path = Path::spec().field("extraConf");
    report_rendered(&path, rendered, report);
    let Ok(document) = parse(File::Slurmdbd, &extra_conf, &BTreeMap::new()) else {
        return;
    };
    words(
        &path,
        &vocabulary::notes(File::Slurmdbd, &document),
        snapshot,
        report,
    );
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
                format!("{key} overrides storageConfig.{field}; set that field instead"),
            );
        }
    }
    if document.get("StoragePass").is_some() {
        warn(
            report,
            &path,
            "StoragePass is stored in plain text; use storageConfig.passwordKeyRef",
        );
    }
}

/// Checks the user's part of `sshd_config`.
pub fn sshd(path: &Path, role: sshd_config::Role, extra: Option<&str>, report: &mut Report) {
    report_rendered(path, sshd_config::render(role, extra.unwrap_or_default()), report);
}

/// Checks the node parameters that workers register with.
pub fn node_parameters(path: &Path, extra_conf: &str, snapshot: &NamespaceSnapshot, report: &mut Report) {
    match node_conf::parse(extra_conf) {
        Ok(conf) => {
            for note in conf.notes {
                match note {
                    node_conf::Note::Unknown(_) => unknown_to_us(path, &note, snapshot, report),
                    node_conf::Note::Joined(_) | node_conf::Note::NoFeatures(_) => {
                        warn(report, path, note.to_string());
                    }
                }
            }
        }
        Err(faults) => {
            for fault in faults {
                refuse(report, path, fault.to_string(), fault.remedy());
            }
        }
    }
}

/// Checks the options of a partition.
pub fn partition_config(path: &Path, config: &str, snapshot: &NamespaceSnapshot, report: &mut Report) {
    match parse_pairs(config) {
        Err(error) => refuse(
            report,
            path,
            error.to_string(),
            "write Key=Value pairs separated by spaces, such as MaxTime=UNLIMITED State=UP",
        ),
        Ok(attributes) => {
            words(path, &vocabulary::partition_notes(&attributes), snapshot, report);
            let mut line = Statement::new("PartitionName", "partition");
            line.attributes = attributes;
            for flaw in precheck::host_lists(&line) {
                refuse(report, path, flaw.to_string(), flaw.remedy());
            }
        }
    }
}

fn report_rendered(path: &Path, rendered: Result<Rendered, Error>, report: &mut Report) {
    match rendered {
        Ok(Rendered { findings, .. }) => {
            for finding in findings {
                report_finding(path, &finding, report);
            }
        }
        Err(Error::Unreadable(problems)) => {
            for problem in problems {
                refuse(
                    report,
                    path,
                    problem.to_string(),
                    "write one parameter per line, as described in the manual",
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
            format!("{second}: {key}={name} is already defined at {first}, and slurmctld would not start"),
            "remove one of them",
        ),
        Err(error @ (Error::Value { .. } | Error::Twice { .. } | Error::PartitionConfig { .. })) => {
            refuse(
                report,
                path,
                error.to_string(),
                "use a value that Slurm can parse",
            );
        }
    }
}

fn report_finding(path: &Path, finding: &Finding, report: &mut Report) {
    let text = finding.to_string();
    match &finding.kind {
        FindingKind::Required { .. } | FindingKind::Refused { .. } => {
            refuse(report, path, text, format!("leave {} out", finding.key));
        }
        FindingKind::NameTaken { .. } => refuse(
            report,
            path,
            text,
            format!("rename this {}, or move its settings to the NodeSet", finding.key),
        ),
        FindingKind::Superseded { .. } => warn(report, path, text),
    }
}

fn words(path: &Path, notes: &[Note], snapshot: &NamespaceSnapshot, report: &mut Report) {
    for note in notes {
        unknown_to_us(path, note, snapshot, report);
    }
}

/// Reports something that the known Slurm releases would reject. A newer release may accept it, so this is an error only if
/// the administrator enabled strict configuration.
fn unknown_to_us(
    path: &Path,
    note: &impl std::fmt::Display,
    snapshot: &NamespaceSnapshot,
    report: &mut Report,
) {
    if snapshot.strict {
        let remedy = "correct it; if your Slurm release supports it, set webhook.strictConfiguration=false in the chart slurm-operator";
        refuse(report, path, note.to_string(), remedy);
    } else {
        warn(report, path, note.to_string());
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::review::{Kind, Operation, Request};
    use crate::validate::validate_any;

    fn review(kind: &str, strict: bool, old: Option<Value>, spec: Value) -> Report {
        let object = |spec| json!({ "metadata": { "name": "n" }, "spec": spec });
        let request = Request {
            uid: "u".into(),
            operation: if old.is_some() {
                Operation::Update
            } else {
                Operation::Create
            },
            kind: Kind {
                group: "slinky.slurm.net".into(),
                kind: kind.into(),
            },
            name: "n".into(),
            namespace: "ns".into(),
            sub_resource: String::new(),
            object: Some(object(spec)),
            old_object: old.map(object),
        };
        let snapshot = NamespaceSnapshot {
            strict,
            ..NamespaceSnapshot::default()
        };
        validate_any(&request, &snapshot).report
    }

    /// How many errors and how many warnings contain a text.
    fn told(report: &Report, text: &str) -> (usize, usize) {
        let refused = report
            .violations
            .iter()
            .filter(|found| found.problem.contains(text));
        let warned = report.warnings.iter().filter(|found| found.text.contains(text));
        (refused.count(), warned.count())
    }

    fn nodeset(more: Value) -> Value {
        let mut spec = json!({ "controllerRef": { "name": "c" }, "slurmd": { "image": "i" } });
        if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
            spec.extend(more);
        }
        spec
    }

    #[rstest]
    #[case::unknown("Controller", json!({ "extraConf": "NoSuchParameter=1" }), "NoSuchParameter")]
    #[case::unreadable("Controller", json!({ "extraConf": "MinJobAge=soon" }), "MinJobAge=soon")]
    #[case::include("Controller", json!({ "extraConf": "Include gpus.conf" }), "gpus.conf")]
    #[case::slurmdbd("Accounting", json!({ "extraConf": "NoSuchParameter=1" }), "NoSuchParameter")]
    #[case::partition("NodeSet", nodeset(json!({ "partition": { "config": "MaxTime=forever" } })), "MaxTime=forever")]
    #[case::worker("NodeSet", nodeset(json!({ "extraConf": "NoSuchParameter=1" })), "NoSuchParameter")]
    fn what_slurm_would_refuse_is_refused_where_the_administrator_said_so(
        #[case] kind: &str,
        #[case] spec: Value,
        #[case] text: &str,
    ) {
        let lenient = review(kind, false, None, spec.clone());
        assert_eq!(told(&lenient, text), (0, 1), "{lenient:?}");
        let strict = review(kind, true, None, spec);
        assert_eq!(told(&strict, text), (1, 0), "{strict:?}");
    }

    #[test]
    fn what_was_there_before_it_was_refused_holds_up_no_other_change() {
        let conf = |text: &str, cluster: &str| json!({ "extraConf": text, "clusterName": cluster });
        let old = || Some(conf("NoSuchParameter=1", "a"));
        let other = review("Controller", true, old(), conf("NoSuchParameter=1", "b"));
        assert_eq!(told(&other, "NoSuchParameter").0, 0, "{other:?}");
        let same = review(
            "Controller",
            true,
            old(),
            conf("NoSuchParameter=1\nMinJobAge=7", "a"),
        );
        assert_eq!(told(&same, "NoSuchParameter").0, 1, "{same:?}");
    }

    #[test]
    fn what_works_but_is_probably_not_meant_is_warned_of_in_any_case() {
        let report = review(
            "NodeSet",
            true,
            None,
            nodeset(json!({ "extraConf": "Gres=gpu:1 Gres=x:1" })),
        );
        assert_eq!(told(&report, "set twice"), (0, 1), "{report:?}");
    }
}
