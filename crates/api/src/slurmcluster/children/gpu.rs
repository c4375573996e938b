//! GPUs: the resource limit of the pod, GRES of the Slurm node, gres.conf and the related parameters of slurm.conf.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use slurm_conf::{catalogue::File, hostlist::MAX_RANGE, syntax};

use super::parts::put;
use super::{Running, named_nodeset};
use crate::nodeset::ScalingMode;
use crate::slurmcluster::{AutoDetect, Gpu, SlurmCluster, SlurmClusterSpec};
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

/// gres.conf, unless no GPU is detected: then it is the user's. Lines of workers that lose their GPUs stay while old ones
/// run: Slurm would abort the jobs that use them.
pub(super) fn gres_conf(cluster: &SlurmCluster, running: &Running) -> Option<String> {
    let mut lines = lines_by_prefix(&running.gres_conf);
    lines.retain(|prefix, _| running.old_workers.contains(prefix));
    for (name, gpu) in gpus(&cluster.spec) {
        let prefix = named_nodeset(cluster, name).node_prefix();
        // Two lines that differ for a node are an error.
        lines.remove(&prefix);
        if gpu.auto_detect() != AutoDetect::Off {
            let line = gres_line(&cluster.spec, name, &prefix, gpu);
            lines.insert(prefix, line);
        }
    }
    (!lines.is_empty()).then(|| lines.into_values().map(|line| line + "\n").collect())
}

/// What the names of the nodes in a generated gres.conf begin with.
pub fn detected_prefixes(gres_conf: &str) -> impl Iterator<Item = String> {
    lines_by_prefix(gres_conf).into_keys()
}

fn lines_by_prefix(gres_conf: &str) -> BTreeMap<String, String> {
    let (document, _) = syntax::read(File::Gres, gres_conf, &BTreeMap::new());
    let lines = document.statements.iter().filter_map(|line| {
        let (prefix, _) = line.head.value.rsplit_once('[')?;
        Some((prefix.to_owned(), line.encode().ok()?))
    });
    lines.collect()
}

fn gres_line(spec: &SlurmClusterSpec, name: &str, prefix: &str, gpu: &Gpu) -> String {
    let fields = spec.node_sets.get(name).map(|part| &part.fields.values);
    let padding = fields.and_then(|fields| fields.get("ordinalPadding")?.as_u64());
    // A longer one is reported with the NodeSet.
    let width = padding.and_then(|width| u8::try_from(width).ok());
    let width = width.map_or(1, usize::from);
    // Slurm compares the name of a node with the range; it need not exist.
    format!(
        "NodeName={prefix}[{:0width$}-{}] AutoDetect={}",
        0,
        MAX_RANGE - 1,
        gpu.auto_detect().as_str()
    )
}

/// Lines for slurm.conf. What a cluster once had stays: Slurm drops resources of a type that it does not know from running
/// and pending jobs. The type alone does nothing on nodes without GPUs.
pub(super) fn conf_lines(
    spec: &SlurmClusterSpec,
    running: &Running,
    set_by_user: &impl Fn(&str) -> Option<String>,
    report: &mut Report,
) -> Vec<String> {
    refuse_second_gres_conf(spec, report);
    refuse_unknown_names(spec, report);
    let mut recorded = BTreeSet::new();
    for (_, gpu) in gpus(spec) {
        recorded.insert("gres/gpu".to_owned());
        recorded.extend(gpu.kind.iter().map(|kind| format!("gres/gpu:{kind}")));
    }
    let has_gpus = !recorded.is_empty();
    let (before, _) = syntax::read(File::Slurm, &running.extra_conf, &BTreeMap::new());
    let words = |key: &str| before.get(key).unwrap_or_default().split(',').map(str::trim);
    let is_known = words("GresTypes").any(|kind| kind == "gpu");
    let is_gpu = |resource: &&str| *resource == "gres/gpu" || resource.starts_with("gres/gpu:");
    recorded.extend(words("AccountingStorageTRES").filter(is_gpu).map(str::to_owned));
    let mut lines = Vec::new();
    match set_by_user("GresTypes") {
        None if has_gpus || is_known => lines.push("GresTypes=gpu".to_owned()),
        Some(types) if has_gpus && !types.split(',').any(|kind| kind.trim() == "gpu") => report.refuse(
            &Path::spec().field("controller").field("extraConf"),
            format!("GresTypes={types} lacks gpu, which nodeSets needs"),
            "add gpu to it, or remove the line",
        ),
        None | Some(_) => {}
    }
    // What the user records is the user's choice.
    if set_by_user("AccountingStorageTRES").is_none() && !recorded.is_empty() {
        let recorded: Vec<String> = recorded.into_iter().collect();
        lines.push(format!("AccountingStorageTRES={}", recorded.join(",")));
    }
    lines
}

/// GPUs that are detected are in the generated gres.conf, all others in the user's, and Slurm reads only one.
fn refuse_second_gres_conf(spec: &SlurmClusterSpec, report: &mut Report) {
    let is_off = |(_, gpu): &(&String, &Gpu)| gpu.auto_detect() == AutoDetect::Off;
    let (off, detected): (Vec<_>, Vec<_>) = gpus(spec).partition(is_off);
    let Some((other, _)) = detected.first() else {
        return;
    };
    for (name, _) in off {
        let path = Path::spec().field("nodeSets").field(name);
        report.refuse(
            &path.field("gpu").field("autoDetect"),
            format!(
                "is \"off\", so these GPUs need a gres.conf of your own, but those of {other} are in the generated one, and Slurm reads only one"
            ),
            "write the lines of all sets with GPUs into a gres.conf of your own, and set autoDetect to \"off\" in all of them",
        );
    }
}

/// gres.conf lists the nodes whose GPUs are detected. Those with the names of Kubernetes nodes are not known in advance.
fn refuse_unknown_names(spec: &SlurmClusterSpec, report: &mut Report) {
    for (name, gpu) in gpus(spec) {
        let fields = spec.node_sets.get(name).map(|part| &part.fields.values);
        let mode = fields.and_then(|fields| fields.get("scalingMode"));
        let detected = gpu.auto_detect();
        if mode != Some(&json!(ScalingMode::DaemonSet)) || detected == AutoDetect::Off {
            continue;
        }
        let path = Path::spec().field("nodeSets").field(name);
        let detected = detected.as_str();
        report.refuse(
            &path.field("gpu").field("autoDetect"),
            format!(
                "is {detected:?}, but the generated gres.conf cannot name these Slurm nodes, which in DaemonSet mode have the names of the Kubernetes nodes"
            ),
            format!("set it to \"off\", and write AutoDetect={detected} into a gres.conf in controller.configFileRefs"),
        );
    }
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

#[cfg(test)]
mod tests;
