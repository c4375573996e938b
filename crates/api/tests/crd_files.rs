//! Tests that the chart's CRD files match the types. `KEELSON_BLESS=1 cargo test -p keelson-api` rewrites them.

use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use pretty_assertions::assert_eq;

fn chart_templates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/slurm-operator-crds/templates")
}

#[test]
fn the_charts_crd_files_are_made_from_the_types() {
    let folder = chart_templates();
    let wanted = keelson_api::crds_yaml().unwrap();
    if std::env::var_os("KEELSON_BLESS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (file, yaml) in &wanted {
            std::fs::write(folder.join(file), yaml).unwrap();
        }
    }
    for (file, yaml) in &wanted {
        let stored = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        assert_eq!(
            &stored, yaml,
            "{file} differs from the types: run the tests with KEELSON_BLESS=1"
        );
    }
    let mut stored: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    stored.sort();
    assert_eq!(
        stored,
        wanted.into_iter().map(|(file, _)| file).collect::<Vec<_>>()
    );
}

#[test]
fn the_yaml_reads_back_as_the_same_crd() {
    let crds = keelson_api::crds().unwrap();
    for (crd, (file, yaml)) in crds.iter().zip(keelson_api::crds_yaml().unwrap()) {
        let read: CustomResourceDefinition = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(&read, crd, "{file}");
    }
}

#[test]
fn crds_are_small_and_hold_nothing_that_helm_would_expand() {
    for (file, yaml) in keelson_api::crds_yaml().unwrap() {
        // etcd rejects objects above 1.5 MiB; client-side apply stores a second copy of up to 256 KiB.
        assert!(yaml.len() < 128 * 1024, "{file} has {} bytes", yaml.len());
        assert!(!yaml.contains("{{"), "{file} holds a template action");
    }
}

#[test]
fn every_field_is_documented() {
    fn walk(path: &str, schema: &serde_json::Value, missing: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let here = format!("{path}.{name}");
            let upstream = ["metadata", "selector", "dataSource", "dataSourceRef"]
                .iter()
                .any(|known| here.ends_with(&format!(".persistence.{known}")) || here == format!(".{known}"));
            if property.get("description").is_none() && !upstream {
                missing.push(here.clone());
            }
            if !upstream {
                walk(&here, property, missing);
                walk(&here, &property["items"], missing);
            }
        }
    }
    for crd in keelson_api::crds().unwrap() {
        let value = serde_json::to_value(&crd).unwrap();
        let mut missing = Vec::new();
        walk(
            "",
            &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
            &mut missing,
        );
        assert!(
            missing.is_empty(),
            "{}: no description for {missing:?}",
            crd.spec.names.kind
        );
    }
}
