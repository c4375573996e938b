//! Tests the state of a node with a suspended job. The node's state alone does not tell whether it has a job; the list
//! of jobs does.
#![allow(clippy::indexing_slicing, reason = "a test may fail")]

mod common;

use anyhow::{Context as _, Result, bail, ensure};
use common::slurm_daemons::{HOST, Release, Setup, Slurm};
use common::{client, eventually, inside};
use rstest::rstest;
use slurm_rest::job::{Job, JobBase};
use slurm_rest::node::{Node, NodeUpdate};
use slurm_rest::{Client, Fetched, Version};

use Release::{V2411, V2605};

/// Submits a job to the one node and waits until it runs.
async fn started(client: &Client, slurm: &Slurm, partition: &str, flags: &[&str]) -> Result<u64> {
    let id = submitted(slurm, partition, flags)?;
    eventually("the job runs", || async {
        Ok(job(client, id).await?.state == JobBase::Running)
    })
    .await?;
    Ok(id)
}

fn submitted(slurm: &Slurm, partition: &str, flags: &[&str]) -> Result<u64> {
    let mut words = vec![
        "sbatch",
        "--parsable",
        "--chdir=/",
        "--output=/dev/null",
        "--mem=1",
    ];
    words.extend(["-p", partition]);
    words.extend(flags);
    words.extend(["--wrap", "exec sleep 600"]);
    let id = slurm.run(&words)?;
    id.trim().parse().with_context(|| format!("sbatch said {id:?}"))
}

async fn job(client: &Client, id: u64) -> Result<Job> {
    let Fetched::Changed(list) = client.jobs(None).await? else {
        bail!("no list")
    };
    let job = list.items.into_iter().find(|job| job.id == id);
    job.with_context(|| format!("job {id} is not listed"))
}

/// Waits until the job is suspended, reads its node, and checks that the list of jobs names it.
async fn suspended(client: &Client, id: u64, what: &str) -> Result<Node> {
    eventually(&format!("job {id} is suspended: {what}"), || async {
        Ok(job(client, id).await?.state == JobBase::Suspended)
    })
    .await?;
    let node = client.node(HOST).await?;
    let job = job(client, id).await?;
    println!(
        "{what}: node {:?}, {} CPUs allocated; job {:?} {} on {:?}",
        node.state,
        node.alloc_cpus,
        job.state,
        job.flags.as_str(),
        &*job.nodes
    );
    // Gang scheduling may have switched the jobs in between.
    ensure!(
        &*job.nodes == HOST,
        "the list of jobs does not name the node: {job:?}"
    );
    ensure!(job.holds_nodes(), "{job:?}");
    Ok(node)
}

fn start(release: Release, extra_conf: &str) -> Result<Option<Slurm>> {
    let setup = Setup {
        // A stopped process does not handle SIGTERM.
        extra_conf: format!("KillWait=1\n{extra_conf}"),
        slurmd: Some("Feature=real".into()),
        ..Setup::default()
    };
    Slurm::start(release, &setup)
}

fn newest(release: Release) -> Version {
    match release {
        V2411 => Version::V42,
        V2605 => Version::V45,
    }
}

#[rstest]
#[case(V2411, "CR_Core")]
#[case(V2605, "CR_Core")]
#[case(V2605, "CR_CPU")]
#[case(V2605, "CR_Core_Memory")]
#[case(V2605, "CR_Socket_Memory")]
fn by_a_person(#[case] release: Release, #[case] parameters: &str) -> Result<()> {
    let conf = format!("SelectTypeParameters={parameters}\n");
    let Some(slurm) = start(release, &conf)? else {
        return Ok(());
    };
    inside(&slurm, || async {
        let client = client(newest(release))?;
        for flags in [&["-n1"][..], &["--exclusive"][..]] {
            let what = format!("{release:?} {parameters} {}", flags[0]);
            let id = started(&client, &slurm, "real", flags).await?;
            slurm.run(&["scontrol", "suspend", &id.to_string()])?;
            suspended(&client, id, &what).await?;
            client.update_node(HOST, &NodeUpdate::drain("test")).await?;
            suspended(&client, id, &format!("{what}, drained meanwhile")).await?;
            slurm.run(&["scontrol", "resume", &id.to_string()])?;
            eventually("it goes on", || async {
                Ok(job(&client, id).await?.state == JobBase::Running)
            })
            .await?;
            slurm.run(&["scontrol", "suspend", &id.to_string()])?;
            suspended(&client, id, &format!("{what}, suspended while it drains")).await?;
            gone(&client, &slurm, id).await?;
            client.update_node(HOST, &NodeUpdate::undrain()).await?;
        }
        Ok(())
    })
}

