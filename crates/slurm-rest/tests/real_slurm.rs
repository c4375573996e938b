//! Tests every slurmctld call, including rejections, in every version of each release.
#![allow(clippy::indexing_slicing, reason = "a test may fail")]

mod common;

use anyhow::{Result, bail};
use common::slurm_daemons::{HOST, Release, Setup, Slurm};
use common::{client, eventually, inside};
use jiff::SignedDuration;
use rstest::rstest;
use slurm_rest::job::{Job, JobBase, JobSubmit, Requeue};
use slurm_rest::node::{NodeFlag, NodeUpdate};
use slurm_rest::reservation::ReservationUpdate;
use slurm_rest::{Client, Error, Fetched, Hostlist, NoVal, Version};

use Release::{V2411, V2605};
use Version::{V41, V42, V43, V44, V45};

/// Checks that a call reports `Unsupported` if the version lacks it; any other error fails the test.
fn served<T>(result: Result<T, Error>, offered: bool) -> Result<Option<T>> {
    match result {
        Ok(value) if offered => Ok(Some(value)),
        Err(Error::Unsupported { .. }) if !offered => Ok(None),
        Ok(_) => bail!("answered although the version lacks it"),
        Err(error) => Err(error.into()),
    }
}

fn start(release: Release) -> Result<Option<Slurm>> {
    let setup = Setup {
        // Allows two jobs at a time on one machine.
        extra_conf: "SelectTypeParameters=CR_CPU\n".into(),
        slurmd: Some("Feature=real".into()),
        ..Setup::default()
    };
    Slurm::start(release, &setup)
}

/// A node from slurm.conf cannot be deleted, and the error must say why.
#[rstest]
#[case(V2411, V42)]
#[case(V2605, V45)]
fn a_node_of_slurm_conf_is_not_deleted(#[case] release: Release, #[case] version: Version) -> Result<()> {
    const INVALID_STATE: i64 = 2028;
    let setup = Setup {
        extra_conf: "NodeName=fixed NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN\n".into(),
        ..Setup::default()
    };
    let Some(slurm) = Slurm::start(release, &setup)? else {
        return Ok(());
    };
    inside(&slurm, || async {
        let answer = client(version)?.delete_nodes(&"fixed".parse()?).await;
        let Err(Error::Refused { complaints }) = &answer else {
            bail!("{answer:?}")
        };
        let words: Vec<(i64, &str)> = complaints
            .iter()
            .map(|said| (said.number, &*said.error))
            .collect();
        assert_eq!(words, [(INVALID_STATE, "Invalid node state specified")]);
        assert!(client(version)?.node("fixed").await.is_ok());
        Ok(())
    })
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
        assert_eq!(client.served().await?.version, version);
        control(&client).await?;
        nodes(&client, &slurm, version).await?;
        jobs(&client, version).await?;
        array_tasks(&client, version).await?;
        partitions(&client).await?;
        reservations(&client, release, version).await
    })
}

async fn control(client: &Client) -> Result<()> {
    client.reconfigure().await?;
    Ok(())
}

async fn nodes(client: &Client, slurm: &Slurm, version: Version) -> Result<()> {
    // A reconfiguration makes slurmctld contact its nodes again.
    eventually("the node is back", || async {
        let node = client.node(HOST).await?;
        Ok(node.state.is_available() && node.has_registered())
    })
    .await?;
    let Fetched::Changed(list) = client.nodes(None).await? else {
        bail!("nothing listed")
    };
    assert_eq!(
        list.items.iter().map(|node| &*node.name).collect::<Vec<_>>(),
        [HOST]
    );
    let node = client.node(HOST).await?;
    assert!(
        node.features.contains("real") && node.partitions.contains("main"),
        "{node:?}"
    );
    assert!(
        node.state.has(NodeFlag::DynamicNorm) && node.boot_time.is_some() && node.cpus > 0,
        "{node:?}"
    );
    assert!(client.node("nope").await.is_err_and(|error| error.is_not_found()));

    // The time of a response can be used for the next request; a change in the same second is never missed.
    let since = list.last_update;
    assert!(since.is_some());
    eventually("nothing changes", || async {
        let later = client
            .nodes(None)
            .await?
            .changed()
            .and_then(|list| list.last_update);
        tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
        Ok(client.nodes(later).await? == Fetched::Unchanged)
    })
    .await?;

    let update = NodeUpdate {
        comment: Some("a \"comment\"".into()),
        extra: Some("{\"pod\":\"x\"}".into()),
        features: Some(vec!["real".into(), "more".into()]),
        active_features: Some(vec!["real".into()]),
        weight: Some(NoVal::Number(7)),
        ..NodeUpdate::default()
    };
    client.update_node(HOST, &update).await?;
    let node = client.node(HOST).await?;
    assert_eq!(
        (&*node.comment, &*node.extra, node.weight),
        ("a \"comment\"", "{\"pod\":\"x\"}", 7)
    );
    assert_eq!(
        (node.features.as_str(), node.active_features.as_str()),
        ("real,more", "real")
    );
    assert!(
        matches!(client.nodes(since).await?, Fetched::Changed(_)),
        "a change was not seen"
    );
    assert!(
        client
            .update_node("nope", &update)
            .await
            .is_err_and(|error| error.is_not_found())
    );

    let place = NodeUpdate {
        topology: Some("default:s1".into()),
        ..NodeUpdate::default()
    };
    match client.update_node(HOST, &place).await {
        Err(Error::Unsupported { .. }) => assert!(version < V43),
        // The cluster has no topology.
        Ok(()) | Err(Error::Refused { .. }) => assert!(version >= V43),
        Err(error) => return Err(error.into()),
    }
    many_nodes(client, slurm).await
}

