//! Tests that host lists are interpreted as by `scontrol`.

#[path = "../../testbed/src/slurm_daemons/mod.rs"]
#[allow(dead_code, reason = "every test uses another part of it")]
mod slurm_daemons;

use anyhow::Result;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rstest::rstest;
use slurm_conf::hostlist::{compress, expand};
use slurm_daemons::{Release, Setup, Slurm};

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// Expands a list with scontrol; returns `None` if scontrol rejects it.
fn hostnames(slurm: &Slurm, list: &str) -> Result<Option<Vec<String>>> {
    let output = slurm.output(&["scontrol", "show", "hostnames", list])?;
    let refused = !output.status.success() || String::from_utf8_lossy(&output.stderr).contains("Invalid");
    let names = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    Ok((!refused).then_some(names))
}

#[rstest]
fn lists_are_expanded_as_scontrol_expands_them(
    #[values(Release::V2411, Release::V2605)] release: Release,
) -> Result<()> {
    let Some(slurm) = Slurm::start(release, &Setup::default())? else {
        return Ok(());
    };
    let lists = [
        "a",
        "a[1-3]",
        "a[001-003,5]",
        "a[09-10]",
        "a[98-101]",
        "a[1-2]b[3-4]",
        "a[1-2][3-4]",
        "a[1-2]-ib",
        "a[1-2]x[01-02]-s",
        "a[1-2]0",
        "[1-3]",
        "a,,b",
        "a[1,3],b[2]",
        "a[0-1]b[0-1]c[0-1]",
        "gpu-[0-3,7]",
    ];
    for list in lists {
        let theirs = hostnames(&slurm, list)?.unwrap_or_default();
        assert_eq!(sorted(expand(list)?), sorted(theirs), "{list}");
    }
    for list in [
        "a[1-2",
        "a[]",
        "a[3-1]",
        "a[1,,2]",
        "a[1-70000]",
        "a[b-c]",
        "a[-1]",
        "a[00x11]",
        "a[ 1-2 ]",
    ] {
        assert!(hostnames(&slurm, list)?.is_none(), "scontrol takes {list}");
        assert!(expand(list).is_err(), "we take {list}");
    }
    Ok(())
}

#[rstest]
fn our_lists_are_read_back_by_scontrol(
    #[values(Release::V2411, Release::V2605)] release: Release,
) -> Result<()> {
    let Some(slurm) = Slurm::start(release, &Setup::default())? else {
        return Ok(());
    };
    let mut runner = TestRunner::new(Config {
        cases: 40,
        failure_persistence: None,
        ..Config::default()
    });
    let names = proptest::collection::btree_set("[a-c]{1,2}-?0{0,2}[0-9]{0,3}(-[a-z][0-9]?)?", 1..40);
    runner.run(&names, |names| {
        let list = compress(&names).unwrap();
        let theirs = hostnames(&slurm, &list).unwrap();
        prop_assert_eq!(theirs.map(sorted), Some(names.into_iter().collect()), "{}", list);
        Ok(())
    })?;
    Ok(())
}

/// Many nodes are compressed in the same way as by scontrol.
#[rstest]
fn a_fleet_is_compressed_as_scontrol_does(
    #[values(Release::V2411, Release::V2605)] release: Release,
) -> Result<()> {
    let Some(slurm) = Slurm::start(release, &Setup::default())? else {
        return Ok(());
    };
    let names: Vec<String> = (0..2_000)
        .filter(|n| n % 7 != 0)
        .map(|n| format!("worker-{n}"))
        .collect();
    let theirs = slurm.run(&["scontrol", "show", "hostlistsorted", &names.join(",")])?;
    assert_eq!(compress(&names)?, theirs.trim());
    Ok(())
}
