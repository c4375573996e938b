//! Tests that the real daemons accept every generated file and use its values.

#[path = "../../testbed/src/slurm_daemons/mod.rs"]
#[allow(dead_code, reason = "every test uses another part of it")]
mod slurm_daemons;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use rstest::rstest;
use slurm_conf::catalogue::{File, Shape};
use slurm_conf::cgroup_conf::{self, CgroupPlugin};
use slurm_conf::slurm_conf::{
    AccountingHost, AuthType, ControllerHost, ExternalSlurmConf, NodeSet, Partition, Scripts, SlurmConf,
    render, render_external,
};
use slurm_conf::slurmdbd_conf::{self, SlurmdbdConf, Storage};
use slurm_conf::sshd_config::{self, Role};
use slurm_conf::syntax::{Document, Statement, parse};
use slurm_conf::topology;
use slurm_daemons::{ADDRESS, CLUSTER, HOST, Release, Setup, Slurm};

/// A test machine has no control groups, and the daemons must log to where the harness reads.
const HERE: &str = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
                    SlurmctldLogFile=/dev/stdout\nSlurmSchedLogFile=/dev/null\nSlurmdLogFile=/dev/stdout\n";

fn small(extra: &str) -> SlurmConf {
    SlurmConf {
        cluster_name: CLUSTER.into(),
        hosts: vec![ControllerHost {
            name: HOST.into(),
            address: Some(ADDRESS.into()),
        }],
        slurmctld_port: 6817,
        slurmd_port: 6818,
        service_address: Some(ADDRESS.into()),
        nodesets: vec![NodeSet {
            name: "slinky".into(),
            feature: "slinky".into(),
            partition: None,
        }],
        extra_conf: format!("{HERE}{extra}"),
        ..SlurmConf::default()
    }
}

fn start(release: Release, conf: &SlurmConf, setup: Setup) -> Result<Option<Slurm>> {
    let rendered = render(conf)?;
    Slurm::start(
        release,
        &Setup {
            slurm_conf: Some(rendered.text),
            ..setup
        },
    )
}

fn document(conf: &SlurmConf) -> Result<Document> {
    parse(File::Slurm, &render(conf)?.text, &BTreeMap::new()).map_err(|p| anyhow::anyhow!("{p:?}"))
}

/// Returns the output of `scontrol show config`, by parameter in lower case.
fn shown(slurm: &Slurm) -> Result<BTreeMap<String, String>> {
    let text = slurm.run(&["scontrol", "show", "config"])?;
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    Ok(pairs
        .map(|(key, value)| (key.trim().to_lowercase(), value.trim().to_owned()))
        .collect())
}

/// Normalizes a value: slurmctld prints units and user IDs after the values, and nothing for a plugin named none.
fn plain(value: &str) -> String {
    if value == "(null)" || value.ends_with("/none") {
        return "none".to_owned();
    }
    let value = value.strip_suffix(" sec").unwrap_or(value);
    value
        .split_once('(')
        .map_or(value, |(name, _)| name)
        .to_lowercase()
}

fn assert_shown(slurm: &Slurm, document: &Document) -> Result<usize> {
    let shown = shown(slurm)?;
    let mut compared = 0;
    for Statement { head, .. } in &document.statements {
        if File::Slurm.shape(&head.key) != Shape::Single {
            continue;
        }
        let value = shown
            .get(&head.key.to_lowercase())
            .with_context(|| format!("{} is not shown", head.key))?;
        let options = |list: &str| list.split(',').map(plain).collect::<BTreeSet<_>>();
        ensure!(
            options(value) == options(&head.value),
            "{} is {value}, not {}",
            head.key,
            head.value
        );
        compared += 1;
    }
    Ok(compared)
}

/// There are three sets of timeouts; the test of the full file covers the largest.
#[rstest]
fn the_smallest_slurm_conf(
    #[values(Release::V2411, Release::V2605)] release: Release,
    #[values(0, 2_000)] nodes: u32,
) -> Result<()> {
    let conf = SlurmConf { nodes, ..small("") };
    let Some(slurm) = start(release, &conf, Setup::default())? else {
        return Ok(());
    };
    assert!(assert_shown(&slurm, &document(&conf)?)? > 20);
    Ok(())
}

