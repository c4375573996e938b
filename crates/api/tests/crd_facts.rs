//! Compares the CRDs with Slinky's: `crd_facts.txt` and the tables here list the facts of both, and our CRDs must match
//! them exactly. A field that changes by accident fails, and so does a field that is not listed.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the helpers of a test may fail it"
)]

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use pretty_assertions::assert_eq;
use rstest::rstest;
use serde_json::{Value, json};

type Facts = BTreeMap<String, String>;

fn crd(kind: &str) -> CustomResourceDefinition {
    keelson_api::crds()
        .unwrap()
        .into_iter()
        .find(|crd| crd.spec.names.kind == kind)
        .unwrap()
}

fn version(kind: &str) -> Value {
    serde_json::to_value(&crd(kind).spec.versions[0]).unwrap()
}

fn fact(schema: &Value, required: bool) -> String {
    let mut words = Vec::new();
    let text = |key: &str| schema[key].as_str();
    let is = |key: &str| schema[key] == json!(true);
    words.push(
        match (is("x-kubernetes-int-or-string"), text("type"), text("format")) {
            (true, ..) => "int-or-string".to_owned(),
            (_, Some(kind), Some(format)) => format!("{kind}:{format}"),
            (_, Some(kind), None) => kind.to_owned(),
            (_, None, _) => "any".to_owned(),
        },
    );
    if schema.get("additionalProperties").is_some() {
        words.push(format!("of({})", fact(&schema["additionalProperties"], false)));
    }
    if is("nullable") {
        words.push("nullable".to_owned());
    }
    if let Some(default) = schema.get("default") {
        words.push(format!("={default}"));
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: BTreeSet<&str> = values.iter().map(|value| value.as_str().unwrap()).collect();
        words.push(format!(
            "enum({})",
            values.into_iter().collect::<Vec<_>>().join("|")
        ));
    }
    if let Some(minimum) = schema["minimum"].as_f64() {
        words.push(format!("min={minimum}"));
    }
    for (key, word) in [("minLength", "minLength="), ("maxLength", "maxLength=")] {
        if let Some(length) = schema[key].as_u64() {
            words.push(format!("{word}{length}"));
        }
    }
    if let Some(pattern) = text("pattern") {
        words.push(format!("pattern={pattern}"));
    }
    if is("x-kubernetes-preserve-unknown-fields") {
        words.push("raw".to_owned());
    }
    if let Some(kind) = text("x-kubernetes-map-type") {
        words.push(format!("map={kind}"));
    }
    if let Some(kind) = text("x-kubernetes-list-type") {
        let keys = schema["x-kubernetes-list-map-keys"]
            .as_array()
            .into_iter()
            .flatten();
        let keys: Vec<&str> = keys.map(|key| key.as_str().unwrap()).collect();
        let keys = if keys.is_empty() {
            String::new()
        } else {
            format!(":{}", keys.join(","))
        };
        words.push(format!("list={kind}{keys}"));
    }
    if required && schema.get("default").is_none() {
        words.push("required".to_owned());
    }
    words.join(" ")
}

fn walk(path: &str, schema: &Value, required: bool, facts: &mut Facts) {
    facts.insert(path.to_owned(), fact(schema, required));
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(
            &format!("{path}.{name}"),
            property,
            required.contains(&name.as_str()),
            facts,
        );
    }
    if let Some(items) = schema.get("items") {
        walk(&format!("{path}[]"), items, false, facts);
    }
}

/// Returns the lines of one section of the table, with the differences applied.
fn section(name: &str) -> Vec<(String, String)> {
    let mut lines: Vec<(String, String)> = Vec::new();
    let table = include_str!("crd_facts.txt");
    let body = table
        .split_once(&format!("[{name}]\n"))
        .unwrap_or_else(|| panic!("no section {name}"))
        .1;
    for line in body.lines().take_while(|line| !line.is_empty()) {
        let (mark, rest) = line.split_at(2);
        let (path, fact) = rest.split_once(' ').unwrap();
        let (path, fact) = (path.to_owned(), fact.trim().to_owned());
        match mark.trim() {
            "~" => lines.iter_mut().find(|(known, _)| *known == path).unwrap().1 = fact,
            _ => lines.push((path, fact)),
        }
    }
    lines
}

