//! Fuzz targets: one function for each parser and writer of input from users or servers. `fuzz/` runs them with
//! libFuzzer for any length of time; `tests/short_run.rs` runs them for seconds on every change.
//!
//! A target panics when a guarantee is broken, and returns whether the input got past the parser. It must work in
//! memory only and depend on nothing but its input, so that a failure can be reproduced.

#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a target fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};

use slurm_conf::catalogue::{File, Shape};
use slurm_conf::change::{Class, change_class};
use slurm_conf::hostlist::Hostlist;
use slurm_conf::node_conf;
use slurm_conf::slurm_conf::{ControllerHost, NodeSet, Partition, SlurmConf};
use slurm_conf::sshd_config::{self, Role};
use slurm_conf::syntax::{Statement, parse};
use slurm_conf::vocabulary;

/// Checks that a parsed list is unchanged after it is written and parsed again, and after its names are compressed.
pub fn hostlist(input: &[u8]) -> bool {
    let Some(list) = text(input).and_then(|text| text.parse::<Hostlist>().ok()) else {
        return false;
    };
    assert_eq!(list.to_string().parse::<Hostlist>().as_ref(), Ok(&list));
    if list.len() > 10_000 {
        return true;
    }
    let names: BTreeSet<String> = list.names().collect();
    let compressed = Hostlist::from_names(&names).expect("a name of a list is a name");
    assert_eq!(compressed.names().collect::<BTreeSet<_>>(), names);
    assert_eq!(
        compressed.len(),
        u64::try_from(names.len()).expect("there are few")
    );
    true
}

/// Checks that accepted worker parameters contain nothing that a shell or Slurm would interpret differently and none
/// that the operator sets, and that they are unchanged after they are parsed again.
pub fn node_conf(input: &[u8]) -> bool {
    let Some(conf) = text(input).and_then(|text| node_conf::parse(text).ok()) else {
        return false;
    };
    let mut words: Vec<String> = conf.parameters.iter().map(|(k, v)| format!("{k}={v}")).collect();
    if !conf.features.is_empty() {
        words.push(format!("Features={}", conf.features.join(",")));
    }
    for word in &words {
        let plain = |c: char| !c.is_control() && !c.is_whitespace() && !"'\"`$\\;&|<>#".contains(c);
        assert!(word.chars().all(plain), "{word:?}");
        let key = word.split('=').next().unwrap_or_default().to_ascii_lowercase();
        let ours = ["nodename", "nodehostname", "port"];
        assert!(!ours.contains(&key.as_str()), "{word:?} is the operator's");
    }
    let again = node_conf::parse(&words.join(" ")).expect("what was taken is taken again");
    assert_eq!(again.parameters, conf.parameters);
    assert_eq!(again.features, conf.features);
    true
}

/// Checks that no response makes the decoder of slurmrestd's lists panic.
pub fn node_list(input: &[u8]) -> bool {
    slurm_rest::node::decode_nodes(input).is_ok()
}

/// Checks that any bytes are handled as a review without a panic, and that the response is JSON.
pub fn review(input: &[u8]) -> bool {
    let Ok(answer) = keelson_webhook::answer_alone(input) else {
        return false;
    };
    let text = serde_json::to_string(&answer).expect("an answer is JSON");
    assert!(text.contains("\"uid\""));
    true
}

/// Checks that a rendered file contains the operator's required settings and every parameter once, whatever a user
/// writes. The input is `extraConf`, a partition's options and the cluster's name, separated by NUL.
pub fn slurm_conf(input: &[u8]) -> bool {
    let Some(input) = text(input) else { return false };
    let mut parts = input.splitn(3, '\0');
    let mut part = || parts.next().unwrap_or_default().to_owned();
    let (extra_conf, partition_config, name) = (part(), part(), part());
    let conf = SlurmConf {
        cluster_name: name.clone(),
        hosts: vec![ControllerHost {
            name: "c0".into(),
            address: None,
        }],
        slurmctld_port: 6817,
        slurmd_port: 6818,
        nodesets: vec![NodeSet {
            name: "set".into(),
            feature: "set".into(),
            partition: Some(Partition {
                config: partition_config,
                leaving: false,
            }),
        }],
        extra_conf,
        ..SlurmConf::default()
    };
    let Ok(rendered) = slurm_conf::slurm_conf::render(&conf) else {
        return false;
    };
    let document =
        parse(File::Slurm, &rendered.text, &BTreeMap::new()).expect("what is rendered can be read");
    let mut seen = BTreeSet::new();
    for statement in &document.statements {
        let key = statement.head.key.to_ascii_lowercase();
        if File::Slurm.shape(&key) == Shape::Single {
            assert!(seen.insert(key.clone()), "{key} stands twice");
        }
        assert!(
            key != "slurmctldhost" || statement.head.value == "c0",
            "a host was added"
        );
    }
    assert_eq!(document.get("ClusterName"), Some(&*name));
    assert_eq!(document.get("SlurmUser"), Some("slurm"));
    assert_eq!(document.get("AuthType"), Some("auth/slurm"));
    let again = slurm_conf::slurm_conf::render(&conf);
    assert_eq!(again.as_ref(), Ok(&rendered), "not the same bytes twice");
    true
}

/// Checks that a worker always uses PAM, outside of any block, whatever a user writes.
pub fn sshd_config(input: &[u8]) -> bool {
    let Some(rendered) = text(input).and_then(|extra| sshd_config::render(Role::Worker, extra).ok()) else {
        return false;
    };
    let lower: Vec<String> = rendered.text.lines().map(str::to_ascii_lowercase).collect();
    let global = lower.iter().take_while(|line| !line.starts_with("match "));
    let pam: Vec<&String> = global.filter(|line| line.starts_with("usepam ")).collect();
    assert_eq!(pam, ["usepam yes"]);
    true
}

/// Checks that a parsed Slurm file is unchanged after it is written and parsed again.
pub fn syntax(input: &[u8]) -> bool {
    let Some(text) = text(input) else { return false };
    let files = [File::Slurm, File::Slurmdbd, File::Cgroup, File::Gres];
    // Not `any`, because every kind of file must be tried.
    files.map(|file| means_the_same_again(file, text)).contains(&true)
}

fn means_the_same_again(file: File, text: &str) -> bool {
    let Ok(document) = parse(file, text, &BTreeMap::new()) else {
        return false;
    };
    for note in vocabulary::notes(file, &document) {
        assert!(!note.to_string().is_empty(), "{note:?}");
    }
    let lines: Result<Vec<_>, _> = document.statements.iter().map(Statement::encode).collect();
    let Ok(lines) = lines else { return false };
    let again = parse(file, &lines.join("\n"), &BTreeMap::new()).expect("what is written can be read");
    let plain = |statements: &[Statement]| {
        let parts = statements.iter().map(|s| (s.head.clone(), s.attributes.clone()));
        parts.collect::<Vec<_>>()
    };
    assert_eq!(plain(&again.statements), plain(&document.statements));
    // An unresolved `Include` is not a statement and is not written.
    if document.includes.is_empty() {
        assert_eq!(change_class(file, &document, &again).class(), Class::None);
    }
    true
}

fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}
