//! Reads and checks the files in the user's own ConfigMaps. The webhook reads no ConfigMaps, so this is the only place
//! that checks their contents. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use keelson_api::{Controller, references::LocalObjectReference, well_known::file};
use slurm_conf::{
    catalogue::File,
    precheck::{self, Flaw, MissingFile},
    slurm_conf::SlurmConf,
    syntax::{Document, Origin, parse},
};

use super::file_origin::Origins;
use crate::controller::observe::Observed;
use crate::problem::Problem;

/// Maximum number of notes shown for one Controller; the rest is counted.
const SHOWN: usize = 5;

/// One file, and the ConfigMap that it comes from.
#[derive(Debug, Clone)]
struct UserFile {
    config_map: String,
    bytes: Vec<u8>,
}

/// The files that the spec's ConfigMaps put beside slurm.conf, by name.
#[derive(Debug, Clone, Default)]
pub struct UserFiles {
    files: BTreeMap<String, UserFile>,
    notes: Vec<String>,
}

impl UserFiles {
    pub fn read(observed: &Observed) -> Result<Self, Problem> {
        let map = |name: &str| {
            let map = observed.config_maps.get(name).and_then(Option::as_ref);
            map.ok_or_else(|| Problem::absent("ConfigMap", name, "create it, or remove the reference"))
        };
        let mut read = Self::default();
        // By name, so that of two files with the same name the same one is used each time.
        for name in config_maps(&observed.controller) {
            read.add(&name, map(&name)?);
        }
        for (field, references) in scripts(&observed.controller) {
            for reference in references.iter().flatten() {
                if contents(map(&reference.name)?).next().is_none() {
                    read.notes.push(format!(
                        "ConfigMap {} of spec.{field} holds no script",
                        reference.name
                    ));
                }
            }
        }
        if let Some(jwks) = &observed.controller.spec.jwks_key_ref {
            let bytes = map(&jwks.name)?
                .data
                .as_ref()
                .and_then(|data| data.get(&jwks.key))
                .ok_or_else(|| Problem::no_key("ConfigMap", &jwks.name, &jwks.key))?
                .clone()
                .into_bytes();
            if let Some(UserFile { config_map, .. }) = read.files.get(file::JWKS) {
                return Err(reserved(config_map, file::JWKS, "comes from spec.jwksKeyRef"));
            }
            let config_map = jwks.name.clone();
            read.files
                .insert(file::JWKS.to_owned(), UserFile { config_map, bytes });
        }
        Ok(read)
    }

    fn add(&mut self, config_map: &str, map: &ConfigMap) {
        for (name, bytes) in contents(map) {
            let file = UserFile {
                config_map: config_map.to_owned(),
                bytes: bytes.to_vec(),
            };
            if let Some(before) = self.files.insert(name.to_owned(), file) {
                self.notes.push(format!(
                    "{name} is in ConfigMap {} and in ConfigMap {config_map}; the one in {config_map} is used",
                    before.config_map
                ));
            }
        }
    }

    /// Rejects files that the operator writes or mounts itself.
    pub fn refuse_reserved(&self) -> Result<(), Problem> {
        for (name, UserFile { config_map, .. }) in &self.files {
            if file::RESERVED.contains(&name.as_str()) {
                let remedy = "is written by the operator; put lines for it into spec.extraConf";
                return Err(reserved(config_map, name, remedy));
            }
            if [file::SLURM_KEY, file::MUNGE_KEY, file::JWT_KEY].contains(&name.as_str()) {
                let remedy = "comes from a Secret of the Controller, so it must not be in a ConfigMap";
                return Err(reserved(config_map, name, remedy));
            }
        }
        Ok(())
    }

    /// Returns the files that are text, which `Include` may name.
    pub fn texts(&self) -> BTreeMap<String, String> {
        self.files
            .iter()
            .filter_map(|(name, file)| Some((name.clone(), String::from_utf8(file.bytes.clone()).ok()?)))
            .collect()
    }

    /// Returns the ConfigMap that each file comes from.
    pub fn origins(&self) -> Origins {
        let of = |(name, file): (&String, &UserFile)| (name.clone(), file.config_map.clone());
        self.files.iter().map(of).collect()
    }

    pub fn into_bytes(self) -> BTreeMap<String, Vec<u8>> {
        self.files
            .into_iter()
            .map(|(name, file)| (name, file.bytes))
            .collect()
    }

    /// Describes where a line is, in the user's terms.
    fn place(&self, origin: Option<&Origin>) -> String {
        let Some(origin) = origin else {
            return "spec.extraConf".to_owned();
        };
        match origin.file.as_ref().and_then(|file| self.files.get(file)) {
            Some(file) => format!("ConfigMap {}: {origin}", file.config_map),
            None => format!("spec.extraConf {origin}"),
        }
    }
}

