//! Texts of the user's that end up in a file which Slurm or sshd reads: written here as the operator would write them,
//! to see what cannot be read and what would not be used. What a user writes is used or refused, never ignored.

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
    precheck::{self, Flaw},
    slurm_conf::{
        AccountingHost, ExternalSlurmConf, NodeSet, Partition, SlurmConf, render_external, render_read,
    },
    slurmdbd_conf::{self, SlurmdbdConf, Storage},
    sshd_config,
    syntax::{Document, Statement, parse, parse_pairs},
    value::{encode_name, encode_nodeset_name, encode_partition_name},
    vocabulary::{self, Note},
};

use crate::{
    namespace_snapshot::NamespaceSnapshot,
    validate::{refuse, warn},
};

/// The user's part of slurm.conf. Files that it includes are not known here: the operator judges them.
pub fn slurm_conf(controller: &Controller, snapshot: &NamespaceSnapshot, report: &mut Report) {
    let path = Path::spec().field("extraConf");
    let extra_conf = controller.spec.extra_conf.as_deref().unwrap_or_default();
    // A wrong name is refused by itself; here it would only hide the rest.
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
            accounting: None,
            extra_conf: extra_conf.to_owned(),
        })
    } else {
        render_read(&conf, &document)
    };
    report_rendered(&path, rendered, report);
    words(
        &path,
        &vocabulary::notes(File::Slurm, &document),
        snapshot,
        report,
    );
    for flaw in precheck::flaws(&document) {
        // Where slurmctld runs elsewhere, its workers are none of ours.
        if !(controller.spec.external && matches!(flaw, Flaw::SelectType { .. })) {
            refuse(report, &path, flaw.to_string(), flaw.remedy());
        }
    }
    missing_files(controller, &path, &document, snapshot, report);
}

/// What the operator would write around the user's text.
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

/// Two of one name are those two's fault, and so is a name that cannot be one: the file has what either of them brings.
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
            // What stands on its line is judged with the NodeSet.
            partition: enabled.then(Partition::default),
        })
        .collect()
}

/// With no ConfigMap of files at all, none can have what is missing. Whether one that is named has it, the operator says.
fn missing_files(
    controller: &Controller,
    path: &Path,
    document: &Document,
    snapshot: &NamespaceSnapshot,
    report: &mut Report,
) {
    let any = |list: &Option<Vec<_>>| list.as_ref().is_some_and(|list| !list.is_empty());
    if controller.spec.external || any(&controller.spec.config_file_refs) {
        return;
    }
    for missing in precheck::missing_files(document, |file| file.starts_with('/')) {
        let origin = missing.origin().map(ToString::to_string).unwrap_or_default();
        let problem = format!("{origin}: {missing}, and configFileRefs is empty");
        if snapshot.strict {
            let remedy = "name a ConfigMap that has the file in configFileRefs";
            refuse(report, path, problem, remedy);
        } else {
            let waits = "the configuration waits until a ConfigMap there has the file";
            warn(report, path, format!("{problem}; {waits}"));
        }
    }
}

/// The user's part of slurmdbd.conf.
pub fn slurmdbd_conf(accounting: &Accounting, snapshot: &NamespaceSnapshot, report: &mut Report) {
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
    report_rendered(path, sshd_config::render(role, extra.unwrap_or_default()), report);
}

/// What workers register with.
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

/// The rest of a partition's line.
pub fn partition_config(path: &Path, config: &str, snapshot: &NamespaceSnapshot, report: &mut Report) {
    match parse_pairs(config) {
        Err(error) => refuse(
            report,
            path,
            error.to_string(),
            "write Key=Value pairs with blanks between them, such as MaxTime=UNLIMITED State=UP",
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
            format!(
                "give this {} another name, or put what it says into the NodeSet",
                finding.key
            ),
        ),
        FindingKind::Superseded { .. } => warn(report, path, text),
    }
}

fn words(path: &Path, notes: &[Note], snapshot: &NamespaceSnapshot, report: &mut Report) {
    for note in notes {
        unknown_to_us(path, note, snapshot, report);
    }
}

/// What the Slurm that we know would refuse. A newer one may know more than we do, so this is a reason to refuse only where the
/// administrator said so.
fn unknown_to_us(
    path: &Path,
    note: &impl std::fmt::Display,
    snapshot: &NamespaceSnapshot,
    report: &mut Report,
) {
    if snapshot.strict {
        let remedy = "correct it; if your Slurm knows it, set webhook.strictConfiguration=false in the chart slurm-operator";
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

    /// How often a text is the reason of a refusal and of a warning.
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
        assert_eq!(told(&report, "there twice"), (0, 1), "{report:?}");
    }
}
