//! The default images: they name no public registry, and one value moves all of them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use chart_tests::{helms, rendered};
use rstest::rstest;
use serde_json::{Value, json};

/// Returns values that enable everything with an image.
fn values(chart: &str, registry: Option<&str>) -> Value {
    let mut values = match chart {
        "slurm" => json!({
            "accounting": { "enabled": true },
            "mariadb": { "enabled": true },
            "nodesets": { "cpu": {} },
            "loginsets": { "users": {} },
        }),
        "nodesets" => json!({ "clusterName": "slurm", "nodesets": { "cpu": {} } }),
        _ => json!({}),
    };
    if let (Some(registry), Value::Object(values)) = (registry, &mut values) {
        match chart {
            "slurm" | "slurm-operator" => values.insert("imageRegistry".to_owned(), json!(registry)),
            _ => values.insert("images".to_owned(), json!({ "registry": registry })),
        };
    }
    values
}

/// Collects the values of all `image` fields.
fn images(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(image) = fields.get("image").and_then(Value::as_str) {
                found.insert(image.to_owned());
            }
            fields.values().for_each(|value| images(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| images(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn rendered_images(helm: &Path, chart: &str, registry: Option<&str>) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for object in rendered(helm, chart, &values(chart, registry))? {
        images(&object, &mut found);
    }
    Ok(found)
}

#[rstest]
#[case("nodesets", &["login", "slurmd"])]
#[case("slurm", &["login", "mariadb", "slurmctld", "slurmd", "slurmdbd", "slurmrestd"])]
#[case("slurm-cluster", &["login"])]
#[case("slurm-operator", &["login", "slurm-operator"])]
fn default_images_name_no_registry_and_one_value_moves_them_all(
    #[case] chart: &str,
    #[case] expected: &[&str],
) -> Result<()> {
    for helm in helms() {
        for registry in [None, Some("registry.example.com:5000/slurm")] {
            let prefix = format!("{}/", registry.unwrap_or("localhost/keelson"));
            let names: BTreeSet<String> = rendered_images(&helm, chart, registry)?
                .iter()
                .map(|image| {
                    let rest = image.strip_prefix(&prefix);
                    assert!(rest.is_some(), "{image} does not begin with {prefix}");
                    rest.and_then(|rest| rest.split(':').next())
                        .unwrap_or_default()
                        .to_owned()
                })
                .collect();
            assert_eq!(names, expected.iter().map(|name| (*name).to_owned()).collect());
        }
    }
    Ok(())
}
