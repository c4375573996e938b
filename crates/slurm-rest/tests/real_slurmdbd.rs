//! Tests every slurmdbd call, in every version of each release.

mod common;

use anyhow::Result;
use common::slurm_daemons::{CLUSTER, Release, Setup, Slurm};
use common::{client, eventually, inside};
use rstest::rstest;
use slurm_rest::{Error, Peer, Version};

use Release::{V2411, V2605};
use Version::{V41, V42, V43, V44, V45};

const SLURMDBD_CONF: &str = "DbdHost=n0\nSlurmUser=slurm\nLogFile=/dev/stdout\nAuthType=auth/slurm\n\
    AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=/etc/slurm/jwt.key\nAuthInfo=use_client_ids\n\
    StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStorageUser=slurm\nStoragePass=secret\n";

fn start(release: Release) -> Result<Option<Slurm>> {
    let setup = Setup {
        slurmdbd_conf: Some(SLURMDBD_CONF.into()),
        database_password: "secret".into(),
        ..Setup::default()
    };
    Slurm::start(release, &setup)
}

#[rstest]
#[case(V2411, V41)]
#[case(V2411, V42)]
#[case(V2605, V42)]
#[case(V2605, V43)]
#[case(V2605, V44)]
#[case(V2605, V45)]
fn every_call(#[case] release: Release, #[case] version: Version) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    inside(&slurm, || async {
        let client = client(version)?;
        eventually("the cluster has registered", || async {
            let clusters = client.clusters().await?;
            Ok(clusters
                .iter()
                .any(|cluster| cluster.name == CLUSTER && cluster.controller_port == 6817))
        })
        .await
    })
}

#[rstest]
fn a_slurmdbd_that_is_gone_is_told_from_a_slurmctld_that_is_gone(
    #[values(V2411, V2605)] release: Release,
) -> Result<()> {
    let Some(mut slurm) = start(release)? else {
        return Ok(());
    };
    slurm.stop("slurmdbd")?;
    inside(&slurm, || async {
        let client = client(V45)?;
        let gone = client.clusters().await;
        assert!(
            matches!(
                gone,
                Err(Error::Unreachable {
                    daemon: Peer::Slurmdbd,
                    ..
                })
            ),
            "{gone:?}"
        );
        assert_eq!(client.partition("main").await?.name.as_ref(), "main");
        Ok(())
    })
}
