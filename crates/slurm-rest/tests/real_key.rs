//! Tests that nodes stay drained while slurm.key is replaced under the daemons.

mod common;

use std::time::Duration;

use anyhow::{Result, ensure};
use common::slurm_daemons::{HOST, Release, Setup, Slurm};
use common::{client, eventually, inside_with, meanwhile};
use rstest::rstest;
use slurm_rest::Version;
use slurm_rest::node::{NodeBase, NodeFlag, NodeUpdate};

const REASON: &str = "slurm.key is being replaced";

/// slurmctld and slurmrestd restart with another key; slurmd continues with the old one until it restarts as well.
#[rstest]
#[case(Release::V2411, Version::V42)]
#[case(Release::V2605, Version::V45)]
fn a_drain_outlasts_a_new_slurm_key_and_only_a_slurmd_that_has_it_registers(
    #[case] release: Release,
    #[case] version: Version,
) -> Result<()> {
    let setup = Setup {
        slurmd: Some("Feature=real".into()),
        ..Setup::default()
    };
    let Some(slurm) = Slurm::start(release, &setup)? else {
        return Ok(());
    };
    inside_with(slurm, move |slurm| async move {
        let client = client(version)?;
        let node = client.node(HOST).await?;
        ensure!(node.slurmd_start_time.is_some(), "{node:?}");
        client.update_node(HOST, &NodeUpdate::drain(REASON)).await?;

        meanwhile(&slurm, |slurm| {
            slurm.stop("slurmctld")?;
            slurm.stop("slurmrestd")?;
            slurm.write(
                "/etc/slurm/slurm.key",
                "another auth/slurm key that is long enough for a test",
            )?;
            // Otherwise this slurmd would sign for scontrol, with the old key.
            slurm.run(&["rm", "/run/slurm/sack.socket"])?;
            slurm.start_slurmctld()?;
            slurm.start_slurmrestd()
        })
        .await?;
        // Long enough for slurmctld to contact the node without success.
        for _ in 0..6 {
            let node = client.node(HOST).await?;
            ensure!(
                node.state.has(NodeFlag::Drain) && &*node.reason == REASON,
                "the drain is lost: {node:?}"
            );
            ensure!(
                node.slurmd_start_time.is_none(),
                "a slurmd with the old key has registered: {node:?}"
            );
            tokio::time::sleep(Duration::from_millis(500)).await;
        }

        meanwhile(&slurm, |slurm| {
            slurm.stop("slurmd")?;
            slurm.start_slurmd("Feature=real")
        })
        .await?;
        eventually("the node has registered", || async {
            Ok(client.node(HOST).await?.slurmd_start_time.is_some())
        })
        .await?;
        let node = client.node(HOST).await?;
        ensure!(
            node.state.has(NodeFlag::Drain) && &*node.reason == REASON,
            "the drain is lost: {node:?}"
        );
        client.update_node(HOST, &NodeUpdate::undrain()).await?;
        eventually("the node takes jobs", || async {
            // 24.11 keeps the reason.
            let node = client.node(HOST).await?;
            Ok(node.state.base == NodeBase::Idle && node.state.is_available())
        })
        .await
    })
}
