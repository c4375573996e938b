//! Pod templates: ours, with what the user wrote over it.

use keelson_api::{
    merge::merge_pod_spec,
    overrides::{PodTemplate, RawObject},
};
use serde_json::{Value, json};

use super::metadata::Metadata;

/// Our container with the user's changes. It keeps its name: logs, `exec` and the user's own pod template go by it.
pub fn container(base: Value, user: Option<&RawObject>) -> Value {
    let Some(user) = user else { return base };
    let mut changes = user.0.clone();
    changes.insert("name".into(), base.get("name").cloned().unwrap_or_default());
    let changes = json!({ "containers": [changes] });
    let pod = merge_pod_spec(
        json!({ "containers": [base] }),
        changes.as_object().cloned().map(RawObject).as_ref(),
    );
    pod.pointer("/containers/0").cloned().unwrap_or_default()
}

/// Our pod template with the user's changes. `metadata` already holds the user's labels and annotations.
pub fn template(metadata: &Metadata, spec: Value, user: Option<&PodTemplate>) -> Value {
    let spec = merge_pod_spec(spec, user.and_then(|user| user.spec.as_ref()));
    json!({ "metadata": metadata.of_template(), "spec": spec })
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
}
