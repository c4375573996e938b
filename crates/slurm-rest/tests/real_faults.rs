//! Daemons that restart, hang and change their keys in the middle of use.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use common::slurm_daemons::{HOST, Release, Setup, Slurm};
use common::{FIRST_KEY, impatient, inside_with, meanwhile, options, signer};
use rstest::rstest;
use slurm_rest::node::NodeUpdate;
use slurm_rest::{Client, Error, Peer, Version};

fn start(release: Release) -> Result<Option<Slurm>> {
    Slurm::start(
        release,
        &Setup {
            slurmd: Some("Feature=real".into()),
            ..Setup::default()
        },
    )
}

fn comment(text: impl Into<String>) -> NodeUpdate {
    NodeUpdate {
        comment: Some(text.into()),
        ..NodeUpdate::default()
    }
}

#[rstest]
fn a_restart_of_slurmctld(#[values(Release::V2411, Release::V2605)] release: Release) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    inside_with(slurm, |slurm| async move {
        let patient = Client::new(options(&signer(FIRST_KEY), Version::V45)?)?;
        patient.node(HOST).await?;
        meanwhile(&slurm, |slurm| slurm.stop("slurmctld")).await?;

        assert!(patient.ping().await?.iter().all(|ping| !ping.responding));
        let gone = patient.update_node(HOST, &comment("lost")).await;
        assert!(
            matches!(
                gone,
                Err(Error::Unreachable {
                    daemon: Peer::Slurmctld,
                    ..
                })
            ),
            "{gone:?}"
        );

        // A read waits as long as it may.
        let (read, started) = tokio::join!(patient.node(HOST), async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            meanwhile(&slurm, Slurm::start_slurmctld).await
        });
        started?;
        assert_eq!(&*read?.comment, "", "the write that failed was carried out later");
        patient.update_node(HOST, &comment("after")).await?;
        assert_eq!(&*patient.node(HOST).await?.comment, "after");
        Ok(())
    })
}

#[rstest]
fn a_restart_of_slurmrestd(#[values(Release::V2411, Release::V2605)] release: Release) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    inside_with(slurm, |slurm| async move {
        let client = Client::new(options(&signer(FIRST_KEY), Version::V45)?)?;
        client.node(HOST).await?;
        meanwhile(&slurm, |slurm| slurm.stop("slurmrestd")).await?;

        let began = Instant::now();
        let refused = client.update_node(HOST, &comment("x")).await;
        assert!(
            matches!(
                refused,
                Err(Error::Unreachable {
                    daemon: Peer::Slurmrestd,
                    ..
                })
            ),
            "{refused:?}"
        );
        assert!(began.elapsed() < Duration::from_secs(1), "a write was repeated");

        let (read, started) = tokio::join!(client.node(HOST), async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            meanwhile(&slurm, Slurm::start_slurmrestd).await
        });
        started?;
        read.context("the read that met the restart")?;
        client.update_node(HOST, &comment("y")).await?;
        Ok(())
    })
}

#[rstest]
fn a_slurmrestd_that_hangs(#[values(Release::V2411, Release::V2605)] release: Release) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    inside_with(slurm, |slurm| async move {
        let limit = Duration::from_secs(1);
        let client = impatient(&signer(FIRST_KEY), limit)?;
        client.node(HOST).await?;
        meanwhile(&slurm, |slurm| slurm.signal_daemon("slurmrestd", "STOP")).await?;
        let began = Instant::now();
        assert_eq!(
            client.node(HOST).await.err(),
            Some(Error::Timeout { after: limit })
        );
        assert_eq!(
            client.update_node(HOST, &comment("x")).await.err(),
            Some(Error::Timeout { after: limit })
        );
        assert!(began.elapsed() < Duration::from_secs(4));
        meanwhile(&slurm, |slurm| slurm.signal_daemon("slurmrestd", "CONT")).await?;
        client.node(HOST).await?;
        Ok(())
    })
}

/// Whoever learns of the new key first, no call fails.
#[rstest]
fn the_key_changes_under_traffic(
    #[values(Release::V2411, Release::V2605)] release: Release,
    #[values(true, false)] we_know_first: bool,
) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    inside_with(slurm, move |slurm| async move {
        let signer = signer(FIRST_KEY);
        let client = Client::new(options(&signer, Version::V45)?)?;
        let second = "a second key that is long enough as well";
        let traffic = async {
            for round in 0..60 {
                client.update_node(HOST, &comment(round.to_string())).await?;
                let node = client.node(HOST).await?;
                assert_eq!(&*node.comment, round.to_string());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            anyhow::Ok(())
        };
        let write = || meanwhile(&slurm, move |slurm| slurm.write("/etc/slurm/jwt.key", second));
        let rotation = async {
            let pause = || tokio::time::sleep(Duration::from_millis(400));
            pause().await;
            if we_know_first {
                signer.rotate(second.as_bytes().to_vec().into());
                pause().await;
                write().await?;
            } else {
                write().await?;
                pause().await;
                signer.rotate(second.as_bytes().to_vec().into());
            }
            anyhow::Ok(())
        };
        let (traffic, rotation) = tokio::join!(traffic, rotation);
        rotation?;
        traffic.context("a call failed around the rotation")?;

        // The old key is worth nothing now, on its own.
        let old = Client::new(options(&common::signer(FIRST_KEY), Version::V45)?)?;
        let refused = old.node(HOST).await;
        assert!(matches!(refused, Err(Error::Unauthorised { .. })), "{refused:?}");
        assert_eq!(Arc::strong_count(&signer), 2);
        Ok(())
    })
}
