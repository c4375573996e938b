//! Tests of the charts whose values have the fields of a custom resource: each field arrives, and so do the examples.

use anyhow::{Context, Result};
use chart_tests::lookup::{installed as with_installed, upgraded};
use chart_tests::schema::{NODESETS, SLURM_CLUSTER, spec};
use chart_tests::{helms, rendered, repository};
use rstest::rstest;
use serde_json::{Map, Value, json};

/// A value for a field, with all fields below it.
fn sample(field: &Value) -> Value {
    let get = |keyword: &str| field.get(keyword).cloned().unwrap_or_default();
    let description = get("description").as_str().unwrap_or_default().to_owned();
    if let Some(first) = get("enum").as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    if get("x-kubernetes-int-or-string") == json!(true) {
        return json!("7%");
    }
    if get("x-kubernetes-preserve-unknown-fields") == json!(true) {
        return match () {
            () if description.contains("core/v1 Container") => {
                json!({ "command": ["changed"], "stdin": false })
            }
            () if description.contains("core/v1 PodSpec") => {
                json!({ "hostNetwork": false, "nodeName": "changed" })
            }
            () if description.contains("core/v1 ServiceSpec") => json!({ "clusterIP": "None" }),
            () => json!({ "changed": [0, false, ""] }),
        };
    }
    match get("type").as_str() {
        Some("boolean") => json!(false),
        Some("integer") => json!(7),
        Some("array") => json!([sample(&get("items"))]),
        Some("object") => match (get("properties"), get("additionalProperties")) {
            (Value::Object(properties), _) => properties
                .iter()
                .map(|(name, property)| (name.clone(), sample(property)))
                .collect::<Map<_, _>>()
                .into(),
            (_, Value::Object(of_values)) => json!({ "changed": sample(&of_values.into()) }),
            _ => json!({}),
        },
        _ => json!("changed"),
    }
}

fn object(rendered: Vec<Value>, kind: &str) -> Result<Value> {
    let of_kind = |object: &Value| object.get("kind") == Some(&json!(kind));
    rendered
        .into_iter()
        .find(of_kind)
        .with_context(|| format!("no {kind}"))
}

fn count(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.values().map(count).sum(),
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 1,
    }
}

#[test]
fn every_field_of_a_slurmcluster_arrives_as_it_is_written() -> Result<()> {
    let all = sample(&spec(SLURM_CLUSTER.crd)?);
    assert!(count(&all) > 200, "only {} values", count(&all));
    for helm in helms() {
        let cluster = object(rendered(&helm, "slurm-cluster", &all)?, "SlurmCluster")?;
        assert_eq!(cluster.get("spec"), Some(&all), "with {}", helm.display());
    }
    Ok(())
}

#[rstest]
#[case::of_a_set("nodesets")]
#[case::of_the_defaults("nodesetDefaults")]
fn every_field_of_a_nodeset_arrives_as_it_is_written(#[case] place: &str) -> Result<()> {
    let mut all = sample(&spec(NODESETS.crd)?);
    let fields = all.as_object_mut().context("a spec without fields")?;
    fields.insert("controllerRef".to_owned(), json!({ "name": "team" }));
    let mut values = fields.clone();
    values.remove("controllerRef");
    let values = match place {
        "nodesets" => json!({ "clusterName": "team", "nodesets": { "cpu": values } }),
        _ => json!({ "clusterName": "team", "nodesetDefaults": values, "nodesets": { "cpu": {} } }),
    };
    for helm in helms() {
        let mut nodeset = object(rendered(&helm, "nodesets", &values)?, "NodeSet")?;
        // What a worker cannot do without.
        for (pointer, name) in [
            ("/spec/slurmd", "image"),
            ("/spec/logfile", "image"),
            ("/spec/template/spec", "hostname"),
        ] {
            let fields = nodeset
                .pointer_mut(pointer)
                .and_then(Value::as_object_mut)
                .context("a part is missing")?;
            assert!(fields.remove(name).is_some(), "{pointer}/{name}");
        }
        assert_eq!(nodeset.get("spec"), Some(&all), "with {}", helm.display());
    }
    Ok(())
}