/// Tests changes and deletions by host list.
async fn many_nodes(client: &Client, slurm: &Slurm) -> Result<()> {
    let line = "NodeName=w-[0-99] CPUs=1 Feature=ext State=CLOUD";
    let words: Vec<&str> = ["scontrol", "create"]
        .into_iter()
        .chain(line.split(' '))
        .collect();
    slurm.run(&words)?;
    let fleet: Hostlist = "w-[0-99]".parse()?;
    client.update_nodes(&fleet, &NodeUpdate::drain("rollout")).await?;
    let draining = |client: Client, expected: usize| async move {
        let list = client.nodes(None).await?.changed().unwrap_or_default();
        let draining = list
            .items
            .iter()
            .filter(|node| node.state.has(NodeFlag::Drain) && &*node.reason == "rollout");
        anyhow::Ok(draining.count() == expected)
    };
    assert!(draining(client.clone(), 100).await?);
    client.update_nodes(&fleet, &NodeUpdate::undrain()).await?;
    assert!(draining(client.clone(), 0).await?);

    let with_unknown: Hostlist = "w-[0-1],nope".parse()?;
    let refused = client
        .update_nodes(&with_unknown, &NodeUpdate::drain("rollout"))
        .await;
    assert!(refused.is_err_and(|error| error.is_not_found()));
    client
        .update_nodes(&Hostlist::default(), &NodeUpdate::undrain())
        .await?;

    client.delete_nodes(&"w-[0-49]".parse()?).await?;
    assert!(client.node("w-7").await.is_err_and(|error| error.is_not_found()));
    assert!(client.node("w-77").await.is_ok());
    assert!(
        client
            .delete_nodes(&"w-[0-9]".parse()?)
            .await
            .is_err_and(|error| error.is_not_found())
    );
    client.delete_nodes(&"w-[50-99]".parse()?).await?;
    Ok(())
}

fn sleeper() -> JobSubmit {
    JobSubmit {
        name: "sleeper".into(),
        script: "#!/bin/sh\ntrap '' USR1\nsleep 600\n".into(),
        current_working_directory: "/tmp".into(),
        environment: vec!["PATH=/usr/bin:/bin".into()],
        partition: Some("real".into()),
        tasks: Some(1),
        time_limit: Some(NoVal::Number(30)),
        standard_output: Some("/dev/null".into()),
        comment: Some("for the test".into()),
        ..JobSubmit::default()
    }
}

