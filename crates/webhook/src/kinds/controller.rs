//! Controller: the `ConfigMap`s and the claim that it names, its neighbours, and what it adds to slurm.conf.

use std::collections::BTreeMap;

use keelson_api::{
    Controller,
    controller::ClaimPolicy,
    references::LocalObjectReference,
    validate::{Path, Report, config_file_keys, ha_claim},
    well_known::{file, volume},
};
use kube::ResourceExt as _;

use crate::{
    around::{Around, Lookup, Needs, is_object_name, listed},
    conf,
    judge::{Rules, refuse, warn},
};

impl Rules for Controller {
    const KIND: &'static str = "controller";
    /// StatefulSet `<name>-controller`, whose pods carry a label of that name and a hash of ten characters.
    const NAME_MAX: Option<usize> = Some(63 - "-controller".len() - "-0123456789".len());

    fn services(&self) -> Vec<String> {
        if self.spec.external {
            return vec![self.workers_service_name()];
        }
        vec![
            self.controller_name(),
            self.internal_service_name(),
            self.workers_service_name(),
        ]
    }

    fn needs(&self) -> Needs {
        let lists = script_refs(self).into_iter().map(|(_, list)| list);
        let config_maps = lists
            .chain([&self.spec.config_file_refs])
            .flatten()
            .flatten()
            .map(|reference| reference.name.clone())
            .chain(self.spec.jwks_key_ref.iter().map(|key| key.name.clone()))
            .filter(|name| !name.is_empty())
            .collect();
        Needs {
            config_maps,
            claims: self
                .spec
                .existing_claim()
                .map(str::to_owned)
                .into_iter()
                .collect(),
        }
    }

    fn beside(&self, around: &Around, report: &mut Report) {
        config_files(self, around, report);
        scripts(self, around, report);
        shared_files(self, around, report);
        jwks(self, around, report);
        claim(self, around, report);
        accounting(self, around, report);
        conf::slurm_conf(self, around, report);
    }

    fn on_delete(&self, around: &Around) -> Vec<String> {
        let name = self.name_any();
        let mut notes = Vec::new();
        let nodesets: Vec<_> = around
            .nodesets
            .iter()
            .filter(|n| n.spec.controller_ref.name == name)
            .collect();
        let loginsets: Vec<_> = around
            .loginsets
            .iter()
            .filter(|l| l.spec.controller_ref.name == name)
            .collect();
        for (what, count, names) in [
            ("NodeSets", nodesets.len(), listed(&nodesets)),
            ("LoginSets", loginsets.len(), listed(&loginsets)),
        ] {
            if count > 0 {
                notes.push(format!(
                    "Controller {name} stays until the {what} that use it are deleted too: {names}"
                ));
            }
        }
        if self.spec.persistence_enabled()
            && self.spec.existing_claim().is_none()
            && self.spec.claim_deletion_policy() == ClaimPolicy::Delete
        {
            notes.push(format!(
                "slurmctld's saved state goes with Controller {name}: persistence.deletionPolicy is Delete"
            ));
        }
        notes
    }
}

fn script_refs(controller: &Controller) -> [(&'static str, &Option<Vec<LocalObjectReference>>); 4] {
    let spec = &controller.spec;
    [
        ("prologScriptRefs", &spec.prolog_script_refs),
        ("epilogScriptRefs", &spec.epilog_script_refs),
        ("prologSlurmctldScriptRefs", &spec.prolog_slurmctld_script_refs),
        ("epilogSlurmctldScriptRefs", &spec.epilog_slurmctld_script_refs),
    ]
}

fn config_files(controller: &Controller, around: &Around, report: &mut Report) {
    let path = Path::spec().field("configFileRefs");
    for (index, reference) in controller.spec.config_file_refs.iter().flatten().enumerate() {
        if reference.name.is_empty() {
            continue;
        }
        match around.config_map(&reference.name) {
            Lookup::Found(files) => {
                let included = conf::included_names(controller, around);
                let alone = files.keys().map(String::as_str);
                let alone = alone.filter(|file| !included.contains(*file));
                report.extend(config_file_keys(index, reference, alone));
                keys(&path.index(index), controller, &reference.name, files, report);
            }
            Lookup::Missing => refuse(
                report,
                &path.index(index).field("name"),
                format!("there is no ConfigMap {:?} in this namespace", reference.name),
                "create it first, or leave the reference out",
            ),
            Lookup::Unknown => unchecked(&path.index(index), &reference.name, report),
            Lookup::Impossible => {}
        }
    }
}

/// The operator mounts keys of its own beside these files.
fn keys(
    path: &Path,
    controller: &Controller,
    map: &str,
    files: &BTreeMap<String, String>,
    report: &mut Report,
) {
    let jwks = controller.spec.jwks_key_ref.is_some().then_some(file::JWKS);
    for key in [Some(file::SLURM_KEY), Some(file::JWT_KEY), jwks]
        .into_iter()
        .flatten()
    {
        if files.contains_key(key) {
            refuse(
                report,
                path,
                format!("ConfigMap {map:?} has the key {key:?}, a file that comes from the cluster's key"),
                "remove it from the ConfigMap: keys belong into Secrets",
            );
        }
    }
}

fn scripts(controller: &Controller, around: &Around, report: &mut Report) {
    for (field, references) in script_refs(controller) {
        for (index, reference) in references.iter().flatten().enumerate() {
            let path = Path::spec().field(field).index(index);
            match around.config_map(&reference.name) {
                Lookup::Found(files) if files.is_empty() => {
                    warn(
                        report,
                        &path,
                        format!("ConfigMap {:?} holds no script", reference.name),
                    );
                }
                Lookup::Found(_) | Lookup::Impossible => {}
                Lookup::Missing => warn(
                    report,
                    &path,
                    format!(
                        "there is no ConfigMap {:?} yet; slurmctld keeps its configuration until there is",
                        reference.name
                    ),
                ),
                Lookup::Unknown => unchecked(&path, &reference.name, report),
            }
        }
    }
}

/// All files lie in one directory, so that of two with one name only one is there.
fn shared_files(controller: &Controller, around: &Around, report: &mut Report) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    let lists = [("configFileRefs", &controller.spec.config_file_refs)];
    for (field, references) in lists.into_iter().chain(script_refs(controller)) {
        for (index, reference) in references.iter().flatten().enumerate() {
            let Lookup::Found(files) = around.config_map(&reference.name) else {
                continue;
            };
            for name in files.keys() {
                let owner = owners.entry(name).or_insert(&reference.name);
                if *owner != reference.name {
                    warn(
                        report,
                        &Path::spec().field(field).index(index),
                        format!(
                            "{name:?} is in ConfigMap {owner:?} and in {:?}; only one of them is used",
                            reference.name
                        ),
                    );
                }
            }
        }
    }
}