/// The manifests among the examples have the fields of the values.
#[rstest]
#[case("slurm-cluster.yaml")]
#[case("slurm-cluster-gpu.yaml")]
fn a_manifest_of_the_examples_is_what_the_chart_renders_for_its_spec(#[case] example: &str) -> Result<()> {
    let text = std::fs::read_to_string(repository().join("examples").join(example))?;
    let manifest: Value = serde_saphyr::from_str(&text)?;
    assert_eq!(manifest.get("kind"), Some(&json!("SlurmCluster")));
    let values = manifest.get("spec").context("no spec")?;
    for helm in helms() {
        let cluster = object(rendered(&helm, "slurm-cluster", values)?, "SlurmCluster")?;
        assert_eq!(cluster.get("spec"), Some(values));
    }
    Ok(())
}

#[test]
fn the_first_example_has_ten_lines() -> Result<()> {
    let text = std::fs::read_to_string(repository().join("examples/slurm-cluster.yaml"))?;
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    assert_eq!(lines.count(), 10);
    Ok(())
}

#[rstest]
#[case(
    "slurm-cluster", "SlurmCluster", "keelson.dev/v1alpha1", "slurm-cluster", json!({}),
    "the previous cluster slurm-cluster is still being deleted"
)]
#[case(
    "nodesets", "NodeSet", "slinky.slurm.net/v1beta1", "team-worker-cpu",
    json!({ "clusterName": "team", "nodesets": { "cpu": {} } }),
    "the previous NodeSet team-worker-cpu is still being deleted"
)]
#[case(
    "slurm", "Controller", "slinky.slurm.net/v1beta1", "slurm", json!({}),
    "the previous cluster slurm is still being deleted"
)]
fn an_object_that_is_being_deleted_is_not_installed_over(
    #[case] chart: &str,
    #[case] kind: &str,
    #[case] version: &str,
    #[case] name: &str,
    #[case] values: Value,
    #[case] expected: &str,
) -> Result<()> {
    let object = |deletion: Value| {
        json!({
            "apiVersion": version, "kind": kind,
            "metadata": {
                "name": name, "namespace": "slurm", "deletionTimestamp": deletion,
                "labels": { "app.kubernetes.io/managed-by": "Helm" },
                "annotations": { "meta.helm.sh/release-name": chart, "meta.helm.sh/release-namespace": "slurm" },
            },
        })
    };
    for helm in helms() {
        let leaving = object(json!("2026-08-01T00:00:00Z"));
        let refused = with_installed(&helm, chart, &values, &[leaving])
            .err()
            .context("was installed over")?;
        assert!(format!("{refused:#}").contains(expected), "{refused:#}");
        with_installed(&helm, chart, &values, &[object(Value::Null)])?;
    }
    Ok(())
}

#[test]
fn a_pool_that_is_put_back_while_it_drains_is_refused() -> Result<()> {
    let pool = |deletion: Value| {
        json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
            "metadata": { "name": "team-worker-cpu", "namespace": "slurm", "deletionTimestamp": deletion },
        })
    };
    let values = json!({ "clusterName": "team", "nodesets": { "cpu": {} } });
    for helm in helms() {
        let leaving = pool(json!("2026-08-01T00:00:00Z"));
        let refused = upgraded(&helm, "nodesets", &values, &[leaving])
            .err()
            .context("was adopted")?;
        assert!(
            format!("{refused:#}").contains("the previous NodeSet team-worker-cpu is still being deleted"),
            "{refused:#}"
        );
        upgraded(&helm, "nodesets", &values, &[pool(Value::Null)])?;
    }
    Ok(())
}