async fn jobs(client: &Client, version: Version) -> Result<()> {
    assert!(client.job(4242).await.is_err_and(|error| error.is_not_found()));
    let nowhere = JobSubmit {
        partition: Some("nope".into()),
        ..sleeper()
    };
    let refused = client
        .submit_job(&nowhere)
        .await
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(refused.contains("Invalid partition name"), "{refused}");

    let id = client.submit_job(&sleeper()).await?;
    let state = |client: Client| async move { anyhow::Ok(client.job(id).await?[0].state) };
    eventually("the job runs", || async {
        Ok(state(client.clone()).await? == JobBase::Running)
    })
    .await?;
    let job = client.job(id).await?.remove(0);
    assert_eq!(
        (&*job.name, &*job.nodes, job.partition.as_str()),
        ("sleeper", HOST, "real")
    );
    assert!(
        job.holds_nodes() && job.end_time.is_some() && job.time_limit == NoVal::Number(30),
        "{job:?}"
    );

    let Fetched::Changed(list) = client.jobs(None).await? else {
        bail!("nothing listed")
    };
    assert!(list.items.iter().any(|listed| listed.id == id));
    eventually("nothing changes", || async {
        let later = client
            .jobs(None)
            .await?
            .changed()
            .and_then(|list| list.last_update);
        tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
        Ok(client.jobs(later).await? == Fetched::Unchanged)
    })
    .await?;
    // Slurm decides which nodes can be deleted.
    let busy = client.delete_nodes(&HOST.parse()?).await;
    assert!(busy.as_ref().is_err_and(Error::is_in_use), "{busy:?}");
    client.signal_job(&id.to_string(), "SIGUSR1").await?;
    assert_eq!(state(client.clone()).await?, JobBase::Running);
    if let Some(refused) = served(
        client
            .requeue_jobs(&[id.to_string(), "4242".to_owned()], Requeue::default())
            .await,
        version >= V45,
    )? {
        assert_eq!(refused.keys().collect::<Vec<_>>(), ["4242"]);
        eventually("the job waits or runs again", || async {
            Ok(client.job(id).await?[0].restarts == 1)
        })
        .await?;
    }
    client.cancel_job(&id.to_string()).await?;
    eventually("the job is over", || async {
        Ok(!client.job(id).await?[0].is_active())
    })
    .await?;
    assert_eq!(state(client.clone()).await?, JobBase::Cancelled);
    let unknown = client.cancel_job("4242").await;
    match version {
        V41 => unknown?,
        _ => assert!(unknown.as_ref().is_err_and(Error::is_not_found), "{unknown:?}"),
    }
    Ok(())
}

/// The task that starts last keeps the ID of its array; the ID alone means all tasks.
async fn array_tasks(client: &Client, version: Version) -> Result<()> {
    let array = JobSubmit {
        array: Some("0-1".into()),
        ..sleeper()
    };
    let id = client.submit_job(&array).await?;
    let keeper = |tasks: Vec<Job>| {
        let keeps =
            |task: &Job| task.id == id && task.state == JobBase::Running && task.array_task_id.is_some();
        tasks.into_iter().find(keeps)
    };
    eventually("the task that has the array's number runs", || async {
        Ok(keeper(client.job(id).await?).is_some())
    })
    .await?;
    let Some(task) = keeper(client.job(id).await?) else {
        bail!("it has ended")
    };
    let others = || async {
        let tasks = client.job(id).await?;
        anyhow::Ok(
            tasks
                .into_iter()
                .filter(|other| other.array_task_id != task.array_task_id),
        )
    };
    if served(
        client
            .requeue_jobs(&[task.requeue_address()], Requeue::default())
            .await,
        version >= V45,
    )?
    .is_some()
    {
        eventually("the task was requeued", || async {
            let tasks = client.job(id).await?;
            let same = |other: &&Job| other.array_task_id == task.array_task_id;
            Ok(tasks.iter().find(same).is_some_and(|task| task.restarts == 1))
        })
        .await?;
        assert!(
            others().await?.all(|other| other.restarts == 0),
            "the whole array was requeued"
        );
    }
    // v0.0.41 does not accept tasks, and reports no error.
    if version > V41 {
        let same = |other: &&Job| other.array_task_id == task.array_task_id;
        eventually("the task waits or runs again", || async {
            let tasks = client.job(id).await?;
            Ok(tasks.iter().find(same).is_some_and(|task| !task.is_completing()))
        })
        .await?;
        client.cancel_job(&task.address()).await?;
        eventually("the task is over", || async {
            let tasks = client.job(id).await?;
            Ok(tasks.iter().find(same).is_none_or(|task| !task.is_active()))
        })
        .await?;
        assert!(
            others().await?.all(|other| other.is_active()),
            "the whole array was cancelled"
        );
    }
    // For the whole array Slurm reports that this task has already ended.
    drop(client.cancel_job(&id.to_string()).await);
    eventually("the array is over", || async {
        Ok(client.job(id).await?.iter().all(|task| !task.is_active()))
    })
    .await
}