/// Adds a fact, with a reference to a shape replaced by the shape's facts.
fn expand(path: &str, fact: &str, facts: &mut Facts) {
    let Some(shape) = fact.strip_prefix('@') else {
        facts.insert(path.to_owned(), fact.to_owned());
        return;
    };
    let (shape, required) = shape.split_once(' ').unwrap_or((shape, ""));
    for (inner, fact) in section(&format!("@{shape}")) {
        if inner == "." {
            expand(path, format!("{fact} {required}").trim(), facts);
        } else {
            expand(&format!("{path}{inner}"), &fact, facts);
        }
    }
}

#[rstest]
fn every_field_is_as_written_down(
    #[values("Accounting", "Controller", "LoginSet", "NodeSet", "RestApi", "Token")] kind: &str,
) {
    let mut expected = Facts::new();
    for (path, fact) in section(kind) {
        expand(&path, &fact, &mut expected);
    }
    let version = version(kind);
    let root = &version["schema"]["openAPIV3Schema"]["properties"];
    let mut ours = Facts::new();
    for part in ["spec", "status"] {
        walk(part, &root[part], false, &mut ours);
    }
    assert_eq!(ours, expected);
}

#[rstest]
#[case("Accounting", "accountings", "accounting", &["slurmdbd"])]
#[case("Controller", "controllers", "controller", &["slurmctld"])]
#[case("LoginSet", "loginsets", "loginset", &["loginsets", "lss", "sackd"])]
#[case("NodeSet", "nodesets", "nodeset", &["nodesets", "nss", "slurmd"])]
#[case("RestApi", "restapis", "restapi", &["slurmrestd"])]
#[case("Token", "tokens", "token", &["tokens", "jwt"])]
fn names_are_the_peers(
    #[case] kind: &str,
    #[case] plural: &str,
    #[case] singular: &str,
    #[case] short_names: &[&str],
) {
    let crd = crd(kind);
    assert_eq!(crd.metadata.name, Some(format!("{plural}.slinky.slurm.net")));
    assert_eq!(
        (crd.spec.group.as_str(), crd.spec.scope.as_str()),
        ("slinky.slurm.net", "Namespaced")
    );
    assert_eq!(
        serde_json::to_value(&crd.spec.names).unwrap(),
        json!({ "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular,
                "shortNames": short_names, "categories": ["slurm"] })
    );
    // kubectl looks up one word as a name and as a category, so no word may be both.
    assert!(
        ![plural, singular]
            .iter()
            .chain(short_names)
            .any(|name| *name == "slurm")
    );
    let version = version(kind);
    assert_eq!(
        (&version["name"], &version["served"], &version["storage"]),
        (&json!("v1beta1"), &json!(true), &json!(true))
    );
    assert_eq!(crd.spec.versions.len(), 1);
}

/// Name, type, path; `+1` marks the columns of `-o wide`.
#[rstest]
#[case("Accounting", &["AGE date .metadata.creationTimestamp"])]
#[case("Controller", &["AGE date .metadata.creationTimestamp"])]
#[case("RestApi", &["AGE date .metadata.creationTimestamp"])]
#[case("LoginSet", &["REPLICAS integer .status.replicas", "AGE date .metadata.creationTimestamp"])]
#[case("Token", &["USER string .spec.username", "IAT date .status.issuedAt", "AGE date .metadata.creationTimestamp"])]
#[case("NodeSet", &["DESIRED integer .status.desired", "REPLICAS integer .status.replicas",
    "UPDATED integer .status.updatedReplicas", "READY integer .status.readyReplicas",
    "IDLE integer .status.slurmIdle +1", "ALLOCATED integer .status.slurmAllocated +1",
    "DOWN integer .status.slurmDown +1", "DRAIN integer .status.slurmDrain +1",
    "AGE date .metadata.creationTimestamp"])]
