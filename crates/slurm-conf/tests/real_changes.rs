//! Tests the classes of changes on a real slurmctld with a running job.

#[path = "../../testbed/src/slurm_daemons/mod.rs"]
#[allow(dead_code, reason = "every test uses another part of it")]
mod slurm_daemons;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use slurm_conf::catalogue::File;
use slurm_conf::change::{Class, MustBeEmpty, change_class};
use slurm_conf::slurm_conf::{ControllerHost, NodeSet, Partition, SlurmConf, render};
use slurm_conf::syntax::parse;
use slurm_daemons::{ADDRESS, CLUSTER, HOST, Release, Setup, Slurm};

fn conf(nodesets: &[&str], extra: &str) -> Result<String> {
    let nodeset = |name: &&str| NodeSet {
        name: (*name).into(),
        feature: (*name).into(),
        partition: Some(Partition::default()),
    };
    let conf = SlurmConf {
        cluster_name: CLUSTER.into(),
        hosts: vec![ControllerHost {
            name: HOST.into(),
            address: Some(ADDRESS.into()),
        }],
        slurmctld_port: 6817,
        slurmd_port: 6818,
        nodesets: nodesets.iter().map(nodeset).collect(),
        extra_conf: format!(
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSlurmctldLogFile=/dev/stdout\n\
             SlurmdLogFile=/dev/stdout\nSlurmctldPidFile=/run/slurmctld/slurmctld.pid\n{extra}"
        ),
        ..SlurmConf::default()
    };
    Ok(render(&conf)?.text)
}

fn class(old: &str, new: &str) -> Result<Class> {
    let read = |text: &str| parse(File::Slurm, text, &BTreeMap::new()).map_err(|p| anyhow::anyhow!("{p:?}"));
    Ok(change_class(File::Slurm, &read(old)?, &read(new)?).class())
}

fn start_with_a_job(text: &str) -> Result<Option<(Slurm, String)>> {
    let setup = Setup {
        slurm_conf: Some(text.to_owned()),
        slurmd: Some("Feature=a".into()),
        managed: true,
        ..Setup::default()
    };
    let Some(slurm) = Slurm::start(Release::V2605, &setup)? else {
        return Ok(None);
    };
    let job = slurm.run(&[
        "sbatch",
        "--parsable",
        "-p",
        "a",
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 600",
    ])?;
    let job = job.trim().to_owned();
    eventually("the job runs", || Ok(state(&slurm, &job)? == "RUNNING"))?;
    Ok(Some((slurm, job)))
}

fn state(slurm: &Slurm, job: &str) -> Result<String> {
    Ok(slurm
        .run(&["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"])?
        .trim()
        .to_owned())
}

