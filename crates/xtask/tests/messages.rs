//! Error messages of the tasks for missing objects, and the files that they leave behind.

#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn xtask(state: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(words)
        .env("KEELSON_STATE", state)
        .output()
        .unwrap()
}

fn refusal(state: &Path, words: &[&str]) -> String {
    let output = xtask(state, words);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The files of a cluster that was stopped long ago.
fn with_a_cluster() -> tempfile::TempDir {
    let state = tempfile::tempdir().unwrap();
    let logs = state.path().join("here/logs");
    fs::create_dir_all(&logs).unwrap();
    fs::write(logs.join("kube-apiserver.log"), "served").unwrap();
    state
}

#[test]
fn logs_of_a_cluster_that_is_not_there_name_those_that_are() {
    let state = with_a_cluster();
    let said = refusal(state.path(), &["logs", "--name", "nosuch"]);
    assert!(
        said.contains(r#"cluster "nosuch" does not exist; existing clusters: here"#),
        "{said}"
    );
    let empty = tempfile::tempdir().unwrap();
    let said = refusal(empty.path(), &["logs", "--name", "nosuch"]);
    assert!(said.contains("run `cargo xtask up --name nosuch`"), "{said}");
}

#[test]
fn logs_of_what_runs_in_pods_are_pointed_to() {
    let state = with_a_cluster();
    let said = refusal(state.path(), &["logs", "--name", "here", "slurmctld"]);
    assert!(said.contains("available logs: kube-apiserver"), "{said}");
    assert!(
        said.contains("cargo xtask kubectl --name here logs -n NAMESPACE POD"),
        "{said}"
    );
    let shown = xtask(state.path(), &["logs", "--name", "here", "kube-apiserver"]);
    assert_eq!(shown.stdout, b"served");
}

#[test]
fn a_cluster_that_is_taken_away_leaves_no_file() {
    let state = with_a_cluster();
    let output = xtask(state.path(), &["down", "--name", "here"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
}

#[test]
fn every_flag_has_a_word_of_help() {
    let state = tempfile::tempdir().unwrap();
    let help = xtask(state.path(), &["images", "--help"]).stdout;
    let help = String::from_utf8(help).unwrap();
    assert!(help.contains("Print the details of each step"), "{help}");
}