fn reserved(config_map: &str, name: &str, why: &str) -> Problem {
    Problem::invalid(format!(
        "ConfigMap {config_map} has the file {name}, which {why}; remove it from the ConfigMap"
    ))
}

fn contents(map: &ConfigMap) -> impl Iterator<Item = (&str, &[u8])> {
    let texts = map.data.iter().flatten();
    let texts = texts.map(|(name, text)| (name.as_str(), text.as_bytes()));
    let bytes = map.binary_data.iter().flatten();
    texts.chain(bytes.map(|(name, bytes)| (name.as_str(), bytes.0.as_slice())))
}

/// Returns the ConfigMaps whose keys become files.
fn config_maps(controller: &Controller) -> BTreeSet<String> {
    let lists = scripts(controller).map(|(_, references)| references);
    std::iter::once(&controller.spec.config_file_refs)
        .chain(lists)
        .flatten()
        .flatten()
        .map(|reference| reference.name.clone())
        .collect()
}

fn scripts(controller: &Controller) -> [(&'static str, &Option<Vec<LocalObjectReference>>); 4] {
    let spec = &controller.spec;
    [
        ("prologScriptRefs", &spec.prolog_script_refs),
        ("epilogScriptRefs", &spec.epilog_script_refs),
        ("prologSlurmctldScriptRefs", &spec.prolog_slurmctld_script_refs),
        ("epilogSlurmctldScriptRefs", &spec.epilog_slurmctld_script_refs),
    ]
}

/// Checks the user's configuration. What no slurmctld runs with is a problem; the rest becomes notes. Files elsewhere
/// in slurmctld's image cannot be checked.
pub fn check(conf: &SlurmConf, files: &UserFiles, controller: &Controller) -> Result<Vec<String>, Problem> {
    let mut notes = files.notes.clone();
    // What cannot be parsed is reported with its line when slurm.conf is rendered.
    let Ok(document) = parse(File::Slurm, &conf.extra_conf, &conf.included_files) else {
        return Ok(notes);
    };
    let has = |file: &str| file.starts_with('/') || files.files.contains_key(file);
    let report = precheck::check(&document, has);
    if let Some(missing) = report.missing_files.first() {
        return Err(missing_file(files, missing));
    }
    if let Some(flaw) = report.flaws.first() {
        return Err(Problem::invalid(flawed(files, flaw)));
    }
    notes.extend(report.notes.iter().map(|note| {
        let file = note.origin.as_ref().and_then(|origin| origin.file.as_ref());
        match file.and_then(|file| files.files.get(file)) {
            Some(file) => format!("ConfigMap {}: {note}", file.config_map),
            None => format!("spec.extraConf {note}"),
        }
    }));
    notes.extend(unread(&document, files, controller));
    Ok(shortened(notes))
}

fn missing_file(files: &UserFiles, missing: &MissingFile) -> Problem {
    let place = files.place(missing.origin());
    let what = match missing {
        MissingFile::Included { .. } => ": no ConfigMap of spec.configFileRefs has a file of this name",
        MissingFile::Topology { .. } => ", and no ConfigMap of spec.configFileRefs has it",
    };
    Problem::missing(format!(
        "{place}: {missing}{what}; add it there, or remove the line"
    ))
}

fn flawed(files: &UserFiles, flaw: &Flaw) -> String {
    let (Flaw::SelectType { origin, .. } | Flaw::Hosts { origin, .. }) = flaw;
    let place = match origin.as_ref().and_then(|origin| origin.file.as_ref()) {
        Some(file) => match files.files.get(file) {
            Some(file) => format!("ConfigMap {}: ", file.config_map),
            None => String::new(),
        },
        None => "spec.extraConf ".to_owned(),
    };
    format!("{place}{flaw}; {}", flaw.remedy())
}

/// Notes files beside slurm.conf that nothing reads.
fn unread(document: &Document, files: &UserFiles, controller: &Controller) -> Vec<String> {
    let read: BTreeSet<&str> = document
        .included
        .iter()
        .map(String::as_str)
        .chain(file::KNOWN)
        .collect();
    let listed: BTreeSet<&str> = controller
        .spec
        .config_file_refs
        .iter()
        .flatten()
        .map(|reference| reference.name.as_str())
        .collect();
    files
        .files
        .iter()
        .filter(|(name, file)| listed.contains(file.config_map.as_str()) && !read.contains(name.as_str()))
        .filter(|(name, _)| name.as_str() != file::JWKS)
        .map(|(name, file)| {
            format!(
                "Slurm does not read {name} of ConfigMap {} on its own: include it in a file that Slurm reads",
                file.config_map
            )
        })
        .collect()
}

fn shortened(mut notes: Vec<String>) -> Vec<String> {
    let more = notes.len().saturating_sub(SHOWN);
    notes.truncate(SHOWN);
    if more > 0 {
        notes.push(format!("and {more} more"));
    }
    notes
}

#[cfg(test)]
mod tests;
