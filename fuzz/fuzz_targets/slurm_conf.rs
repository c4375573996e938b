//! Whatever a user writes, the file that is rendered keeps what the operator needs, and every parameter once.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use libfuzzer_sys::fuzz_target;
use slurm_conf::catalogue::{File, Shape};
use slurm_conf::slurm_conf::{ControllerHost, NodeSet, Partition, SlurmConf, render};
use slurm_conf::syntax::parse;

fuzz_target!(|input: (&str, &str, &str)| {
    let (extra_conf, partition_config, name) = input;
    let conf = SlurmConf {
        cluster_name: name.to_owned(),
        hosts: vec![ControllerHost { name: "c0".into(), address: None }],
        slurmctld_port: 6817,
        slurmd_port: 6818,
        nodesets: vec![NodeSet {
            name: "set".into(),
            feature: "set".into(),
            partition: Some(Partition { config: partition_config.to_owned(), leaving: false }),
        }],
        extra_conf: extra_conf.to_owned(),
        ..SlurmConf::default()
    };
    let Ok(rendered) = render(&conf) else { return };
    let document = parse(File::Slurm, &rendered.text, &BTreeMap::new()).expect("what is rendered can be read");
    let mut seen = BTreeSet::new();
    for statement in &document.statements {
        let key = statement.head.key.to_ascii_lowercase();
        if File::Slurm.shape(&key) == Shape::Single {
            assert!(seen.insert(key.clone()), "{key} stands twice");
        }
        assert!(key != "slurmctldhost" || statement.head.value == "c0", "a host was added");
    }
    assert_eq!(document.get("ClusterName"), Some(name));
    assert_eq!(document.get("SlurmUser"), Some("slurm"));
    assert_eq!(document.get("AuthType"), Some("auth/slurm"));
    assert_eq!(render(&conf).as_ref(), Ok(&rendered), "not the same bytes twice");
});
