//! Tests of one slurmctld: good and bad changes, and restarts in between.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::mount::Mount;
use crate::network::{eventually, with_slurm};
use crate::pod::Pod;
use crate::{change, conf, controller, in_use, serves, started, told, verdict};

fn main_pid(pod: &Pod) -> Result<i64> {
    let status = pod.status()?;
    status
        .get("mainPid")
        .and_then(Value::as_i64)
        .context("no process")
}

/// Files that slurmctld rejects, and its reason.
fn bad_ones() -> [(Mount, &'static str); 5] {
    [
        (conf("NoSuchKey=1\n"), "NoSuchKey"),
        (
            conf("PartitionName=x Nodes=nowhere\n"),
            "fatal: Invalid node names in partition x",
        ),
        (
            conf("PriorityType=priority/no_such_plugin\n"),
            "priority/no_such_plugin",
        ),
        (
            conf("Include missing.conf\n"),
            "slurm.conf includes missing.conf, which is not there",
        ),
        (conf("").with("cgroup.conf", "NoSuchKey=1\n"), "cgroup.conf"),
    ]
}

#[test]
fn a_good_change_is_taken_and_a_bad_one_is_harmless() -> Result<()> {
    with_slurm(|network| {
        let c0 = started(network, &conf(""))?;
        let first = main_pid(&c0)?;
        assert_eq!(change(&c0, &conf("MinJobAge=111\n"), "applied")?, "");
        assert_eq!(in_use(&c0, "MinJobAge")?, "111 sec");
        let second = main_pid(&c0)?;
        assert_ne!(first, second, "a new process has taken over");
        assert_eq!(c0.run(&["pgrep", "-x", "slurmctld"])?.trim(), second.to_string());

        let good = told(&c0, "active")?;
        let installed = fs::read_to_string(c0.path("/run/slurm-conf/slurm.conf")?)?;
        for (bad, reason) in bad_ones() {
            let begun = Instant::now();
            let message = change(&c0, &bad, "refused")?;
            ensure!(message.contains(reason), "{message:?} does not tell {reason:?}");
            ensure!(
                begun.elapsed() < Duration::from_secs(50),
                "slurmctld waited for a file that is missing"
            );
            assert_eq!(
                (main_pid(&c0)?, told(&c0, "active")?, told(&c0, "lastGood")?),
                (second, good.clone(), good.clone())
            );
            eventually("the last good files are back", || {
                Ok(fs::read_to_string(c0.path("/run/slurm-conf/slurm.conf")?)? == installed)
            })?;
            serves(&c0)?;
            assert_eq!(in_use(&c0, "MinJobAge")?, "111 sec");
        }
        assert_eq!(change(&c0, &conf("MinJobAge=222\n"), "applied")?, "");
        assert_eq!(in_use(&c0, "MinJobAge")?, "222 sec");
        Ok(())
    })
}

#[test]
fn a_restart_with_bad_files_falls_back_to_the_last_good_ones() -> Result<()> {
    with_slurm(|network| {
        let mut c0 = started(network, &conf("MinJobAge=111\n"))?;
        eventually("the files are kept", || {
            Ok(told(&c0, "lastGood")? == told(&c0, "active")?)
        })?;
        for (bad, reason) in bad_ones() {
            change(&c0, &bad, "refused")?;
            assert_eq!(c0.stop()?, 0, "a stop is graceful");
            c0.start(&["slurmctld"])?;
            serves(&c0)?;
            let message = verdict(&c0, "", "refused")?;
            ensure!(message.contains(reason), "{message:?} does not tell {reason:?}");
            assert_eq!(in_use(&c0, "MinJobAge")?, "111 sec");
        }
        // A good file that was delivered while nothing ran is applied by the start.
        c0.stop()?;
        c0.deliver(&conf("MinJobAge=222\n"))?;
        c0.start(&["slurmctld"])?;
        serves(&c0)?;
        verdict(&c0, "", "applied")?;
        assert_eq!(in_use(&c0, "MinJobAge")?, "222 sec");
        Ok(())
    })
}

#[test]
fn a_first_start_with_bad_files_ends_with_slurmctlds_status() -> Result<()> {
    with_slurm(|network| {
        // With this file slurmctld reports ready before it exits.
        let mut c0 = controller(network, "c0", &conf("PartitionName=x Nodes=nowhere\n"))?;
        c0.start(&["slurmctld"])?;
        assert_eq!(c0.ended()?, 1);
        ensure!(
            !network.volume("state")?.join(".keelson").exists(),
            "it was kept as if it were good"
        );
        Ok(())
    })
}

#[test]
fn the_end_of_slurmctld_is_the_end_of_the_container() -> Result<()> {
    with_slurm(|network| {
        let mut c0 = started(network, &conf(""))?;
        assert_eq!(c0.ended_by_the_end_of("slurmctld")?, 137);
        // A stop while a change is being tried.
        c0.start(&["slurmctld"])?;
        serves(&c0)?;
        c0.deliver(&conf("MinJobAge=111\n"))?;
        eventually("the change is being tried", || {
            Ok(c0.log().contains("Attempting to reconfigure"))
        })?;
        assert_eq!(c0.stop()?, 0);
        Ok(())
    })
}

#[test]
fn changes_that_come_quickly_end_with_the_last() -> Result<()> {
    with_slurm(|network| {
        let c0 = started(network, &conf(""))?;
        for round in 0..3 {
            for value in 100..110 {
                c0.deliver(&conf(&format!("MinJobAge={value}\n")))?;
                thread::sleep(Duration::from_millis(70 * round + 10));
            }
            c0.deliver(&conf("NoSuchKey=1\n"))?;
            thread::sleep(Duration::from_millis(300 * round));
            let last = conf(&format!("MinJobAge=20{round}\n"));
            change(&c0, &last, "applied")?;
            // An earlier candidate may have been applied first.
            eventually("the last one is in use", || {
                Ok(in_use(&c0, "MinJobAge")? == format!("20{round} sec"))
            })?;
            verdict(&c0, "", "applied")?;
        }
        Ok(())
    })
}

#[test]
fn somebody_elses_reconfiguration_is_not_taken_for_an_answer() -> Result<()> {
    with_slurm(|network| {
        let c0 = started(network, &conf(""))?;
        for value in 100..106 {
            thread::scope(|scope| {
                let others = scope.spawn(|| {
                    c0.output(&["SLURM_CONF=/run/slurm-conf/slurm.conf", "scontrol", "reconfigure"])
                });
                thread::sleep(Duration::from_millis(60 * (value - 100)));
                let changed = change(&c0, &conf(&format!("MinJobAge={value}\n")), "applied");
                ensure!(others.join().is_ok());
                changed
            })?;
            eventually("it serves", || Ok(in_use(&c0, "MinJobAge").is_ok()))?;
            assert_eq!(in_use(&c0, "MinJobAge")?, format!("{value} sec"));
        }
        Ok(())
    })
}

#[test]
fn a_state_directory_without_room_for_the_last_good_files_keeps_nobody_from_work() -> Result<()> {
    with_slurm(|network| {
        let store = network.volume("state")?.join(".keelson");
        fs::create_dir(&store)?;
        fs::set_permissions(&store, fs::Permissions::from_mode(0o500))?;
        let c0 = started(network, &conf(""))?;
        change(&c0, &conf("MinJobAge=111\n"), "applied")?;
        assert_eq!(told(&c0, "lastGood")?, "");
        ensure!(
            c0.log().contains("init: failed to save the configuration in"),
            "nobody is told"
        );
        Ok(())
    })
}

#[test]
fn what_slurmctld_refused_is_tried_again_when_somebody_asks() -> Result<()> {
    with_slurm(|network| {
        let c0 = started(network, &conf(""))?;
        change(&c0, &conf("NoSuchKey=1\n"), "refused")?;
        let attempts = || c0.log().matches("Attempting to reconfigure").count();
        let before = attempts();
        c0.run(&["kill", "-s", "HUP", "1"])?;
        eventually("it is tried again", || Ok(attempts() > before))?;
        verdict(&c0, "", "refused")?;
        Ok(())
    })
}

#[test]
fn a_slurmctld_that_says_little_is_understood_in_the_end() -> Result<()> {
    with_slurm(|network| {
        let quiet = |more: &str| conf(&format!("SlurmctldDebug=error\n{more}"));
        let c0 = started(network, &quiet(""))?;
        let message = change(&c0, &quiet("NoSuchKey=1\n"), "refused")?;
        ensure!(message.contains("NoSuchKey"), "{message:?}");
        change(&c0, &quiet("MinJobAge=111\n"), "applied")?;
        assert_eq!(in_use(&c0, "MinJobAge")?, "111 sec");
        Ok(())
    })
}