fn eventually(what: &str, condition: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition().unwrap_or(false) {
        if Instant::now() > deadline {
            condition().with_context(|| format!("not within 30 s: {what}"))?;
            bail!("not within 30 s: {what}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Parameters of many kinds, all of the class `Reconfigure`, with a value and its form in `scontrol show config`.
const RECONFIGURED: [(&str, &str, &str); 24] = [
    ("AccountingStoreFlags", "job_comment", "job_comment"),
    ("BatchStartTimeout", "33", "33 sec"),
    ("CompleteWait", "5", "5 sec"),
    ("DebugFlags", "Steps", "Steps"),
    ("DefMemPerCPU", "77", "77"),
    ("EnforcePartLimits", "ALL", "ALL"),
    ("GresTypes", "gpu", "gpu"),
    (
        "JobAcctGatherType",
        "jobacct_gather/linux",
        "jobacct_gather/linux",
    ),
    ("JobRequeue", "0", "0"),
    ("KillWait", "44", "44 sec"),
    ("Licenses", "fluent:7", "fluent:7"),
    ("MaxArraySize", "2002", "2002"),
    ("MaxJobCount", "12345", "12345"),
    ("MaxNodeCount", "4096", "4096"),
    ("MinJobAge", "120", "120 sec"),
    ("MpiDefault", "pmi2", "pmi2"),
    ("PriorityType", "priority/multifactor", "priority/multifactor"),
    ("ProctrackType", "proctrack/pgid", "proctrack/pgid"),
    ("SchedulerParameters", "defer", "defer"),
    ("SchedulerType", "sched/builtin", "sched/builtin"),
    ("SelectTypeParameters", "CR_Core_Memory", "CR_CORE_MEMORY"),
    ("SlurmctldTimeout", "99", "99 sec"),
    ("TaskPlugin", "task/affinity", "task/affinity"),
    ("TreeWidth", "20", "20"),
];

/// Shown with the configuration, but not set by a file.
const NO_PARAMETERS: [&str; 7] = [
    "BOOT_TIME",
    "HASH_VAL",
    "JobDefaults",
    "MULTIPLE_SLURMD",
    "NEXT_JOB_ID",
    "SLURM_CONF",
    "SLURM_VERSION",
];

/// Every parameter that slurmctld knows has a class; only unknown parameters require a restart of everything.
#[test]
fn no_parameter_of_slurmctld_is_unknown() -> Result<()> {
    let Some(slurm) = Slurm::start(Release::V2605, &Setup::default())? else {
        return Ok(());
    };
    let text = slurm.run(&["scontrol", "show", "config"])?;
    // The settings of other files follow the first blank line.
    let shown = text.lines().skip(1).take_while(|line| !line.trim().is_empty());
    // A parameter that may be repeated is shown with a number.
    let keys = shown.filter_map(|line| line.split(['=', '[']).next());
    let keys = keys.map(str::trim);
    let unknown = class("", "BrandNewThing=1")?;
    let all = [
        "AuthInfo",
        "CommunicationParameters",
        "CredType",
        "HashPlugin",
        "SlurmctldPort",
        "TLSParameters",
        "TLSType",
    ];
    let mut known = 0;
    let mut missing = Vec::new();
    for key in keys {
        if class("", &format!("{key}=1"))? != unknown || all.contains(&key) {
            known += 1;
        } else if !NO_PARAMETERS.contains(&key) {
            missing.push(key);
        }
    }
    assert_eq!(missing, Vec::<&str>::new());
    assert!(known > 150, "only {known} are shown");
    Ok(())
}

#[test]
fn what_is_called_reconfigurable_takes_effect_under_a_running_job() -> Result<()> {
    let old = conf(&["a"], "")?;
    let lines = RECONFIGURED.map(|(key, value, _)| format!("{key}={value}"));
    let new = conf(&["a"], &lines.join("\n"))?;
    assert_eq!(class(&old, &new)?, Class::Reconfigure);

    let Some((slurm, job)) = start_with_a_job(&old)? else {
        return Ok(());
    };
    slurm.write_public("/etc/slurm/slurm.conf", &new)?;
    slurm.signal_daemon("slurmctld", "HUP")?;
    let shown = |key: &str| -> Result<String> {
        let text = slurm.run(&["scontrol", "show", "config"])?;
        let line = text.lines().find_map(|l| {
            l.split_once('=')
                .filter(|(k, _)| k.trim().eq_ignore_ascii_case(key))
        });
        Ok(line
            .with_context(|| format!("{key} is not shown"))?
            .1
            .trim()
            .to_owned())
    };
    eventually("the new configuration is shown", || {
        Ok(shown("TreeWidth")? == "20")
    })?;
    for (key, _, value) in RECONFIGURED {
        assert_eq!(shown(key)?, value, "{key}");
    }
    assert_eq!(state(&slurm, &job)?, "RUNNING");
    Ok(())
}

#[test]
fn a_partition_that_is_dropped_under_a_job_kills_it_as_the_class_says() -> Result<()> {
    let (old, new) = (conf(&["a", "b"], "")?, conf(&["b"], "NodeSet=a Feature=a\n")?);
    let Class::KillsJobs { must_be_empty, .. } = class(&old, &new)? else {
        bail!("not seen as dangerous")
    };
    assert!(must_be_empty.contains(&MustBeEmpty::Partition("a".into())));

    let Some((slurm, job)) = start_with_a_job(&old)? else {
        return Ok(());
    };
    slurm.write_public("/etc/slurm/slurm.conf", &new)?;
    slurm.signal_daemon("slurmctld", "HUP")?;
    eventually("the job is killed", || Ok(state(&slurm, &job)? == "NODE_FAIL"))
}

/// Differently grouped lines, added nodes, and a set that gains nodes do not affect a running job.
#[test]
fn nodes_that_are_added_disturb_no_job() -> Result<()> {
    let old = conf(
        &["a"],
        "NodeName=w[1-2] CPUs=1 State=CLOUD\nNodeSet=w Nodes=w[1-2]\nPartitionName=w Nodes=w\n",
    )?;
    let new = conf(
        &["a"],
        "NodeName=w2 CPUs=1 State=CLOUD\nNodeName=w[1,3-4] CPUs=1 State=CLOUD\nNodeName=a0 CPUs=1 State=CLOUD\n\
         NodeSet=w Nodes=w[1-4]\nPartitionName=w Nodes=w\n",
    )?;
    assert_eq!(class(&old, &new)?, Class::Reconfigure);

    let Some((slurm, job)) = start_with_a_job(&old)? else {
        return Ok(());
    };
    slurm.write_public("/etc/slurm/slurm.conf", &new)?;
    slurm.signal_daemon("slurmctld", "HUP")?;
    let nodes = |of: &[&str]| -> Result<String> {
        let names = slurm.run(&[&["sinfo", "-h", "-o", "%N"], of].concat())?;
        Ok(names.trim().to_owned())
    };
    eventually("the new nodes are there", || {
        Ok(nodes(&["-p", "w"])? == "w[1-4]" && nodes(&["-n", "a0", "-a"]).is_ok())
    })?;
    slurm.run(&["scontrol", "show", "node", "a0"])?;
    assert_eq!(state(&slurm, &job)?, "RUNNING");
    assert_eq!(slurm.run(&["squeue", "-h", "-j", &job, "-o", "%N"])?.trim(), HOST);
    Ok(())
}

#[test]
fn a_new_cluster_name_is_refused_by_slurmctld_too() -> Result<()> {
    let old = conf(&["a"], "")?;
    let new = old.replace("ClusterName=test", "ClusterName=other");
    assert!(matches!(class(&old, &new)?, Class::Forbidden { .. }));

    let Some((slurm, job)) = start_with_a_job(&old)? else {
        return Ok(());
    };
    slurm.write_public("/etc/slurm/slurm.conf", &new)?;
    slurm.signal_daemon("slurmctld", "HUP")?;
    eventually("the refusal is logged", || {
        Ok(slurm.log("slurmctld").contains("reconfigure failed"))
    })?;
    slurm.write_public("/etc/slurm/slurm.conf", &old)?;
    assert_eq!(state(&slurm, &job)?, "RUNNING");
    Ok(())
}
