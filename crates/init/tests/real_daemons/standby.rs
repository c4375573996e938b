//! Tests of two slurmctlds that share their state.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::network::{eventually, with_slurm};
use crate::pod::Pod;
use crate::{change, conf, controller, in_use, serves, told, verdict};

/// Waits until a standby has started: its port responds, too, once it watches the active slurmctld.
fn stands_by(pod: &Pod) -> Result<()> {
    eventually("the standby is up", || {
        let live = pod.output(&[
            "curl",
            "--silent",
            "--fail",
            "--max-time",
            "2",
            "http://127.0.0.1:6817/livez",
        ])?;
        Ok(live.status.success() && !told(pod, "active")?.is_empty())
    })
}

#[test]
fn the_one_in_charge_tries_and_the_standby_takes_what_was_accepted() -> Result<()> {
    with_slurm(|network| {
        let conf = |more: &str| conf(&format!("SlurmctldHost=c1\nSlurmctldTimeout=5\n{more}"));
        let mut c0 = controller(network, "c0", &conf(""))?;
        let mut c1 = controller(network, "c1", &conf(""))?;
        c0.start(&["slurmctld"])?;
        serves(&c0)?;
        c1.start(&["slurmctld"])?;
        stands_by(&c1)?;

        // A good change: the standby waits for it.
        let before = told(&c1, "candidate")?;
        c1.deliver(&conf("MinJobAge=111\n"))?;
        verdict(&c1, &before, "pending")?;
        assert_eq!(told(&c1, "active")?, before);
        change(&c0, &conf("MinJobAge=111\n"), "applied")?;
        verdict(&c1, &before, "applied")?;
        let good = told(&c1, "active")?;
        assert_eq!(good, told(&c0, "active")?);

        // Bad changes: one that makes any slurmctld exit, and one that only the active slurmctld detects.
        for bad in ["NoSuchKey=1\n", "PartitionName=x Nodes=nowhere\n"] {
            c1.deliver(&conf(bad))?;
            change(&c0, &conf(bad), "refused")?;
            verdict(&c1, &good, "pending")?;
            assert_eq!(
                (told(&c0, "active")?, told(&c1, "active")?),
                (good.clone(), good.clone())
            );
            assert_eq!(in_use(&c0, "MinJobAge")?, "111 sec");
        }

        // A standby that starts with a bad file returns to the accepted files before it has to take over.
        c1.stop()?;
        c1.start(&["slurmctld"])?;
        stands_by(&c1)?;
        eventually("it goes back", || Ok(told(&c1, "active")? == good))?;
        assert_eq!(told(&c1, "lastGood")?, good, "nobody has accepted the bad file");

        // The active slurmctld stops, and the other tries the next change.
        assert_eq!(c0.stop()?, 0);
        serves(&c1)?;
        assert_eq!(in_use(&c1, "MinJobAge")?, "111 sec");
        verdict(&c1, "", "refused")?;
        serves(&c1)?;
        change(&c1, &conf("MinJobAge=222\n"), "applied")?;
        assert_eq!(in_use(&c1, "MinJobAge")?, "222 sec");

        // The first returns with an older file, and takes over again.
        c0.deliver(&conf("MinJobAge=222\n"))?;
        c0.start(&["slurmctld"])?;
        serves(&c0)?;
        verdict(&c0, "", "applied")?;
        eventually("it is in charge again", || {
            Ok(in_use(&c0, "MinJobAge")? == "222 sec")
        })?;
        stands_by(&c1)?;
        std::thread::sleep(Duration::from_secs(1));
        ensure!(c1.runs()?, "the standby ended");
        Ok(())
    })
}
