//! Checks the values.schema.json of charts whose values have the fields of a custom resource. `KEELSON_BLESS=1` rewrites it.

use std::collections::BTreeSet;

use anyhow::Result;
use chart_tests::repository;
use chart_tests::schema::{Chart, NODESETS, SLURM_CLUSTER, spec, values_schema};
use rstest::rstest;
use serde_json::Value;

#[rstest]
#[case(SLURM_CLUSTER)]
#[case(NODESETS)]
fn the_schema_of_the_values_is_made_from_the_crd(#[case] chart: Chart<'_>) -> Result<()> {
    let wanted = values_schema(&chart)?;
    let file = repository()
        .join("charts")
        .join(chart.name)
        .join("values.schema.json");
    if std::env::var_os("KEELSON_BLESS").is_some() {
        std::fs::write(&file, &wanted)?;
    }
    let stored = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        stored == wanted,
        "{} is out of date: run the tests with KEELSON_BLESS=1",
        file.display()
    );
    Ok(())
}

#[test]
fn every_field_of_a_slurmcluster_is_described_among_the_values() -> Result<()> {
    let spec = spec(SLURM_CLUSTER.crd)?;
    let values = std::fs::read_to_string(repository().join("charts/slurm-cluster/values.yaml"))?;
    let values: Value = serde_saphyr::from_str(&values)?;
    let fields: BTreeSet<&str> = spec
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        // The API refuses these with a sentence of its own.
        .filter(|(_, field)| field.get("description").and_then(Value::as_str) != Some("Not supported yet."))
        .map(|(name, _)| name.as_str())
        .collect();
    let missing: Vec<&&str> = fields
        .iter()
        .filter(|name| values.get(**name).is_none())
        .collect();
    assert!(missing.is_empty(), "add to values.yaml: {missing:?}");
    Ok(())
}

/// A chart cannot include a template of another one.
#[test]
fn both_charts_turn_users_into_the_same_files() -> Result<()> {
    let read = |chart: &str| {
        let file = repository()
            .join("charts")
            .join(chart)
            .join("templates/_users.tpl");
        std::fs::read_to_string(file)
    };
    assert_eq!(
        read("slurm-cluster")?.replace("\"slurm-cluster.", "\"slurm."),
        read("slurm")?
    );
    Ok(())
}
