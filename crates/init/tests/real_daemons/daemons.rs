//! Tests of the other daemons.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::mount::Mount;
use crate::network::{Network, eventually, with_slurm};
use crate::pod::Pod;
use crate::{conf, serves, started};

/// Returns the only file that slurmd and sackd need; they get the rest from slurmctld.
fn key() -> Mount {
    conf("").only("slurm.key")
}

/// Runs a Slurm command on a controller.
pub fn slurm(pod: &Pod, words: &[&str]) -> Result<String> {
    let words: Vec<&str> = ["SLURM_CONF=/run/slurm-conf/slurm.conf"]
        .iter()
        .chain(words)
        .copied()
        .collect();
    pod.run(&words)
}

pub fn process(pod: &Pod, name: &str) -> Result<String> {
    Ok(pod.run(&["pgrep", "-o", "-x", name])?.trim().to_owned())
}

#[test]
fn slurmd_registers_runs_jobs_and_hands_over() -> Result<()> {
    with_slurm(|network| {
        let c0 = started(network, &conf(""))?;
        let mut w0 = network.pod("w0", 0, &key())?.env("TOPOLOGY=").env("POD_CPUS=1");
        let args = [
            "slurmd",
            "-Z",
            "--conf-server",
            "c0:6817",
            "--conf",
            r#"'Features=real Topology='"$TOPOLOGY"''"#,
        ];
        w0.start(&args)?;
        let idle =
            || Ok(slurm(&c0, &["scontrol", "show", "node", "w0"])?.contains("State=IDLE+DYNAMIC_NORM "));
        eventually("the node registers", idle)?;
        ensure!(slurm(&c0, &["scontrol", "show", "node", "w0"])?.contains("ActiveFeatures=real"));
        assert_eq!(slurm(&c0, &["srun", "hostname"])?, "w0\n");

        slurm(&c0, &["sbatch", "--wrap", "sleep 600", "--output=/dev/null"])?;
        let runs = || Ok(slurm(&c0, &["squeue", "--noheader", "--format=%T"])? == "RUNNING\n");
        eventually("the job runs", runs)?;
        let before = process(&w0, "slurmd")?;
        slurm(&c0, &["scontrol", "reconfigure"])?;
        eventually("a new slurmd has taken over", || {
            let now = process(&w0, "slurmd")?;
            Ok(now != before && w0.run(&["pgrep", "-x", "slurmd"])?.lines().count() == 1)
        })?;
        ensure!(w0.runs()? && runs()?, "the job did not survive it");

        // Write access to the socket is not enough to be believed, not even for root.
        let forge = r#"use Socket; socket(S, PF_UNIX, SOCK_DGRAM, 0); $| = 1;
            send(S, "READY=1\nMAINPID=$$", 0, sockaddr_un("/run/init/notify")) or die $!"#;
        w0.run(&["perl", "-e", forge])?;
        slurm(&c0, &["scancel", "--full", "1,2"]).or_else(|_| slurm(&c0, &["scancel", "--user=root"]))?;
        eventually("the node is free", idle)?;
        assert_eq!(slurm(&c0, &["srun", "hostname"])?, "w0\n");
        ensure!(w0.runs()?, "a stranger's process was taken for slurmd");

        assert_eq!(w0.stop()?, 0);
        w0.start(&args)?;
        eventually("the node is back", || {
            Ok(w0.log().matches("slurmd started on").count() >= 3 && idle()?)
        })?;
        assert_eq!(w0.ended_by_the_end_of("slurmd")?, 137);
        Ok(())
    })
}

pub const SLURMDBD_CONF: &str = "\
DbdHost=db
SlurmUser=slurm
AuthType=auth/slurm
StorageType=accounting_storage/mysql
StorageHost=maria
StorageUser=slurm
StoragePass=secret
StorageLoc=slurm_acct_db
LogFile=/var/log/slurm/slurmdbd.log
";

const DATABASE: &str = "\
mkdir -p /run/mysqld /var/lib/mysql
mariadb-install-db --user=root --datadir=/var/lib/mysql --skip-test-db --auth-root-authentication-method=normal >/dev/null
setsid mariadbd --user=root --datadir=/var/lib/mysql --socket=/run/mysqld/mysqld.sock --skip-networking=0 \
    --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 --innodb-snapshot-isolation=OFF --innodb-flush-log-at-trx-commit=0 \
    </dev/null >/run/mysqld/log 2>&1 &
until mariadb --socket=/run/mysqld/mysqld.sock --user=root -e \"
    CREATE DATABASE slurm_acct_db; CREATE USER 'slurm'@'%' IDENTIFIED BY 'secret'; GRANT ALL ON *.* TO 'slurm'@'%'\"
do sleep 0.2; done
";

pub const ACCOUNTING: &str = "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=db\n";

/// Starts a database and a slurmdbd.
fn accounting(network: &Network) -> Result<(Pod<'_>, Pod<'_>)> {
    slurmdbd(network, &conf("").with("slurmdbd.conf", SLURMDBD_CONF))
}

/// Starts a database, and a slurmdbd with these files.
pub fn slurmdbd<'a>(network: &'a Network, files: &Mount) -> Result<(Pod<'a>, Pod<'a>)> {
    let mut maria = network.pod("maria", 0, &Mount::default())?;
    maria.start(&["pause"])?;
    eventually("the pod is up", || Ok(maria.run(&["true"]).is_ok()))?;
    maria.run(&["sh", "-c", DATABASE])?;
    let mut db = network.pod("db", 401, files)?;
    db.start(&["slurmdbd"])?;
    Ok((maria, db))
}

