//! Tests of a cluster that authenticates with munge.

use anyhow::{Context as _, Result, ensure};

use crate::daemons::{ACCOUNTING, SLURMDBD_CONF, process, slurm, slurmdbd};
use crate::mount::Mount;
use crate::network::{eventually, with_slurm};
use crate::{CONF, started};

const KEY: &str = "a key for munged that is long enough for a test";

/// Returns the files of a cluster.
fn files() -> Mount {
    let conf = format!("{CONF}{ACCOUNTING}")
        .replace("AuthInfo=use_client_ids\n", "")
        .replace("auth/slurm", "auth/munge")
        .replace("cred/slurm", "cred/munge");
    Mount::default()
        .with("slurm.conf", &conf)
        .with("cgroup.conf", "CgroupPlugin=disabled\n")
        .with("munge.key", KEY)
        .with("jwt.key", "a jwt key which is long enough for HS256")
}

/// A user without privileges, in every container.
const USER: [&str; 4] = ["setpriv", "--reuid=games", "--regid=games", "--clear-groups"];

#[test]
fn munge_authenticates_every_daemon_and_user() -> Result<()> {
    with_slurm(|network| {
        let slurmdbd_conf = SLURMDBD_CONF.replace("auth/slurm", "auth/munge");
        let (_maria, db) = slurmdbd(network, &files().with("slurmdbd.conf", &slurmdbd_conf))?;
        let mut c0 = started(network, &files())?;
        ensure!(
            c0.status()?["jwtKeyMac"]
                .as_str()
                .is_some_and(|mac| !mac.is_empty())
        );

        let key = files().only("munge.key");
        let mut w0 = network.pod("w0", 0, &key)?;
        w0.start(&["slurmd", "-Z", "--conf-server", "c0:6817"])?;
        let mut login = network
            .pod("login", 0, &key)?
            .env("SACKD_OPTIONS=--conf-server c0:6817");
        login.start(&["login"])?;
        let as_user = |words: &[&str]| login.run(&[&USER, words].concat());
        let user_runs_a_job =
            || Ok(as_user(&["srun", "sh", "-c", "hostname; id -un"]).is_ok_and(|said| said == "w0\ngames\n"));
        eventually("a user's job runs", user_runs_a_job)?;
        eventually("it is on record", || {
            let jobs = as_user(&[
                "sacct",
                "--noheader",
                "--parsable2",
                "--allocations",
                "--format=user,state",
            ])?;
            Ok(jobs.contains("games|COMPLETED"))
        })?;

        // munge vouches for numbers, so slurmctld itself must know the user.
        login.run(&["sh", "-c", "echo eve:x:4242:4242::/:/bin/sh >>/etc/passwd"])?;
        let eve = [
            "setpriv",
            "--reuid=4242",
            "--regid=4242",
            "--clear-groups",
            "srun",
            "id",
        ];
        let refused = String::from_utf8(login.output(&eve)?.stderr)?;
        ensure!(refused.contains("Error generating job credential"), "{refused}");

        // Jobs and users ask munged themselves.
        let signed = as_user(&["sh", "-c", "munge --no-input | unmunge"])?;
        ensure!(signed.contains("games"), "{signed}");
        for pod in [&db, &c0, &w0, &login] {
            assert_eq!(pod.run(&["ps", "-o", "uid=", "-C", "munged"])?.trim(), "401");
        }
        ensure!(as_user(&["cat", "/run/munge-key/munge.key"]).is_err());

        // slurmrestd's users bring tokens.
        let mut rest = network
            .pod("rest", 65534, &files().only("slurm.conf"))?
            .env("SLURM_JWT=daemon")
            .env("SLURMRESTD_SECURITY=disable_unshare_files,disable_unshare_sysv");
        rest.start(&["slurmrestd", "-s", "openapi/slurmctld", "0.0.0.0:6820"])?;
        let token = slurm(&c0, &["scontrol", "token", "username=slurm"])?;
        let token = token.trim().strip_prefix("SLURM_JWT=").context("no token")?;
        let header = format!("X-SLURM-USER-TOKEN: {token}");
        let url = "http://rest:6820/slurm/v0.0.44/ping/";
        eventually("slurmrestd answers", || {
            let ping = c0.run(&["curl", "--silent", "--fail", "--header", &header, url])?;
            Ok(ping.contains("\"c0\""))
        })?;

        let munged = process(&w0, "munged")?;
        w0.run(&["kill", "-s", "KILL", &munged])?;
        eventually("munged is back", || {
            Ok(process(&w0, "munged").is_ok_and(|now| now != munged))
        })?;
        eventually("the next job runs", user_runs_a_job)?;

        // A daemon that stops still needs munged.
        for pod in [&mut w0, &mut c0] {
            let status = pod.stop()?;
            let log = pod.log();
            ensure!(
                status == 0 && !log.contains("Munge encode failed"),
                "{status}: {log}"
            );
        }
        Ok(())
    })
}
