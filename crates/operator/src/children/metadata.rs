//! Names, labels, annotations and owners of child objects.

use std::collections::BTreeMap;

use keelson_api::{
    overrides,
    well_known::{annotation, label},
};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

/// Annotations that describe the parent itself and would be wrong on a child. Argo CD prunes objects that carry its
/// tracking id and are not in its manifests. Pods must not be replaced because such a tool took over their parent.
const OWN_ANNOTATIONS: [&str; 6] = [
    annotation::KUBECTL_PREFIX,
    annotation::HELM_PREFIX,
    annotation::ARGO_CD_PREFIX,
    annotation::FLUX_KUSTOMIZE_PREFIX,
    annotation::FLUX_HELM_PREFIX,
    annotation::PREFIX,
];
const OWN_LABELS: [&str; 3] = [
    annotation::ARGO_CD_PREFIX,
    annotation::FLUX_KUSTOMIZE_PREFIX,
    annotation::FLUX_HELM_PREFIX,
];

/// Labels and annotations of a child under construction; later additions win.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    /// Returns what every child inherits from its parent.
    pub fn inherited(parent: &impl ResourceExt) -> Self {
        let keep = |map: &BTreeMap<String, String>, own: &[&str]| {
            map.iter()
                .filter(|(key, _)| !own.iter().any(|prefix| key.starts_with(prefix)))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        Self {
            labels: keep(parent.labels(), &OWN_LABELS),
            annotations: keep(parent.annotations(), &OWN_ANNOTATIONS),
        }
    }

    /// Adds the user's overrides for this child.
    pub fn with_override(mut self, user: Option<&overrides::Metadata>) -> Self {
        let Some(overrides::Metadata { labels, annotations }) = user else {
            return self;
        };
        self.labels
            .extend(labels.iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
        self.annotations
            .extend(annotations.iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
        self
    }

    pub fn with_labels<'a>(mut self, labels: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        self.labels
            .extend(labels.into_iter().map(|(key, value)| (key.to_owned(), value)));
        self
    }

    pub fn with_annotations<'a>(mut self, annotations: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        self.annotations.extend(
            annotations
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value)),
        );
        self
    }

    pub fn of_template(&self) -> Value {
        let mut value = json!({ "labels": self.labels });
        if let (false, Value::Object(fields)) = (self.annotations.is_empty(), &mut value) {
            fields.insert("annotations".into(), json!(self.annotations));
        }
        value
    }

    pub fn of_object(&self, namespace: &str, name: &str, owners: &[Value]) -> Value {
        let mut value = self.of_template();
        if let Value::Object(fields) = &mut value {
            fields.insert("name".into(), json!(name));
            fields.insert("namespace".into(), json!(namespace));
            if !owners.is_empty() {
                fields.insert("ownerReferences".into(), json!(owners));
            }
        }
        value
    }
}

/// Returns the labels by which Services and workloads select pods.
pub fn selector(app: &str, instance: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (label::APP, app.to_owned()),
        (label::INSTANCE, instance.to_owned()),
    ])
}

/// Returns the reference to a child's controller, with which Kubernetes deletes it.
pub fn owned_by<K: Resource<DynamicType = ()>>(parent: &K) -> Value {
    owner(parent, true)
}

/// Returns a reference to one of several owners, none of which is the controller.
pub fn shared_by<K: Resource<DynamicType = ()>>(parent: &K) -> Value {
    owner(parent, false)
}

fn owner<K: Resource<DynamicType = ()>>(parent: &K, controller: bool) -> Value {
    let mut value = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "name": parent.name_any(),
        "uid": parent.uid().unwrap_or_default(),
        "blockOwnerDeletion": true,
    });
    if let (true, Value::Object(fields)) = (controller, &mut value) {
        fields.insert("controller".into(), json!(true));
    }
    value
}

#[cfg(test)]
mod tests {
    use keelson_api::Controller;

    use super::*;

    #[test]
    fn children_take_over_what_is_not_about_the_parent_alone() {
        let mut parent = Controller::default();
        parent.metadata.labels = Some(BTreeMap::from([
            ("team".into(), "hpc".into()),
            ("argocd.argoproj.io/instance".into(), "slurm".into()),
            ("kustomize.toolkit.fluxcd.io/name".into(), "clusters".into()),
            ("helm.toolkit.fluxcd.io/name".into(), "slurm".into()),
        ]));
        parent.metadata.annotations = Some(BTreeMap::from([
            ("note".into(), "x".into()),
            (
                "kubectl.kubernetes.io/last-applied-configuration".into(),
                "{}".into(),
            ),
            ("meta.helm.sh/release-name".into(), "slurm".into()),
            ("argocd.argoproj.io/tracking-id".into(), "a".into()),
            ("kustomize.toolkit.fluxcd.io/reconcile".into(), "enabled".into()),
            ("keelson.dev/generate".into(), "true".into()),
        ]));
        let metadata = Metadata::inherited(&parent);
        assert_eq!(metadata.labels.len(), 1);
        assert_eq!(
            metadata.annotations,
            BTreeMap::from([("note".to_owned(), "x".to_owned())])
        );
    }
}