async fn partitions(client: &Client) -> Result<()> {
    let Fetched::Changed(list) = client.partitions(None).await? else {
        bail!("nothing listed")
    };
    assert_eq!(
        list.items.iter().map(|p| &*p.name).collect::<Vec<_>>(),
        ["main", "real"]
    );
    eventually("nothing changes", || async {
        let later = client
            .partitions(None)
            .await?
            .changed()
            .and_then(|list| list.last_update);
        tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
        Ok(later.is_some() && client.partitions(later).await? == Fetched::Unchanged)
    })
    .await?;
    let main = client.partition("main").await?;
    assert!(
        main.state.contains("UP") && main.max_time == NoVal::Number(60) && main.total_nodes >= 1,
        "{main:?}"
    );
    assert_eq!((&*main.nodes, main.node_sets.as_str()), (HOST, "ALL"));
    assert!(
        client
            .partition("nope")
            .await
            .is_err_and(|error| error.is_not_found())
    );
    Ok(())
}

async fn reservations(client: &Client, release: Release, version: Version) -> Result<()> {
    assert!(
        client
            .reservations(None)
            .await?
            .changed()
            .is_some_and(|list| list.items.is_empty())
    );
    assert!(
        client
            .reservation("nope")
            .await
            .is_err_and(|error| error.is_not_found())
    );
    let now = (common::clock())();
    let update = ReservationUpdate {
        name: "maintenance".into(),
        start_time: Some(now.checked_add(SignedDuration::from_hours(1))?),
        duration: Some(SignedDuration::from_mins(30)),
        nodes: HOST.parse()?,
        users: vec!["root".into()],
        flags: vec!["MAINT".into(), "IGNORE_JOBS".into()],
        comment: Some("rollout".into()),
        ..ReservationUpdate::default()
    };
    let made = served(client.update_reservation(&update).await, version >= V43)?.is_some();
    if made {
        let reservation = client.reservation("maintenance").await?;
        assert_eq!((&*reservation.nodes, reservation.users.as_str()), (HOST, "root"));
        assert!(
            reservation.flags.contains("MAINT") && reservation.start_time.is_some(),
            "{reservation:?}"
        );
        let longer = ReservationUpdate {
            name: "maintenance".into(),
            duration: Some(SignedDuration::from_hours(2)),
            ..ReservationUpdate::default()
        };
        client.update_reservation(&longer).await?;
        assert!(client.reservation("maintenance").await?.end_time > reservation.end_time);
        let nowhere = ReservationUpdate {
            name: "other".into(),
            nodes: "nope".parse()?,
            ..update
        };
        let refused = client.update_reservation(&nowhere).await;
        assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    }
    eventually("nothing changes", || async {
        let later = client
            .reservations(None)
            .await?
            .changed()
            .and_then(|list| list.last_update);
        tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
        Ok(later.is_some() && client.reservations(later).await? == Fetched::Unchanged)
    })
    .await?;
    let deletes = release == V2605;
    if made {
        client.delete_reservation("maintenance").await?;
    }
    match client.delete_reservation("maintenance").await {
        Err(Error::NotFound { .. }) => assert!(deletes),
        Err(Error::Unsupported { .. }) => assert!(!deletes),
        other => bail!("{other:?}"),
    }
    Ok(())
}

/// For one node slurmctld reports the allocated CPUs that it counted last, and it counts them only for a list of all
/// nodes. It counts them for every such request, even if nothing has changed since the time in it.
#[rstest]
#[case(V2411, V42)]
#[case(V2605, V45)]
fn a_request_for_what_changed_in_the_future_counts_the_allocated_cpus(
    #[case] release: Release,
    #[case] version: Version,
) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    inside(&slurm, || async {
        let client = client(version)?;
        let far_future = (common::clock())().checked_add(SignedDuration::from_hours(24 * 365))?;
        let id = client.submit_job(&sleeper()).await?;
        eventually("the job runs", || async {
            Ok(client.job(id).await?[0].state == JobBase::Running)
        })
        .await?;
        assert!(client.nodes(None).await?.changed().is_some());
        assert!(client.node(HOST).await?.alloc_cpus > 0);
        client.cancel_job(&id.to_string()).await?;
        eventually("the node is cleaned up", || async {
            let job = client.job(id).await?.remove(0);
            Ok(!job.holds_nodes())
        })
        .await?;
        assert_eq!(client.nodes(Some(far_future)).await?, Fetched::Unchanged);
        let after = client.node(HOST).await?;
        assert!(!after.state.is_busy() && after.alloc_cpus == 0, "{after:?}");
        Ok(())
    })
}