fn jwks(controller: &Controller, around: &Around, report: &mut Report) {
    let Some(reference) = &controller.spec.jwks_key_ref else {
        return;
    };
    let path = Path::spec().field("jwksKeyRef");
    match around.config_map(&reference.name) {
        Lookup::Impossible => {}
        Lookup::Found(files) if files.contains_key(&reference.key) => {}
        Lookup::Found(_) => warn(
            report,
            &path.field("key"),
            format!(
                "ConfigMap {:?} has no key {:?}; slurmctld does not start without it",
                reference.name, reference.key
            ),
        ),
        Lookup::Missing => warn(
            report,
            &path.field("name"),
            format!(
                "there is no ConfigMap {:?} yet; slurmctld does not start without it",
                reference.name
            ),
        ),
        Lookup::Unknown => unchecked(&path, &reference.name, report),
    }
}

fn claim(controller: &Controller, around: &Around, report: &mut Report) {
    let Some(claim) = controller
        .spec
        .existing_claim()
        .filter(|_| !controller.spec.external)
    else {
        return;
    };
    let path = Path::spec().field("persistence").field("existingClaim");
    match around.claim(claim) {
        Lookup::Found(modes) if controller.spec.ha_enabled() => report.extend(ha_claim(claim, modes)),
        Lookup::Found(_) | Lookup::Unknown | Lookup::Impossible => {}
        Lookup::Missing => warn(
            report,
            &path,
            format!("there is no PersistentVolumeClaim {claim:?} yet; slurmctld waits for it"),
        ),
    }
    let other = others(controller, around).find(|other| keeps_state_in(other, claim));
    if let Some(other) = other {
        refuse(
            report,
            &path,
            format!(
                "Controller {:?} keeps its state in {claim:?} too; they would destroy each other's",
                other.name_any()
            ),
            "give each Controller a claim of its own",
        );
    }
}

/// Whether a claim is the one that a Controller names, or the one that is made for it.
fn keeps_state_in(controller: &Controller, claim: &str) -> bool {
    if controller.spec.external {
        return false;
    }
    let made = || format!("{}-{}", volume::STATESAVE, controller.pod_name(0));
    controller
        .spec
        .existing_claim()
        .map_or_else(|| made() == claim, |named| named == claim)
}

fn accounting(controller: &Controller, around: &Around, report: &mut Report) {
    let Some(reference) = controller
        .spec
        .accounting_ref
        .as_ref()
        .filter(|r| is_object_name(&r.name))
    else {
        return;
    };
    if around.known && around.accounting(&reference.name).is_none() {
        warn(
            report,
            &Path::spec().field("accountingRef").field("name"),
            format!(
                "there is no Accounting {:?} in this namespace; slurmctld is not started without it",
                reference.name
            ),
        );
    }
    // slurmdbd compares names in lower case.
    let name = controller.cluster_name().to_lowercase();
    let other = others(controller, around).find(|other| {
        other.spec.accounting_ref.as_ref() == Some(reference) && other.cluster_name().to_lowercase() == name
    });
    if let Some(other) = other {
        refuse(
            report,
            &Path::spec().field("clusterName"),
            format!(
                "{name:?} is the cluster name of Controller {:?} in the same Accounting",
                other.name_any()
            ),
            "write a name that no other cluster of this Accounting has",
        );
    }
}

fn others<'a>(controller: &Controller, around: &'a Around) -> impl Iterator<Item = &'a Controller> {
    let own = controller.name_any();
    around
        .controllers
        .iter()
        .map(AsRef::as_ref)
        .filter(move |other| other.name_any() != own && !other.spec.external)
}

fn unchecked(path: &Path, name: &str, report: &mut Report) {
    warn(
        report,
        path,
        format!("ConfigMap {name:?} was not checked: the API server did not answer"),
    );
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn keeps(spec: &Value, claim: &str) -> bool {
        let object = json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": { "name": "c" }, "spec": spec });
        keeps_state_in(&serde_json::from_value(object).unwrap(), claim)
    }

    #[test]
    fn state_is_in_the_claim_that_is_named_or_else_in_the_one_that_is_made() {
        let made = "statesave-c-controller-0";
        assert!(keeps(&json!({}), made));
        assert!(!keeps(&json!({}), "statesave-cc-controller-0"));
        assert!(!keeps(&json!({ "external": true }), made));
        let named = json!({ "persistence": { "enabled": true, "existingClaim": "mine" } });
        assert!(keeps(&named, "mine"));
        assert!(!keeps(&named, made));
    }
}
