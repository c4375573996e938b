//! Pod templates: ours, merged with the user's overrides.

use keelson_api::{
    merge::{merge_container, merge_pod_spec},
    overrides::{PodTemplate, RawObject},
    well_known::label,
};
use serde_json::{Value, json};

use super::metadata::Metadata;

/// Merges the user's changes into our container. It keeps its name: logs, `exec` and the user's own pod template refer
/// to it.
pub fn container(base: Value, user: Option<&RawObject>) -> Value {
    let name = base.get("name").cloned();
    let mut merged = merge_container(base, user);
    if let (Some(name), Value::Object(fields)) = (name, &mut merged) {
        fields.insert("name".into(), name);
    }
    merged
}

/// Labels with the version of a chart. Charts put them on our objects and into their templates alike; on pods, every
/// new chart version would restart everything.
const VERSIONS: [&str; 2] = [label::CHART, label::APP_VERSION];

/// Merges the user's changes into our pod template. `metadata` already contains the user's labels and annotations.
pub fn template(metadata: &Metadata, spec: Value, user: Option<&PodTemplate>) -> Value {
    let spec = merge_pod_spec(spec, user.and_then(|user| user.spec.as_ref()));
    let mut metadata = metadata.clone();
    metadata
        .labels
        .retain(|name, _| !VERSIONS.contains(&name.as_str()));
    json!({ "metadata": metadata.of_template(), "spec": spec })
}

/// Adds a term to the required pod anti-affinity and keeps the user's terms.
pub fn require_anti_affinity(pod_spec: &mut Value, term: Value) {
    let mut slot = pod_spec;
    for field in ["affinity", "podAntiAffinity"] {
        let Value::Object(fields) = slot else { return };
        slot = fields.entry(field).or_insert_with(|| json!({}));
    }
    let Value::Object(fields) = slot else { return };
    let terms = fields
        .entry("requiredDuringSchedulingIgnoredDuringExecution")
        .or_insert_with(|| json!([]));
    if let Value::Array(terms) = terms {
        terms.push(term);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_false_counts_and_args_are_put_behind_ours() {
        let user = json!({
            "name": "renamed",
            "image": "x:1",
            "args": ["-v"],
            "securityContext": { "privileged": false },
        });
        let merged = container(
            json!({ "name": "slurmd", "args": ["-Z"], "securityContext": { "privileged": true } }),
            Some(&RawObject(user.as_object().unwrap().clone())),
        );
        assert_eq!(
            merged,
            json!({
                "name": "slurmd",
                "image": "x:1",
                "args": ["-Z", "-v"],
                "securityContext": { "privileged": false },
            })
        );
    }

    #[test]
    fn a_charts_version_is_not_on_pods() {
        let metadata = Metadata::default().with_labels([
            ("helm.sh/chart", "slurm-1.3.0".to_owned()),
            ("app.kubernetes.io/version", "26.05".to_owned()),
            ("team", "physics".to_owned()),
        ]);
        let template = template(&metadata, json!({}), None);
        assert_eq!(template["metadata"]["labels"], json!({ "team": "physics" }));
    }
}
