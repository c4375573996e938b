//! Tests with daemons that restart, hang, are cut off, are upgraded and change their keys during use.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use common::relay::{Cut, Relay};
use common::slurm_daemons::{HOST, Release, Setup, Slurm};
use common::{FIRST_KEY, impatient, inside, inside_with, meanwhile, options, signer};
use rstest::rstest;
use slurm_rest::job::{JobSubmit, Requeue};
use slurm_rest::node::NodeUpdate;
use slurm_rest::{Client, Error, OnCall, Options, Peer, Version};

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

        // A read is retried until its deadline.
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
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&calls);
        let client = Client::new(Options {
            on_call: Some(OnCall::new(move |_| {
                counter.fetch_add(1, Ordering::Relaxed);
            })),
            ..options(&signer(FIRST_KEY), Version::V45)?
        })?;
        client.node(HOST).await?;
        meanwhile(&slurm, |slurm| slurm.stop("slurmrestd")).await?;

        let before = calls.load(Ordering::Relaxed);
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
        assert_eq!(calls.load(Ordering::Relaxed) - before, 1, "a write was repeated");

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
fn a_daemon_that_hangs(
    #[values(Release::V2411, Release::V2605)] release: Release,
    #[values("slurmrestd", "slurmctld")] daemon: &'static str,
) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    inside_with(slurm, move |slurm| async move {
        // Long enough for a response on a busy machine.
        let limit = Duration::from_secs(5);
        let client = impatient(&signer(FIRST_KEY), limit)?;
        client.node(HOST).await?;
        meanwhile(&slurm, |slurm| slurm.signal_daemon(daemon, "STOP")).await?;
        assert_eq!(
            client.node(HOST).await.err(),
            Some(Error::Timeout { after: limit })
        );
        assert_eq!(
            client.update_node(HOST, &comment("x")).await.err(),
            Some(Error::Timeout { after: limit })
        );
        meanwhile(&slurm, |slurm| slurm.signal_daemon(daemon, "CONT")).await?;
        client.node(HOST).await?;
        Ok(())
    })
}

fn waiting_job(name: &str) -> JobSubmit {
    JobSubmit {
        name: name.into(),
        script: "#!/bin/sh\ntrue\n".into(),
        current_working_directory: "/tmp".into(),
        environment: vec!["PATH=/usr/bin:/bin".into()],
        hold: true,
        ..JobSubmit::default()
    }
}

/// The daemon has executed the request, and the connection breaks during the response.
#[rstest]
fn an_answer_that_is_cut(
    #[values(Release::V2411, Release::V2605)] release: Release,
    #[values(Cut::Start, Cut::Head, Cut::Body, Cut::End)] at: Cut,
) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    inside(&slurm, || async move {
        let relay = Relay::start("127.0.0.1:6820").await?;
        let client = Client::new(Options {
            endpoint: relay.url.parse()?,
            ..options(&signer(FIRST_KEY), Version::V45)?
        })?;
        let is_lost = |error: &Error| {
            matches!(
                error,
                Error::Unreachable {
                    daemon: Peer::Slurmrestd,
                    ..
                }
            )
        };

        // Before the negotiation.
        relay.cut("GET /openapi/", at, 1);
        client.node(HOST).await?;
        assert_eq!(relay.count("GET /openapi/"), 2);
        let version = client.served().await?.version;

        // A read is retried transparently.
        let list = format!("GET /slurm/{version}/nodes/");
        relay.cut(&list, at, 1);
        let nodes = client.nodes(None).await?.changed().context("no list")?;
        assert_eq!(nodes.items.len(), 1);
        assert_eq!(relay.count(&list), 2);

        // A write is not retried: it was executed, and only the caller knows the effect of a second one.
        let submit = format!("POST /slurm/{version}/job/submit");
        relay.cut(&submit, at, 1);
        let lost = client.submit_job(&waiting_job("once")).await;
        assert!(lost.as_ref().is_err_and(is_lost), "{lost:?}");
        assert_eq!(relay.count(&submit), 1);
        let jobs = client.jobs(None).await?.changed().context("no list")?;
        let names: Vec<_> = jobs.items.iter().map(|job| &*job.name).collect();
        assert_eq!(names, ["once"]);

        // Retries end if the connection breaks every time.
        let one = format!("GET /slurm/{version}/node/{HOST}");
        let before = relay.count(&one);
        relay.cut(&one, at, usize::MAX);
        let lost = client.node(HOST).await;
        assert!(lost.as_ref().is_err_and(is_lost), "{lost:?}");
        assert_eq!(relay.count(&one) - before, 5);

        // None of this affects later calls.
        relay.cut("nothing", at, 0);
        client.update_node(HOST, &comment("after")).await?;
        assert_eq!(&*client.node(HOST).await?.comment, "after");
        client.submit_job(&waiting_job("twice")).await?;
        assert_eq!(relay.count(&submit), 2);
        Ok(())
    })
}