#[test]
fn a_slurmctld_killed_before_it_first_saved_its_state_starts_again() -> Result<()> {
    with_slurm(|network| {
        let (_maria, _db) = accounting(network)?;
        let files = conf(ACCOUNTING);
        let mut c0 = started(network, &files)?;
        let listed = slurm(&c0, &["sh", "-c", "cd /var/spool/slurmctld/test && ls"])?;
        ensure!(
            listed.contains("clustername") && !listed.contains("assoc_usage"),
            "the test came too late: {listed}"
        );
        slurm(&c0, &["sbatch", "--hold", "--wrap", "true"])?;
        let job_is_saved = || Ok(slurm(&c0, &["test", "-s", "/var/spool/slurmctld/test/job_state"]).is_ok());
        eventually("the job is saved", job_is_saved)?;
        assert_eq!(c0.ended_by_the_end_of("slurmctld")?, 137);
        c0.start(&["slurmctld"])?;
        serves(&c0)?;
        assert_eq!(slurm(&c0, &["squeue", "--noheader", "--format=%T"])?, "PENDING\n");

        // What was saved once and is gone is a loss, which slurmctld must not pass over.
        assert_eq!(c0.stop()?, 0);
        c0.start(&["slurmctld"])?;
        serves(&c0)?;
        slurm(&c0, &["rm", "-f", "/var/spool/slurmctld/test/assoc_usage"])?;
        assert_eq!(c0.ended_by_the_end_of("slurmctld")?, 137);
        c0.start(&["slurmctld"])?;
        assert_eq!(c0.ended()?, 1);
        ensure!(c0.log().contains("fatal: No Assoc usage file"), "{}", c0.log());
        Ok(())
    })
}

#[test]
fn slurmdbd_serves_from_files_that_it_would_refuse_where_they_are_mounted() -> Result<()> {
    with_slurm(|network| {
        let (mut maria, mut db) = accounting(network)?;
        let c0 = started(network, &conf(ACCOUNTING))?;
        eventually("the cluster is in the database", || {
            let clusters = slurm(
                &c0,
                &[
                    "sacctmgr",
                    "--noheader",
                    "--parsable2",
                    "show",
                    "cluster",
                    "format=cluster,controlhost",
                ],
            )?;
            Ok(clusters == "test|10.78.0.10\n")
        })?;
        assert_eq!(db.stop()?, 0);
        // The first process of a sandbox reaps orphans, and stops on request.
        maria.run(&["sh", "-c", "sh -c 'exit 3' & exec true"])?;
        eventually("there is no zombie", || {
            Ok(!maria.run(&["ps", "-eo", "state"])?.contains('Z'))
        })?;
        assert_eq!(maria.stop()?, 0);
        Ok(())
    })
}

#[test]
fn slurmrestd_serves_as_nobody() -> Result<()> {
    with_slurm(|network| {
        let c0 = started(network, &conf(""))?;
        let mut rest = network
            .pod("rest", 65534, &conf("").only("slurm.conf"))?
            .env("SLURM_JWT=daemon")
            .env("SLURMRESTD_SECURITY=disable_unshare_files,disable_unshare_sysv");
        rest.start(&["slurmrestd", "-s", "openapi/slurmctld", "0.0.0.0:6820"])?;
        let token = slurm(&c0, &["scontrol", "token", "username=slurm"])?;
        let token = token.trim().strip_prefix("SLURM_JWT=").context("no token")?;
        let header = format!("X-SLURM-USER-TOKEN: {token}");
        let url = "http://rest:6820/slurm/v0.0.44/ping/";
        eventually("it answers", || {
            Ok(c0
                .run(&["curl", "--silent", "--fail", "--header", &header, url])?
                .contains("\"c0\""))
        })?;
        assert_eq!(
            rest.run(&["ps", "-o", "uid=", "-C", "slurmrestd"])?.trim(),
            "65534"
        );
        assert_eq!(rest.stop()?, 0);
        Ok(())
    })
}

#[test]
fn login_keeps_sackd_running_as_slurms_user() -> Result<()> {
    with_slurm(|network| {
        ensure!(
            network.has("usr/sbin/sackd"),
            "no sackd here; it belongs into images/slurm-26.05/packages"
        );
        let c0 = started(network, &conf(""))?;
        let mut login = network
            .pod("login", 0, &key())?
            .env("SACKD_OPTIONS=--conf-server c0:6817");
        login.start(&["login"])?;
        let answers = |login: &Pod| Ok(login.run(&["scontrol", "ping"])?.contains("is UP"));
        eventually("commands work", || answers(&login))?;
        assert_eq!(login.run(&["ps", "-o", "uid=", "-C", "sackd"])?.trim(), "401");
        let first = process(&login, "sackd")?;
        login.run(&["kill", "-s", "KILL", &first])?;
        eventually("sackd is back", || Ok(process(&login, "sackd")? != first))?;
        eventually("commands work again", || answers(&login))?;
        slurm(&c0, &["scontrol", "reconfigure"])?;
        eventually("and after a reconfiguration", || answers(&login))?;

        // A user's session, inherited from sshd. It may continue, with sackd, until the pod's grace period ends.
        login.run(&["sh", "-c", "exec >/dev/null 2>&1; setsid sleep 600 &"])?;
        login.run(&["kill", "-s", "TERM", "1"])?;
        thread::sleep(Duration::from_secs(2));
        ensure!(login.runs()? && answers(&login)?, "the session was cut off");
        assert_eq!(login.ended_by_the_end_of("sleep")?, 0);
        Ok(())
    })
}
