//! Checks that the webhook cannot make: the contents of ConfigMaps.
#![allow(
    clippy::needless_pass_by_value,
    reason = "json! literals read better unborrowed"
)]

use std::{collections::BTreeMap, sync::Arc};

use pretty_assertions::assert_eq;
use rstest::rstest;
use serde_json::{Value, json};

use crate::controller::{
    tests::observed,
    validate::{Validated, validate},
};

/// Validates a Controller with these ConfigMaps: the notes, or the reason and message of the problem.
fn judged(spec: Value, maps: Value) -> Result<Vec<String>, [String; 2]> {
    let mut observed = observed(spec);
    observed.config_maps = maps
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, data)| {
            let map = json!({ "metadata": { "name": name }, "data": data });
            (name.clone(), Some(Arc::new(serde_json::from_value(map).unwrap())))
        })
        .collect::<BTreeMap<_, _>>();
    match validate(&observed) {
        Ok(Validated::Internal(internal)) => Ok(internal.notes),
        Ok(Validated::External(_)) => Ok(vec![]),
        Err(problem) => Err([problem.reason.to_owned(), problem.message]),
    }
}

#[rstest]
#[case::reserved(json!({ "configFileRefs": [{ "name": "files" }] }), json!({ "files": { "slurm.conf": "" } }),
    "InvalidSpec", "ConfigMap files has the file slurm.conf, which is written by the operator")]
#[case::a_key(json!({ "configFileRefs": [{ "name": "files" }] }), json!({ "files": { "slurm.key": "x" } }),
    "InvalidSpec", "ConfigMap files has the file slurm.key, which comes from a Secret")]
#[case::the_key_set(json!({ "configFileRefs": [{ "name": "files" }], "jwksKeyRef": { "name": "jwks", "key": "k" } }),
    json!({ "files": { "jwks.json": "{}" }, "jwks": { "k": "{}" } }),
    "InvalidSpec", "ConfigMap files has the file jwks.json, which comes from spec.jwksKeyRef")]
#[case::missing_key(json!({ "jwksKeyRef": { "name": "jwks", "key": "other" } }), json!({ "jwks": { "k": "{}" } }),
    "ReferenceMissing", "ConfigMap jwks has no key \"other\"")]
#[case::include(json!({ "configFileRefs": [{ "name": "files" }], "extraConf": "Include a.conf" }),
    json!({ "files": { "a.conf": "KillWait=30\nInclude b.conf" } }),
    "ReferenceMissing", "ConfigMap files: a.conf line 2: Include b.conf: no ConfigMap of spec.configFileRefs has")]
#[case::topology(json!({ "configFileRefs": [{ "name": "files" }], "extraConf": "Include a.conf" }),
    json!({ "files": { "a.conf": "TopologyPlugin=topology/tree" } }),
    "ReferenceMissing", "ConfigMap files: a.conf line 1: TopologyPlugin=topology/tree needs topology.yaml or topology.conf, and no")]
#[case::hosts(json!({ "configFileRefs": [{ "name": "files" }], "extraConf": "Include a.conf" }),
    json!({ "files": { "a.conf": "PartitionName=p Nodes=n[0-" } }),
    "InvalidSpec", "ConfigMap files: a.conf line 1: Nodes is not a valid host list")]
#[case::select_type(json!({ "extraConf": "KillWait=30\nSelectType=select/linear" }), json!({}),
    "InvalidSpec", "spec.extraConf line 2: SelectType=select/linear")]
fn what_no_slurmctld_runs_with_is_named_with_file_and_line(
    #[case] spec: Value,
    #[case] maps: Value,
    #[case] reason: &str,
    #[case] message: &str,
) {
    let [found, text] = judged(spec, maps).unwrap_err();
    assert_eq!(found, reason, "{text}");
    assert!(text.starts_with(message), "{text}");
}

#[rstest]
#[case::nothing(json!({ "configFileRefs": [{ "name": "a" }] }), json!({ "a": { "gres.conf": "" } }), &[])]
#[case::included(json!({ "configFileRefs": [{ "name": "a" }], "extraConf": "Include b.conf" }), json!({ "a": { "b.conf": "KillWait=30" } }), &[])]
#[case::unread(json!({ "configFileRefs": [{ "name": "a" }] }), json!({ "a": { "b.conf": "" } }),
    &["Slurm does not read b.conf of ConfigMap a on its own: include it in a file that Slurm reads"])]
#[case::no_script(json!({ "prologScriptRefs": [{ "name": "a" }] }), json!({ "a": {} }),
    &["ConfigMap a of spec.prologScriptRefs holds no script"])]
#[case::twice(json!({ "prologScriptRefs": [{ "name": "a" }, { "name": "b" }] }), json!({ "a": { "x": "" }, "b": { "x": "" } }),
    &["x is in ConfigMap a and in ConfigMap b; the one in b is used"])]
#[case::a_word(json!({ "configFileRefs": [{ "name": "a" }], "extraConf": "Include b.conf" }), json!({ "a": { "b.conf": "KilWait=30" } }),
    &["ConfigMap a: b.conf line 1: unknown parameter KilWait; did you mean KillWait? Slurm rejects a file that contains it"])]
fn what_is_probably_not_meant_is_a_note(#[case] spec: Value, #[case] maps: Value, #[case] expected: &[&str]) {
    assert_eq!(judged(spec, maps).unwrap(), expected);
}

#[test]
fn a_line_that_cannot_be_read_is_named_and_not_quoted() {
    let mut observed =
        observed(json!({ "configFileRefs": [{ "name": "app" }], "extraConf": "Include settings.yaml" }));
    let map = json!({ "metadata": { "name": "app" }, "data": { "settings.yaml": "password: hunter2\nuser=a hunter2" } });
    observed.config_maps = BTreeMap::from([(
        "app".to_owned(),
        Some(Arc::new(serde_json::from_value(map).unwrap())),
    )]);
    let validated = validate(&observed).unwrap();
    let text = crate::controller::build::render(&validated)
        .unwrap_err()
        .to_string();
    assert!(text.contains("settings.yaml line 1"), "{text}");
    assert!(text.contains("settings.yaml line 2"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}
