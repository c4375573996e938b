//! The CRDs, generated from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceValidation, JSONSchemaProps,
};
use kube_core::{CustomResourceExt, Resource};
use schemars::JsonSchema;
use serde_json::json;

use crate::well_known::{
    CATEGORY,
    condition::{DEGRADED, READY},
};
use crate::{
    Accounting, AccountingSpec, AccountingStatus, Controller, ControllerSpec, ControllerStatus, LoginSet,
    LoginSetSpec, LoginSetStatus, NodeSet, NodeSetSpec, NodeSetStatus, RestApi, RestApiSpec, RestApiStatus,
    SlurmCluster, SlurmClusterSpec, SlurmClusterStatus, Token, TokenSpec, TokenStatus, schema,
};

/// Why a CRD could not be generated. Every type is covered by a test, so this is a bug in a type's schema attributes.
#[derive(Debug, thiserror::Error)]
pub enum CrdError {
    /// The derived schema is not a valid CRD schema.
    #[error("the schema of {kind} is not a valid CRD schema")]
    Schema {
        /// Kind of the schema.
        kind: &'static str,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The CRD could not be serialized as YAML.
    #[error("failed to serialize the CRD {name} as YAML")]
    Yaml {
        /// Name of the CRD.
        name: String,
        /// The cause.
        #[source]
        source: Box<serde_saphyr::SerializeError>,
    },
}

/// All CRDs, in alphabetical order of their groups and kinds.
pub fn crds() -> Result<Vec<CustomResourceDefinition>, CrdError> {
    Ok(vec![
        crd::<SlurmCluster, SlurmClusterSpec, SlurmClusterStatus>("SlurmCluster")?,
        crd::<Accounting, AccountingSpec, AccountingStatus>("Accounting")?,
        crd::<Controller, ControllerSpec, ControllerStatus>("Controller")?,
        crd::<LoginSet, LoginSetSpec, LoginSetStatus>("LoginSet")?,
        crd::<NodeSet, NodeSetSpec, NodeSetStatus>("NodeSet")?,
        crd::<RestApi, RestApiSpec, RestApiStatus>("RestApi")?,
        crd::<Token, TokenSpec, TokenStatus>("Token")?,
    ])
}

/// All CRDs as files: name and content. The output is deterministic.
pub fn crds_yaml() -> Result<Vec<(String, String)>, CrdError> {
    crds()?
        .iter()
        .map(|crd| {
            let file = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
            let yaml = serde_saphyr::to_string(crd).map_err(|source| CrdError::Yaml {
                name: crd.metadata.name.clone().unwrap_or_default(),
                source: Box::new(source),
            })?;
            Ok((file, format!("---\n{yaml}")))
        })
        .collect()
}

fn crd<K, Spec, Status>(kind: &'static str) -> Result<CustomResourceDefinition, CrdError>
where
    K: CustomResourceExt + Resource<DynamicType = ()>,
    Spec: JsonSchema,
    Status: JsonSchema,
{
    let schema = root_schema::<Spec, Status>(&K::api_version(&()))
        .map_err(|source| CrdError::Schema { kind, source })?;
    let mut crd = K::crd();
    crd.spec.names.list_kind = Some(format!("{kind}List"));
    crd.spec.names.categories = Some(vec![CATEGORY.to_owned()]);
    // Deleting a CRD deletes every cluster, so uninstalling the chart must not delete it.
    crd.metadata.annotations = Some([("helm.sh/resource-policy".to_owned(), "keep".to_owned())].into());
    for version in &mut crd.spec.versions {
        version
            .additional_printer_columns
            .get_or_insert_default()
            .extend(health_columns());
        version.schema = Some(CustomResourceValidation {
            open_api_v3_schema: Some(schema.clone()),
        });
    }
    Ok(crd)
}

/// Our columns follow Slinky's, because scripts may rely on the order of Slinky's. They are the same for every kind. Slinky's
/// READY column of a NodeSet is a number of pods, so the condition Ready is shown as AVAILABLE.
fn health_columns() -> [CustomResourceColumnDefinition; 3] {
    let column = |name: &str, condition: &str, field: &str| CustomResourceColumnDefinition {
        name: name.to_owned(),
        type_: "string".to_owned(),
        json_path: format!(r#".status.conditions[?(@.type=="{condition}")].{field}"#),
        ..CustomResourceColumnDefinition::default()
    };
    [
        column("AVAILABLE", READY, "status"),
        column("DEGRADED", DEGRADED, "status"),
        // If Degraded is False, the operator sets its reason to that of Ready or Progressing.
        column("REASON", DEGRADED, "reason"),
    ]
}

fn root_schema<Spec: JsonSchema, Status: JsonSchema>(
    api_version: &str,
) -> Result<JSONSchemaProps, serde_json::Error> {
    let spec = schema::structural::<Spec>()?;
    let status = schema::structural::<Status>()?;
    let description = spec.description.clone();
    let mut root: JSONSchemaProps = serde_json::from_value(json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": { "type": "string", "description": format!("`{api_version}`.") },
            "kind": { "type": "string", "description": "Kind of the object." },
            "metadata": { "type": "object" },
        }
    }))?;
    root.description = description;
    let properties = root.properties.get_or_insert_default();
    properties.insert(
        "spec".into(),
        JSONSchemaProps {
            description: Some("Desired state.".into()),
            ..spec
        },
    );
    properties.insert("status".into(), status);
    Ok(root)
}
