//! Tests that the notes on parameters and values match the errors of a real Slurm.

#[path = "../../testbed/src/slurm_daemons/mod.rs"]
#[allow(dead_code, reason = "every test uses another part of it")]
mod slurm_daemons;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use rstest::rstest;
use slurm_conf::catalogue::File;
use slurm_conf::syntax::parse;
use slurm_conf::vocabulary::notes;
use slurm_daemons::{Release, Setup, Slurm};

const FILE: &str = "/etc/slurm/tried.conf";

/// Lines that all releases accept, and lines that none accepts.
const LINES: [&str; 30] = [
    "KillWait=60",
    "killwait=0x10",
    "KillWait=UNLIMITED",
    "KillWait=1k",
    "KillWait=soon",
    "KillWait=-1",
    "KillWait=65536",
    "KilWait=30",
    "Frobnicate=1",
    "MinJobAge=2k",
    "MinJobAge=5min",
    "DefMemPerCPU=1G",
    "UsePAM=yes",
    "UsePAM=maybe",
    "TrackWCKey=0",
    "PriorityMaxAge=7-0",
    "PriorityMaxAge=long",
    "PriorityDecayHalfLife=14-00:00:00",
    "PreemptExemptTime=-1",
    "NodeName=a[1-3] CPUs=4 State=UNKNOWN",
    "NodeName=a CPUs=many",
    "NodeName=a Featrues=x",
    "PartitionName=p Nodes=ALL MaxTime=1-0:30 State=UP OverSubscribe=FORCE:4",
    "PartitionName=p Nodes=ALL MaxTime=forever",
    "PartitionName=p Nodes=ALL MaxTime=2-",
    "PartitionName=p Nodes=ALL MaxTime=1h",
    "PartitionName=p Nodes=ALL State=OPEN",
    "PartitionName=p Nodes=ALL Default=perhaps",
    "PartitionName=p Nodes=ALL OverSubscribe=some",
    "PartitionName=p Nodes=ALL Maxtmie=4",
];

#[rstest]
fn what_is_noted_is_what_slurm_ends_on(
    #[values(Release::V2411, Release::V2605)] release: Release,
) -> Result<()> {
    let Some(slurm) = Slurm::start(release, &Setup::default())? else {
        return Ok(());
    };
    let base = slurm.run(&["cat", "/etc/slurm/slurm.conf"])?;
    // Two partitions or two nodes with the same name would be an error of their own.
    let base: Vec<&str> = base
        .lines()
        .filter(|line| !line.starts_with("NodeName") && !line.starts_with("PartitionName"))
        .collect();
    let base = base.join("\n");
    let mut wrong = Vec::new();
    for line in LINES {
        slurm.write_public(FILE, format!("{base}\n{line}\n"))?;
        // This reads the file without contacting slurmctld.
        let output = slurm.output(&[
            "env",
            &format!("SLURM_CONF={FILE}"),
            "scontrol",
            "show",
            "hostnames",
            "a",
        ])?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let document = parse(File::Slurm, line, &BTreeMap::new()).map_err(|p| anyhow::anyhow!("{p:?}"))?;
        let noted = notes(File::Slurm, &document);
        if output.status.success() != noted.is_empty() {
            wrong.push(format!("{line}: noted {noted:?}, and Slurm said {said:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