async fn gone(client: &Client, slurm: &Slurm, id: u64) -> Result<()> {
    slurm.run(&["scancel", &id.to_string()])?;
    eventually("the job is gone", || async {
        Ok(!job(client, id).await?.is_active() && !client.node(HOST).await?.state.is_busy())
    })
    .await
}

const PREEMPTION: &str = "PreemptType=preempt/partition_prio\nPreemptMode=SUSPEND,GANG\nSchedulerTimeSlice=5\n\
    PartitionName=low Nodes=real PriorityTier=1 OverSubscribe=FORCE:1 PreemptMode=SUSPEND\n\
    PartitionName=high Nodes=real PriorityTier=9 OverSubscribe=FORCE:1 PreemptMode=OFF\n";

#[rstest]
#[case(V2411, "CR_Core")]
#[case(V2605, "CR_Core")]
#[case(V2605, "CR_CPU_Memory")]
fn by_a_job_that_comes_first(#[case] release: Release, #[case] parameters: &str) -> Result<()> {
    let conf = format!("SelectTypeParameters={parameters}\n{PREEMPTION}");
    let Some(slurm) = start(release, &conf)? else {
        return Ok(());
    };
    inside(&slurm, || async {
        let client = client(newest(release))?;
        let what = format!("{release:?} {parameters} preempted");
        let low = started(&client, &slurm, "low", &["--exclusive"]).await?;
        let high = started(&client, &slurm, "high", &["--exclusive"]).await?;
        suspended(&client, low, &what).await?;
        client.update_node(HOST, &NodeUpdate::drain("test")).await?;
        suspended(&client, low, &format!("{what}, drained meanwhile")).await?;
        // When the preempting job ends, the other one continues, on a draining node too.
        slurm.run(&["scancel", &high.to_string()])?;
        eventually("the other goes on", || async {
            let low = job(&client, low).await?;
            ensure!(&*low.nodes == HOST && low.holds_nodes(), "{low:?}");
            Ok(low.state == JobBase::Running)
        })
        .await?;
        gone(&client, &slurm, low).await
    })
}

#[rstest]
#[case(V2605, "CR_Core")]
#[case(V2605, "CR_CPU_Memory")]
fn by_a_gang(#[case] release: Release, #[case] parameters: &str) -> Result<()> {
    let conf = format!(
        "SelectTypeParameters={parameters}\nPreemptMode=GANG\nSchedulerTimeSlice=5\n\
         PartitionName=gang Nodes=real OverSubscribe=FORCE:2\n"
    );
    let Some(slurm) = start(release, &conf)? else {
        return Ok(());
    };
    inside(&slurm, || async {
        let client = client(newest(release))?;
        let what = format!("{release:?} {parameters} gang");
        let cpus = client.node(HOST).await?.cpus.to_string();
        let first = started(&client, &slurm, "gang", &["-n", &cpus]).await?;
        let second = submitted(&slurm, "gang", &["-n", &cpus])?;
        // The jobs alternate.
        suspended(&client, first, &what).await?;
        client.update_node(HOST, &NodeUpdate::drain("test")).await?;
        suspended(&client, second, &format!("{what}, drained meanwhile")).await?;
        for id in [first, second] {
            slurm.run(&["scancel", &id.to_string()])?;
        }
        gone(&client, &slurm, second).await
    })
}