/// Replaces the daemons by another release at the same address, unnoticed by the client.
fn put(slurm: &mut Slurm, release: Release) -> Result<()> {
    slurm.stop("slurmrestd")?;
    slurm.stop("slurmctld")?;
    if release == Release::V2411 {
        // An older release cannot read the state of a newer one, so a downgrade removes it.
        slurm.run(&["sh", "-c", "rm -r /var/spool/slurmctld/test/*"])?;
    }
    slurm.install(release)?;
    slurm.start_slurmctld()?;
    slurm.start_slurmrestd()
}

#[test]
fn an_upgrade_and_the_way_back_under_a_living_client() -> Result<()> {
    let setup = Setup {
        extra_conf: "NodeName=w-[0-1] CPUs=1 State=CLOUD\n".into(),
        ..Setup::default()
    };
    let (Some(slurm), Some(_)) = (Slurm::start(Release::V2411, &setup)?, Release::V2605.root()?) else {
        return Ok(());
    };
    inside_with(slurm, |slurm| async move {
        let client = Client::new(options(&signer(FIRST_KEY), Version::V45)?)?;
        let agreed = || async {
            let served = client.served().await?;
            anyhow::Ok((
                served.version,
                served.release.get(..5).unwrap_or_default().to_owned(),
            ))
        };
        let names = || async {
            let jobs = client.jobs(None).await?.changed().context("no list")?;
            anyhow::Ok(
                jobs.items
                    .iter()
                    .map(|job| job.name.to_string())
                    .collect::<Vec<_>>(),
            )
        };
        client.submit_job(&waiting_job("before")).await?;
        assert_eq!(agreed().await?, (Version::V42, "24.11".to_owned()));
        let lacks = client.requeue_jobs(&[], Requeue::default()).await;
        assert!(matches!(lacks, Err(Error::Unsupported { .. })), "{lacks:?}");

        meanwhile(&slurm, |slurm| put(slurm, Release::V2605)).await?;
        // The new release still supports the negotiated version, and its response contains its release.
        client.submit_job(&waiting_job("between")).await?;
        assert_eq!(agreed().await?, (Version::V45, "26.05".to_owned()));
        assert_eq!(
            names().await?,
            ["before", "between"],
            "the upgrade lost what was saved"
        );

        meanwhile(&slurm, |slurm| put(slurm, Release::V2411)).await?;
        // The old release does not know the version: the write had no effect, so it is sent again.
        client.submit_job(&waiting_job("after")).await?;
        assert_eq!(agreed().await?, (Version::V42, "24.11".to_owned()));
        assert_eq!(names().await?, ["after"]);
        Ok(())
    })
}

/// No call fails, whether the daemons or the client get the new key first.
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

        // The old key alone is no longer accepted.
        let old = Client::new(options(&common::signer(FIRST_KEY), Version::V45)?)?;
        let refused = old.node(HOST).await;
        assert!(matches!(refused, Err(Error::Unauthorised { .. })), "{refused:?}");
        assert_eq!(Arc::strong_count(&signer), 2);
        Ok(())
    })
}
