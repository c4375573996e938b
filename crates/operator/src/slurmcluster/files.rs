//! The files of `spec.files`: one ConfigMap with copies of all contents. Pure.

use std::collections::BTreeMap;

use keelson_api::{
    SlurmCluster,
    references::ConfigMapKeySelector,
    slurmcluster::{FileUpdate, children},
};

use slurm_conf::container::file_key;

use super::observe::Observed;
use crate::{children::checksum, problem::Problem};

/// Returns the contents by key in the ConfigMap.
pub fn contents(observed: &Observed) -> Result<BTreeMap<String, String>, Problem> {
    let cluster = observed.cluster.as_ref();
    let find = |reference: &ConfigMapKeySelector| {
        let map = observed.file_sources.get(&reference.name)?;
        map.data.as_ref()?.get(&reference.key).cloned()
    };
    let mut files = BTreeMap::new();
    for (path, content) in children::content_of(cluster, find) {
        let reference = cluster
            .spec
            .files
            .get(&path)
            .and_then(|file| file.config_map_key_ref.as_ref());
        match (content, reference) {
            (Some(content), _) => drop(files.insert(file_key(&path), content)),
            (None, Some(reference)) if !observed.file_sources.contains_key(&reference.name) => {
                let remedy = format!(
                    "create it with the key {:?}, which spec.files[{path}] names",
                    reference.key
                );
                return Err(Problem::absent("ConfigMap", &reference.name, remedy));
            }
            (None, Some(reference)) => {
                return Err(Problem::no_key("ConfigMap", &reference.name, &reference.key));
            }
            // Reported with the other fields.
            (None, None) => {}
        }
    }
    children::check_size(files.values().map(String::as_str))
        .map_err(|too_large| Problem::invalid(too_large.to_string()))?;
    Ok(files)
}

/// Returns a hash of the files that roll out; `None` if there are none.
pub fn hash(cluster: &SlurmCluster, contents: &BTreeMap<String, String>) -> Option<String> {
    let rolled_out: BTreeMap<String, String> = cluster
        .spec
        .files
        .iter()
        .filter(|(_, file)| file.update.unwrap_or_default() == FileUpdate::RollOut)
        .filter_map(|(path, _)| {
            let key = file_key(path);
            let content = contents.get(&key)?.clone();
            Some((key, content))
        })
        .collect();
    (!rolled_out.is_empty()).then(|| checksum::of_texts(&rolled_out))
}