#[rstest]
fn a_slurm_conf_with_everything(#[values(Release::V2411, Release::V2605)] release: Release) -> Result<()> {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let partition = |config: &str, leaving| {
        Some(Partition {
            config: config.into(),
            leaving,
        })
    };
    let conf = SlurmConf {
        metrics: release == Release::V2605,
        scripts: Scripts {
            prolog: names(&["a.sh", "b.sh"]),
            epilog: names(&["e.sh"]),
            prolog_slurmctld: names(&["p.sh"]),
            epilog_slurmctld: names(&["q.sh"]),
        },
        nodesets: vec![
            NodeSet {
                name: "gpu".into(),
                feature: "gpu".into(),
                partition: partition("Default=YES MaxTime=1-0", false),
            },
            NodeSet {
                name: "old".into(),
                feature: "old".into(),
                partition: partition("State=UP", true),
            },
        ],
        nodes: 5_000,
        retained: vec![
            Statement::new("PartitionName", "kept")
                .with("Nodes", "ALL")
                .with("State", "UP"),
        ],
        ..small(
            "authaltparameters=disable_token_creation\nSlurmctldParameters=idle_on_node_suspend\n\
             MailProg=\"/bin/true\"\nSchedulerParameters=bf_continue,\\\ndefer\nNodeName=static CPUs=1 State=FUTURE\n\
             PartitionName=DEFAULT MaxTime=60\nPartitionName=all Nodes=ALL\nInclude more.conf\n",
        )
    };
    let script = |name: &str| (name.to_owned(), "#!/bin/sh\n".to_owned());
    let mut files = ["a.sh", "b.sh", "e.sh", "p.sh", "q.sh"].map(script).to_vec();
    files.push(("more.conf".into(), "KillWait=45\n".into()));
    let Some(slurm) = start(
        release,
        &conf,
        Setup {
            files,
            ..Setup::default()
        },
    )?
    else {
        return Ok(());
    };
    assert!(assert_shown(&slurm, &document(&conf)?)? > 25);

    let shown = shown(&slurm)?;
    assert_eq!(shown.get("killwait").map(String::as_str), Some("45 sec"));
    assert_eq!(shown.get("prolog[0]").map(String::as_str), Some("a.sh"));
    assert_eq!(shown.get("prolog[1]").map(String::as_str), Some("b.sh"));
    assert_eq!(
        shown.get("epilogslurmctld[0]").map(String::as_str),
        Some("/etc/slurm/q.sh")
    );
    let partitions = slurm.run(&["scontrol", "-o", "show", "partition"])?;
    let line = |name: &str| {
        partitions
            .lines()
            .find(|l| l.starts_with(&format!("PartitionName={name} ")))
            .unwrap_or("")
    };
    assert!(
        line("gpu").contains("Default=YES") && line("gpu").contains("MaxTime=1-00:00:00"),
        "{partitions}"
    );
    assert!(line("old").contains("State=DRAIN"), "{partitions}");
    assert!(line("kept").contains("State=DRAIN"), "{partitions}");
    assert!(line("all").contains("MaxTime=01:00:00"), "{partitions}");
    Ok(())
}

#[rstest]
fn an_external_slurm_conf_reaches_its_controller(
    #[values(Release::V2411, Release::V2605)] release: Release,
) -> Result<()> {
    let Some(slurm) = start(release, &small(""), Setup::default())? else {
        return Ok(());
    };
    let conf = ExternalSlurmConf {
        cluster_name: CLUSTER.into(),
        host: HOST.into(),
        port: 6817,
        auth: AuthType::default(),
        accounting: None,
        extra_conf: String::new(),
    };
    slurm.write_public("/etc/slurm/external.conf", render_external(&conf)?.text)?;
    let pinged = slurm.run(&["env", "SLURM_CONF=/etc/slurm/external.conf", "scontrol", "ping"])?;
    assert!(pinged.contains("is UP"), "{pinged}");
    Ok(())
}

/// The daemon logs in to the database with the password, so it must be unchanged.
#[rstest]
fn slurmdbd_conf_carries_any_password(
    #[values(Release::V2411, Release::V2605)] release: Release,
    #[values("simple", "hash # and space", "back\\slash\\", "quo\"te'#,=")] password: &str,
) -> Result<()> {
    let conf = SlurmdbdConf {
        host: HOST.into(),
        port: 6819,
        auth: AuthType::default(),
        jwks: false,
        storage: Storage {
            host: "127.0.0.1".into(),
            port: 3306,
            database: "slurm_acct_db".into(),
            user: Some("slurm".into()),
            password: Some(password.into()),
            tls: None,
        },
        extra_conf: "LogFile=/dev/stdout\nPrivateData=usage\nAuthAltParameters=disable_token_creation\n"
            .into(),
    };
    let accounting = AccountingHost {
        host: HOST.into(),
        port: 6819,
        backup_host: None,
    };
    let slurm_conf = SlurmConf {
        accounting: Some(accounting),
        ..small("")
    };
    let setup = Setup {
        slurmdbd_conf: Some(slurmdbd_conf::render(&conf)?.text),
        database_password: password.into(),
        ..Setup::default()
    };
    let Some(slurm) = start(release, &slurm_conf, setup)? else {
        return Ok(());
    };
    // The sacctmgr of 26.05 shows the configuration that it reads itself, not that of slurmdbd.
    if release == Release::V2411 {
        let shown = slurm.run(&["sacctmgr", "-n", "-P", "show", "configuration"])?;
        assert!(
            shown
                .lines()
                .any(|l| l.starts_with("PrivateData") && l.ends_with("usage")),
            "{shown}"
        );
    }
    assert!(
        slurm
            .run(&["sacctmgr", "-n", "-P", "show", "cluster", "format=cluster"])?
            .contains(CLUSTER)
    );
    Ok(())
}

