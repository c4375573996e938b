//! GPUs: the resource limit of the pod, GRES of the Slurm node, gres.conf and the related parameters of slurm.conf.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::parts::put;
use crate::slurmcluster::{AutoDetect, Gpu, SlurmClusterSpec};
use crate::validate::{Path, Report};

impl Gpu {
    /// How slurmd finds the GPUs.
    pub fn auto_detect(&self) -> AutoDetect {
        let of_vendor = || {
            if self.resource.starts_with("nvidia.com/") {
                AutoDetect::Nvidia
            } else {
                AutoDetect::Off
            }
        };
        self.auto_detect.unwrap_or_else(of_vendor)
    }

    /// The node's GRES in Slurm.
    fn gres(&self) -> String {
        match &self.kind {
            Some(kind) => format!("gpu:{kind}:{}", self.count),
            None => format!("gpu:{}", self.count),
        }
    }
}

impl AutoDetect {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Nvml => "nvml",
            Self::Rsmi => "rsmi",
            Self::Oneapi => "oneapi",
            Self::Off => "off",
        }
    }
}

fn gpus(spec: &SlurmClusterSpec) -> impl Iterator<Item = (&String, &Gpu)> {
    spec.node_sets
        .iter()
        .filter_map(|(name, part)| Some((name, part.gpu.as_ref()?)))
}

/// gres.conf, unless no GPU is detected: then it is the user's.
pub(super) fn gres_conf(spec: &SlurmClusterSpec) -> BTreeMap<String, String> {
    let lines: Vec<String> = gpus(spec)
        .filter(|(_, gpu)| gpu.auto_detect() != AutoDetect::Off)
        .map(|(name, gpu)| {
            // Slurm compares the name of a node with the range; it need not exist.
            format!(
                "NodeName={name}-[0-99999] AutoDetect={}\n",
                gpu.auto_detect().as_str()
            )
        })
        .collect();
    if lines.is_empty() {
        return BTreeMap::new();
    }
    BTreeMap::from([("gres.conf".to_owned(), lines.concat())])
}

/// Lines for slurm.conf.
pub(super) fn conf_lines(
    spec: &SlurmClusterSpec,
    set_by_user: &impl Fn(&str) -> Option<String>,
    report: &mut Report,
) -> Vec<String> {
    let mut recorded = BTreeSet::new();
    for (_, gpu) in gpus(spec) {
        recorded.insert("gres/gpu".to_owned());
        recorded.extend(gpu.kind.iter().map(|kind| format!("gres/gpu:{kind}")));
    }
    if recorded.is_empty() {
        return Vec::new();
    }
    let mut lines = Vec::new();
    match set_by_user("GresTypes") {
        None => lines.push("GresTypes=gpu".to_owned()),
        Some(types) if types.split(',').any(|kind| kind.trim() == "gpu") => {}
        Some(types) => report.refuse(
            &Path::spec().field("controller").field("extraConf"),
            format!("GresTypes={types} lacks gpu, which nodeSets needs"),
            "add gpu to it, or remove the line",
        ),
    }
    // What the user records is the user's choice.
    if set_by_user("AccountingStorageTRES").is_none() {
        let recorded: Vec<String> = recorded.into_iter().collect();
        lines.push(format!("AccountingStorageTRES={}", recorded.join(",")));
    }
    lines
}

/// Sets the limit and the GRES of one NodeSet.
pub(super) fn add(spec: &mut Value, gpu: &Gpu, field: &Path, report: &mut Report) {
    for kind in ["limits", "requests"] {
        let place = format!("/slurmd/resources/{kind}");
        let written = spec
            .pointer(&place)
            .and_then(|resources| resources.get(&gpu.resource));
        let number = written.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        if let Some(number) = number.filter(|number| *number != gpu.count.to_string()) {
            report.refuse(
                &field
                    .field("slurmd")
                    .field("resources")
                    .field(kind)
                    .field(&gpu.resource),
                format!("is {number}, but gpu.count is {}", gpu.count),
                "remove it: gpu sets it",
            );
        }
    }
    let conf = spec.get("extraConf").and_then(Value::as_str).unwrap_or_default();
    let mut words: Vec<String> = conf.split_whitespace().map(str::to_owned).collect();
    let names_gpu = |word: &String| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        key.eq_ignore_ascii_case("Gres") && value.split(',').any(|gres| gres.split(':').next() == Some("gpu"))
    };
    if words.iter().any(names_gpu) {
        report.refuse(
            &field.field("extraConf"),
            "sets Gres=gpu, and so does gpu",
            "remove it from extraConf",
        );
    }
    // A node has one Gres parameter, which may list other resources.
    let gres = words
        .iter_mut()
        .find(|word| word.to_ascii_lowercase().starts_with("gres="));
    match gres {
        Some(other) => *other = format!("{other},{}", gpu.gres()),
        None => words.push(format!("Gres={}", gpu.gres())),
    }
    put(spec, &["extraConf"], json!(words.join(" ")));
    for kind in ["limits", "requests"] {
        put(
            spec,
            &["slurmd", "resources", kind, &gpu.resource],
            json!(gpu.count),
        );
    }
}