/// Slurm deletes the idle nodes of a host list and refuses the busy one.
#[rstest]
#[case(V2411, V42)]
#[case(V2605, V45)]
fn a_host_list_with_a_busy_node_is_refused_and_that_node_stays(
    #[case] release: Release,
    #[case] version: Version,
) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    let create = [
        "scontrol",
        "create",
        "NodeName=w-[0-3]",
        "CPUs=1",
        "Feature=ext",
        "State=CLOUD",
    ];
    slurm.run(&create)?;
    inside(&slurm, || async {
        let client = client(version)?;
        let id = client.submit_job(&sleeper()).await?;
        eventually("the job runs", || async {
            Ok(client.job(id).await?[0].state == JobBase::Running)
        })
        .await?;
        let list = Hostlist::from_names(["w-0", HOST, "w-1"])?;
        let answer = client.delete_nodes(&list).await;
        assert!(answer.as_ref().is_err_and(Error::is_in_use), "{answer:?}");
        assert!(client.node(HOST).await.is_ok());
        assert_eq!(client.job(id).await?[0].state, JobBase::Running);
        for name in ["w-0", "w-1"] {
            let gone = client.node(name).await;
            assert!(gone.as_ref().is_err_and(Error::is_not_found), "{gone:?}");
        }
        // slurmctld combines the return codes: the busy node looks like another unknown one.
        let list = Hostlist::from_names([HOST, "nope"])?;
        let answer = client.delete_nodes(&list).await;
        assert!(answer.as_ref().is_err_and(Error::is_not_found), "{answer:?}");
        assert!(client.node(HOST).await.is_ok());
        assert_eq!(client.job(id).await?[0].state, JobBase::Running);
        Ok(())
    })
}

/// 24.11 also applies `update_time` to the partitions, and reports an error when only the nodes have changed.
#[rstest]
fn nodes_that_changed_are_listed_whole_while_partitions_did_not(
    #[values(V2411, V2605)] release: Release,
) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    inside(&slurm, || async {
        let client = client(V45)?;
        for round in ["one", "two", "three"] {
            let quiet_since = (common::clock())();
            tokio::time::sleep(std::time::Duration::from_millis(2_100)).await;
            let update = NodeUpdate {
                comment: Some(round.into()),
                ..NodeUpdate::default()
            };
            client.update_node(HOST, &update).await?;
            let since = quiet_since.checked_add(SignedDuration::from_secs(1))?;
            let Fetched::Changed(list) = client.nodes(Some(since)).await? else {
                bail!("a change was missed")
            };
            let node = &list.items[0];
            assert_eq!(&*node.comment, round);
            assert!(node.partitions.contains("main"), "{node:?}");
        }
        Ok(())
    })
}

/// Slurm accepts any bytes as a job name, from any user.
#[rstest]
fn a_job_whose_name_is_no_text_hides_no_other(#[values(V2411, V2605)] release: Release) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    let submit = r#"sbatch --hold -J "$(printf 'a\377b')" --comment="$(printf '\355\240\200')" --wrap true"#;
    slurm.run(&["sh", "-c", submit])?;
    slurm.run(&["sbatch", "--hold", "-J", "plain", "--wrap", "true"])?;
    inside(&slurm, || async {
        let Fetched::Changed(list) = client(V45)?.jobs(None).await? else {
            bail!("no list")
        };
        let names: Vec<_> = list.items.iter().map(|job| &*job.name).collect();
        assert_eq!(names, ["a\u{fffd}b", "plain"]);
        Ok(())
    })
}

#[rstest]
fn a_user_without_rights_is_told_so(#[values(V2411, V2605)] release: Release) -> Result<()> {
    let Some(slurm) = start(release)? else {
        return Ok(());
    };
    inside(&slurm, || async {
        let client = common::client_of_nobody()?;
        assert!(client.node(HOST).await.is_ok());
        let denied = client.update_node(HOST, &NodeUpdate::drain("mine")).await;
        assert!(matches!(denied, Err(Error::Unauthorised { .. })), "{denied:?}");
        let denied = client.reconfigure().await;
        assert!(matches!(denied, Err(Error::Unauthorised { .. })), "{denied:?}");
        Ok(())
    })
}