#[rstest]
fn cgroup_conf_is_read_by_the_controller(
    #[values(Release::V2411, Release::V2605)] release: Release,
    #[values(CgroupPlugin::V2, CgroupPlugin::V1, CgroupPlugin::Disabled)] plugin: CgroupPlugin,
) -> Result<()> {
    let rendered = cgroup_conf::render(plugin, "ConstrainCores=yes\nallowedramspace=90\n")?;
    let files = vec![("cgroup.conf".to_owned(), rendered.text)];
    let Some(slurm) = start(
        release,
        &small("ProctrackType=proctrack/cgroup\n"),
        Setup {
            files,
            ..Setup::default()
        },
    )?
    else {
        return Ok(());
    };
    let shown = shown(&slurm)?;
    let expected = match plugin {
        CgroupPlugin::V2 => "cgroup/v2",
        CgroupPlugin::V1 => "cgroup/v1",
        CgroupPlugin::Disabled => "disabled",
    };
    assert_eq!(shown.get("cgroupplugin").map(String::as_str), Some(expected));
    assert_eq!(shown.get("constraincores").map(String::as_str), Some("yes"));
    assert_eq!(shown.get("allowedramspace").map(String::as_str), Some("90.0%"));
    Ok(())
}

/// The precheck rejects exactly the files that slurmctld would wait for in vain.
#[rstest]
fn a_topology_plugin_without_its_file_is_what_slurmctld_does_not_start_with(
    #[values("tree", "block", "ring", "torus3d", "flat", "default")] plugin: &str,
) -> Result<()> {
    let Some(mut slurm) = start(Release::V2605, &small(""), Setup::default())? else {
        return Ok(());
    };
    slurm.stop("slurmctld")?;
    let conf = small(&format!("TopologyPlugin=topology/{plugin}\n"));
    slurm.write_public("/etc/slurm/slurm.conf", render(&conf)?.text)?;
    let document = document(&conf)?;
    if topology::plugin_without_file(&document, |_| false).is_none() {
        return slurm.start_slurmctld();
    }
    let output = slurm.output(&[
        "timeout",
        "5",
        "setpriv",
        "--reuid=slurm",
        "--regid=slurm",
        "--clear-groups",
        "slurmctld",
        "-D",
    ])?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(
        said.contains("topology.conf") || said.contains("No torus3d configurations found"),
        "{said}"
    );
    assert!(!said.contains("Running as primary controller"), "{said}");
    Ok(())
}

#[rstest]
fn sshd_config_means_what_it_says(#[values(Role::Login, Role::Worker)] role: Role) -> Result<()> {
    let extra = "x11forwarding no\nPasswordAuthentication=no\nAllowUsers a\nAllowUsers b\n\
                 Match User root\nPermitRootLogin yes\n";
    let Some(slurm) = start(Release::V2605, &small(""), Setup::default())? else {
        return Ok(());
    };
    slurm.write("/tmp/sshd_config", sshd_config::render(role, extra)?.text)?;
    slurm.run(&[
        "sh",
        "-c",
        "mkdir -p /run/sshd && ssh-keygen -q -t ed25519 -N '' -f /tmp/key",
    ])?;
    let shown = slurm
        .run(&[
            "/usr/sbin/sshd",
            "-T",
            "-f",
            "/tmp/sshd_config",
            "-h",
            "/tmp/key",
            "-C",
            "user=a,host=h,addr=1.2.3.4",
        ])
        .context("the root file system needs sshd for this test")?
        .to_lowercase();
    for line in [
        "usepam yes",
        "x11forwarding no",
        "passwordauthentication no",
        "allowusers a",
        "allowusers b",
    ] {
        assert!(shown.lines().any(|l| l == line), "{line} is missing:\n{shown}");
    }
    assert!(shown.contains("subsystem sftp internal-sftp"), "{shown}");
    Ok(())
}
