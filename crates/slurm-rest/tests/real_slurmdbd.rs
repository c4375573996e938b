//! Every call of the accounting part, in every version that each release serves.
#![allow(clippy::indexing_slicing, reason = "a test may fail")]

mod common;

use anyhow::Result;
use common::slurm_daemons::{CLUSTER, Release, Setup, Slurm};
use common::{client, eventually, inside};
use rstest::rstest;
use slurm_rest::accounting::{NewAccount, NewQos, NewUser};
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
        match client.ping_accounting().await {
            Ok(pings) => assert!(
                version >= V42 && pings[0].responding && pings[0].primary,
                "{pings:?}"
            ),
            Err(error) => assert!(
                version == V41 && matches!(error, Error::Unsupported { .. }),
                "{error}"
            ),
        }
        assert!(
            client
                .tres()
                .await?
                .iter()
                .any(|tres| tres.kind == "cpu" && tres.id == 1)
        );

        eventually("the cluster has registered", || async {
            let clusters = client.clusters().await?;
            Ok(clusters
                .iter()
                .any(|cluster| cluster.name == CLUSTER && cluster.controller_port == 6817))
        })
        .await?;
        client.add_cluster("second").await?;
        assert!(
            client
                .clusters()
                .await?
                .iter()
                .any(|cluster| cluster.name == "second")
        );
        client.delete_cluster("second").await?;
        assert!(
            client
                .delete_cluster("second")
                .await
                .is_err_and(|error| error.is_not_found())
        );

        let qos = NewQos {
            name: "urgent".into(),
            description: "d".into(),
            priority: 10,
        };
        client.add_qos(&qos).await?;
        let listed = client.qos().await?;
        assert!(
            listed
                .iter()
                .any(|q| q.name == "urgent" && q.priority == 10 && q.id > 0),
            "{listed:?}"
        );
        client.delete_qos("urgent").await?;
        assert!(
            client
                .delete_qos("urgent")
                .await
                .is_err_and(|error| error.is_not_found())
        );

        let account = NewAccount {
            name: "physics".into(),
            cluster: CLUSTER.into(),
            description: "d".into(),
            organization: "o".into(),
        };
        client.add_account(&account).await?;
        let listed = client.accounts().await?;
        assert!(
            listed
                .iter()
                .any(|a| a.name == "physics" && a.organization == "o"),
            "{listed:?}"
        );

        let user = NewUser {
            name: "bob".into(),
            account: "physics".into(),
            cluster: CLUSTER.into(),
        };
        client.add_user(&user).await?;
        assert!(client.users().await?.iter().any(|user| user.name == "bob"));
        let listed = client.associations().await?;
        let of_bob = listed.iter().find(|a| a.user == "bob");
        assert!(
            of_bob.is_some_and(|a| a.account == "physics" && a.cluster == CLUSTER),
            "{listed:?}"
        );

        let nobody = NewUser {
            name: "nobody".into(),
            ..user.clone()
        };
        assert!(
            client
                .delete_association(&nobody)
                .await
                .is_err_and(|error| error.is_not_found())
        );
        let nowhere = NewUser {
            account: "nope".into(),
            ..user.clone()
        };
        let unknown = client.add_user(&nowhere).await;
        assert!(unknown.as_ref().is_err_and(Error::is_not_found), "{unknown:?}");
        client.add_user(&user).await?;
        let on_no_cluster = NewAccount {
            cluster: "nope".into(),
            ..account.clone()
        };
        let refused = client.add_account(&on_no_cluster).await;
        assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");

        let second = NewAccount {
            name: "chemistry".into(),
            ..account.clone()
        };
        client.add_account(&second).await?;
        let there_too = NewUser {
            account: "chemistry".into(),
            ..user.clone()
        };
        client.add_user(&there_too).await?;
        client.delete_association(&there_too).await?;
        let listed = client.associations().await?;
        let accounts = listed.iter().filter(|a| a.user == "bob").map(|a| &*a.account);
        assert_eq!(accounts.collect::<Vec<_>>(), ["physics"]);
        client.delete_account("chemistry").await?;
        // A user keeps the association with the default account until it is the last one.
        client.delete_user("bob").await?;
        assert!(
            client
                .delete_user("bob")
                .await
                .is_err_and(|error| error.is_not_found())
        );
        client.delete_account("physics").await?;
        assert!(
            client
                .delete_account("physics")
                .await
                .is_err_and(|error| error.is_not_found())
        );
        Ok(())
    })
}

#[rstest]
fn a_user_without_rights_changes_nothing(#[values(V2411, V2605)] release: Release) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    inside(&slurm, || async {
        let client = common::client_of_nobody()?;
        let qos = NewQos {
            name: "mine".into(),
            ..NewQos::default()
        };
        let denied = client.add_qos(&qos).await;
        assert!(matches!(denied, Err(Error::Unauthorised { .. })), "{denied:?}");
        assert!(client.qos().await?.iter().all(|qos| qos.name != "mine"));
        Ok(())
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
        let lost = client.delete_account("physics").await;
        assert!(
            matches!(
                lost,
                Err(Error::Unreachable {
                    daemon: Peer::Slurmdbd,
                    ..
                })
            ),
            "{lost:?}"
        );
        assert!(client.ping().await?[0].responding);
        assert_eq!(client.partition("main").await?.name.as_ref(), "main");
        Ok(())
    })
}