fn printer_columns_are_the_peers_and_then_ours(#[case] kind: &str, #[case] peer: &[&str]) {
    let columns: Vec<String> = crd(kind).spec.versions[0]
        .additional_printer_columns
        .iter()
        .flatten()
        .map(|column| {
            let wide = column
                .priority
                .map_or(String::new(), |priority| format!(" +{priority}"));
            format!("{} {} {}{wide}", column.name, column.type_, column.json_path)
        })
        .collect();
    let mut expected: Vec<String> = peer.iter().map(|&column| column.to_owned()).collect();
    let ours = [
        r#"AVAILABLE string .status.conditions[?(@.type=="Ready")].status"#,
        r#"DEGRADED string .status.conditions[?(@.type=="Degraded")].status"#,
        r#"REASON string .status.conditions[?(@.type=="Degraded")].reason"#,
    ];
    expected.extend(ours.map(str::to_owned));
    assert_eq!(columns, expected);
}

#[rstest]
fn subresources_are_the_peers(
    #[values("Accounting", "Controller", "LoginSet", "NodeSet", "RestApi", "Token")] kind: &str,
) {
    let expected = if ["LoginSet", "NodeSet"].contains(&kind) {
        json!({ "status": {}, "scale": { "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                                         "labelSelectorPath": ".status.selector" } })
    } else {
        json!({ "status": {} })
    };
    assert_eq!(version(kind)["subresources"], expected);
}

/// The messages start with Slinky's, so that users can search for them. Slinky has no `auth`.
#[rstest]
#[case("Accounting", "", &["slurmKeyRef must be set when external is false",
    "jwtKeyRef or jwtHs256KeyRef must be set when external is false", "externalConfig must be set when external is true",
    "the type cannot be changed"])]
#[case("Controller", "", &["slurmKeyRef must be set when external is false",
    "jwtKeyRef or jwtHs256KeyRef must be set when external is false", "externalConfig must be set when external is true",
    "slurm high availability (HA) mode requires existing PVC with an access mode of ReadWriteMany",
    "the type cannot be changed"])]
#[case("LoginSet", "", &["sssdConfRef must be set, or sssd.enabled must be false"])]
#[case("NodeSet", "", &[])]
#[case("NodeSet", "/properties/ssh", &["sssdConfRef must be set, or sssd.enabled must be false"])]
#[case("NodeSet", "/properties/partition", &["config must be one line"])]
#[case("NodeSet", "/properties/updateStrategy",
    &["scheduledUpdate.startTime and scheduledUpdate.duration are required when type is ScheduledUpdate"])]
#[case("RestApi", "", &[])]
#[case("Token", "", &["jwtKeyRef or jwtHs256KeyRef must be set"])]
#[case("SlurmCluster", "", &["hibernate is not supported yet", "exporter is not supported yet",
    "the Slurm release of a cluster cannot be changed here yet", "the type cannot be changed"])]
fn rules_are_the_peers(#[case] kind: &str, #[case] at: &str, #[case] messages: &[&str]) {
    let version = version(kind);
    let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let schema = spec.pointer(at).unwrap();
    let rules: Vec<&Value> = schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(rules.len(), messages.len());
    for (rule, message) in rules.iter().zip(messages) {
        assert!(rule["message"].as_str().unwrap().starts_with(message), "{rule}");
        let field = rule["fieldPath"].as_str().unwrap().trim_start_matches('.');
        assert!(schema["properties"].get(field).is_some(), "{field} is no field");
        guards_optional_fields(schema, rule["rule"].as_str().unwrap());
    }
}

/// Checks that rules test optional fields with `has`: otherwise an absent field causes an evaluation error instead of
/// the rule's message.
fn guards_optional_fields(schema: &Value, rule: &str) {
    for (at, _) in rule.match_indices("self.") {
        let path: String = rule[at..]
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '.')
            .collect::<String>();
        let path = path.trim_end_matches(".size").trim_end_matches(".contains");
        let mut schema = schema;
        let mut so_far = "self".to_owned();
        for name in path.split('.').skip(1) {
            schema = &schema["properties"][name];
            so_far = format!("{so_far}.{name}");
            let guarded = schema.get("default").is_some() || rule.contains(&format!("has({so_far})"));
            assert!(guarded, "{so_far} may be absent in {rule}");
        }
    }
}
