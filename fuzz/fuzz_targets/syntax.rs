//! A text that is read means the same when it is written and read again.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use slurm_conf::catalogue::File;
use slurm_conf::syntax::{Statement, parse};

fuzz_target!(|text: &str| {
    for file in [File::Slurm, File::Slurmdbd, File::Cgroup, File::Gres] {
        let Ok(document) = parse(file, text, &BTreeMap::new()) else { continue };
        let Ok(lines) = document.statements.iter().map(Statement::encode).collect::<Result<Vec<_>, _>>() else { continue };
        let again = parse(file, &lines.join("\n"), &BTreeMap::new()).expect("what is written can be read");
        let plain = |statements: &[Statement]| {
            statements.iter().map(|s| (s.head.clone(), s.attributes.clone())).collect::<Vec<_>>()
        };
        assert_eq!(plain(&again.statements), plain(&document.statements));
    }
});
