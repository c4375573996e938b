//! A list that is read means the same when it is written and read again, and when its names are compressed.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use slurm_conf::hostlist::Hostlist;

fuzz_target!(|text: &str| {
    let Ok(list) = text.parse::<Hostlist>() else { return };
    assert_eq!(list.to_string().parse::<Hostlist>().as_ref(), Ok(&list));
    if list.len() > 10_000 {
        return;
    }
    let names: BTreeSet<String> = list.names().collect();
    let compressed = Hostlist::from_names(&names).expect("a name of a list is a name");
    assert_eq!(compressed.names().collect::<BTreeSet<_>>(), names);
    assert_eq!(compressed.len(), names.len() as u64);
});
