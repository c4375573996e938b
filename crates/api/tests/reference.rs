//! Tests that the documentation's page about the fields matches the types. `cargo xtask crds` rewrites it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the helpers of a test may fail it"
)]

use std::fmt::Write as _;
use std::path::Path;

use pretty_assertions::assert_eq;
use serde_json::Value;

const HEAD: &str = "\
# Fields of the API

`SlurmCluster` is in group `keelson.dev`, version `v1alpha1`, and the other kinds are in group `slinky.slurm.net`, version
`v1beta1`. Generated from the types. Fields of a SlurmCluster's `controller`, `accounting`, `restApi`, `login.<name>` and
`nodeSets.<name>` that have the same name in the child's kind are described there. [What is checked](../explanation/admission.md) describes
the validation beyond the types, and [Conditions](conditions.md) the conditions. Without the chart, you must set the `image` of each
container: [Without the chart](../how-to/manifests.md) shows a whole cluster.
";

#[test]
fn the_reference_is_made_from_the_types() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference/api.md");
    let wanted = render();
    if std::env::var_os("KEELSON_BLESS").is_some() {
        std::fs::write(&page, &wanted).unwrap();
    }
    let stored = std::fs::read_to_string(&page).unwrap_or_default();
    assert_eq!(stored, wanted, "run `cargo xtask crds`");
}

fn render() -> String {
    let mut page = HEAD.to_owned();
    for crd in keelson_api::crds().unwrap() {
        let names = &crd.spec.names;
        let _ = write!(page, "\n## {}\n", names.kind);
        // Slinky lists some plurals among the short names.
        let short = names
            .short_names
            .iter()
            .flatten()
            .filter(|name| **name != names.plural);
        let short: Vec<String> = short.map(|name| format!("`{name}`")).collect();
        let _ = write!(
            page,
            "\n`kubectl get {}`, or by {}.\n",
            names.plural,
            short.join(", ")
        );
        let version = serde_json::to_value(crd.spec.versions.first().unwrap()).unwrap();
        let schema = &version["schema"]["openAPIV3Schema"]["properties"];
        for part in ["spec", "status"] {
            page.push_str("\n| field | type | default | |\n|---|---|---|---|\n");
            rows(part, &schema[part], &mut page);
        }
    }
    page
}

fn rows(path: &str, schema: &Value, page: &mut String) {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let here = format!("{path}.{name}");
        let default = match property.get("default") {
            Some(default) => format!("`{default}`"),
            None if required.contains(&name.as_str()) => "required".to_owned(),
            None => String::new(),
        };
        let text = property["description"].as_str().unwrap_or_default();
        let text = text.replace('\n', " ").replace('|', "\\|");
        let kind = kind(property).replace('|', "\\|");
        let _ = writeln!(page, "| `{here}` | {kind} | {default} | {text} |");
        rows(&here, property, page);
        if let Some(items) = property.get("items") {
            rows(&format!("{here}[]"), items, page);
        }
    }
}

fn kind(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values
            .iter()
            .filter_map(Value::as_str)
            .map(|v| format!("`{v}`"))
            .collect();
        return values.join(", ");
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return "number or text".to_owned();
    }
    match schema["type"].as_str() {
        Some("array") => format!("list of {}", kind(&schema["items"])),
        Some("object") if schema.get("additionalProperties").is_some() => "map".to_owned(),
        Some("object") if schema["x-kubernetes-preserve-unknown-fields"] == true => "any fields".to_owned(),
        Some("string") if schema["format"] == "date-time" => "time".to_owned(),
        Some("string") => "text".to_owned(),
        Some("integer") => "number".to_owned(),
        Some("boolean") => "true or false".to_owned(),
        Some(other) => other.to_owned(),
        None => "any".to_owned(),
    }
}
