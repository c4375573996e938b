//! Takes the steps to another slurm.key that `plan` decides on, one per pass.

pub mod plan;

use std::collections::{BTreeMap, BTreeSet};

use keelson_api::well_known::{
    annotation, reason,
    slurm::{KEY_ROLLOVER_IN_USE, KEY_ROLLOVER_REASON},
};
use keelson_runtime::{
    Key,
    apply::{self, Writer},
    run::chain,
};
use kube::ResourceExt;
use serde_json::json;
use slurm_rest::{Client, Fetched};

use super::observe::Observed;
use crate::{
    caches::{CONTROLLER, OWNER, owned_by_value},
    context::Context,
    keys,
    nodeset::perceive,
    problem::Problem,
    slurm::{
        control::{self, Change},
        facts::{NodeName, Slurm, SlurmNode},
    },
};
use plan::{Facts, Reading, Step, Wait};

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot annotate the Controller")]
    Record(#[source] apply::Error),
    #[error("there is no connection to Slurm")]
    Disconnected,
    #[error("cannot change nodes")]
    Nodes(#[source] control::Error),
}

/// What a pass means for the rest of the reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The daemons run, or start, with the key of the Secret.
    UseWanted {
        /// What is still to be done in Slurm, for a person.
        waiting: Option<String>,
    },
    /// They go on with this key, for this reason.
    KeepRunning { key: String, problem: Problem },
}

/// Takes the next step towards the key of the Secret, whose checksum is `wanted`. Nothing that takes long may come between
/// this and the StatefulSet's change.
pub async fn advance(context: &Context, writer: &Writer, observed: &Observed, wanted: &str) -> Outcome {
    let key = Key::of(observed.controller.as_ref());
    let Some(facts) = observe(context, observed, &key, wanted).await else {
        return Outcome::UseWanted { waiting: None };
    };
    let step = plan::plan(&facts);
    let done = act(context, writer, observed, &key, wanted, &step).await;
    if let Err(error) = &done {
        tracing::warn!(controller = %key, error = chain(error), "a step to another slurm.key failed");
    }
    outcome(&facts, &step, done.err())
}

/// `None` when no key is being replaced.
async fn observe(context: &Context, observed: &Observed, key: &Key, wanted: &str) -> Option<Facts> {
    let set = observed.live.stateful_set.as_deref();
    let mut facts = Facts {
        wanted: wanted.to_owned(),
        running: keys::slurm_key_in_use(set),
        is_restarting: false,
        recorded: observed
            .controller
            .annotations()
            .get(annotation::SLURM_KEY_ROLLOVER)
            .cloned(),
        starting: BTreeSet::new(),
        slurm: Reading::Unknown("there is no connection to Slurm".to_owned()),
    };
    facts.is_restarting = observed
        .live
        .pods
        .iter()
        .any(|pod| pod.annotations().get(annotation::SLURM_KEY_HASH) != facts.running.as_ref());
    // The annotation may have been removed by whoever replaced the whole object.
    let drained = match context.mirrors.slurm(key) {
        Slurm::Known { nodes, .. } => nodes.values().any(plan::is_due),
        Slurm::Unknown { .. } => false,
    };
    let begun = facts.recorded.is_some() || drained;
    if !facts.is_changed() && !begun {
        return None;
    }
    // Before Slurm is read: a worker that registers between the two is in the reading.
    facts.starting = starting(context, key);
    if let Some(client) = context.mirrors.client(key) {
        let reading = read(context, &client, begun).await;
        facts.slurm = reading.unwrap_or_else(|error| Reading::Unknown(chain(&error)));
    }
    Some(facts)
}

/// Nodes of workers that have not told anything of Slurm yet and may any moment. One that was made long ago does not come up
/// at all, or has the new key already and cannot register with a slurmctld that runs with the old one.
fn starting(context: &Context, key: &Key) -> BTreeSet<NodeName> {
    let now = context.clock.now();
    let nodesets = context.caches.nodesets.find(CONTROLLER, &key.to_string());
    let pods = nodesets.iter().flat_map(|nodeset| {
        let owner = owned_by_value("NodeSet", &key.namespace, &nodeset.name_any());
        context.caches.pods.find(OWNER, &owner)
    });
    pods.map(|pod| perceive::pod_facts(&pod, now))
        .filter(|pod| pod.may_register(now))
        .map(|pod| pod.node)
        .collect()
}

async fn read(context: &Context, client: &Client, with_nodes: bool) -> Result<Reading, slurm_rest::Error> {
    let nodes = if with_nodes {
        let asked = context.clock.now();
        // Nobody asked for changes only; an answer without a list proves nothing.
        let Fetched::Changed(list) = client.nodes(None).await? else {
            return Ok(Reading::Unknown("Slurm listed no nodes".to_owned()));
        };
        let nodes = list.items.iter().filter(|node| !node.name.is_empty());
        Some(
            nodes
                .map(|node| (NodeName(node.name.to_string()), SlurmNode::from_rest(node, asked)))
                .collect::<BTreeMap<_, _>>(),
        )
    } else {
        None
    };
    // After the nodes: see `Reading::Full`.
    let Fetched::Changed(list) = client.jobs(None).await? else {
        return Ok(Reading::Unknown("Slurm listed no jobs".to_owned()));
    };
    let jobs = list.items.iter().filter(|job| job.holds_nodes()).count();
    Ok(match nodes {
        Some(nodes) => Reading::Full { nodes, jobs },
        None => Reading::Jobs(jobs),
    })
}

/// Takes the step. If that fails, the next pass reads again and goes on from there.
async fn act(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    key: &Key,
    wanted: &str,
    step: &Step,
) -> Result<(), Error> {
    match step {
        Step::Nothing | Step::Wait(_) | Step::Switch => Ok(()),
        Step::Record => record(context, writer, observed, Some(wanted)).await,
        Step::Open => record(context, writer, observed, Some(KEY_ROLLOVER_IN_USE)).await,
        Step::Forget => record(context, writer, observed, None).await,
        Step::Drain(nodes) => {
            tracing::info!(controller = %key, nodes = nodes.len(), "draining nodes for another slurm.key");
            let drain = Change::Drain {
                reason: KEY_ROLLOVER_REASON.to_owned(),
            };
            change(context, key, nodes, &drain, plan::takes_jobs).await
        }
        Step::Restore { undrain, resume } => {
            let nodes = undrain.len() + resume.len();
            tracing::info!(controller = %key, nodes, "bringing back nodes drained for another slurm.key");
            let undrained = change(context, key, undrain, &Change::Undrain, plan::is_ours).await;
            let resumed = change(context, key, resume, &Change::Resume, plan::is_ours).await;
            undrained.and(resumed)
        }
    }
}

/// Changes those of the nodes for which the change is still due. Somebody may have drained one, or made our drain theirs,
/// while the jobs were read: their reason must stay.
async fn change(
    context: &Context,
    key: &Key,
    nodes: &[NodeName],
    change: &Change,
    still_due: fn(&SlurmNode) -> bool,
) -> Result<(), Error> {
    if nodes.is_empty() {
        return Ok(());
    }
    let control = context.mirrors.control(key).ok_or(Error::Disconnected)?;
    let now = control.nodes(nodes).await.map_err(Error::Nodes)?;
    let due: Vec<NodeName> = nodes
        .iter()
        .filter(|name| now.get(*name).is_some_and(still_due))
        .cloned()
        .collect();
    if due.is_empty() {
        return Ok(());
    }
    control.change(&due, change).await.map_err(Error::Nodes)
}

async fn record(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    wanted: Option<&str>,
) -> Result<(), Error> {
    let patch = json!({ "metadata": { "annotations": { annotation::SLURM_KEY_ROLLOVER: wanted } } });
    let written = writer
        .merge(observed.controller.as_ref(), patch)
        .await
        .map_err(Error::Record)?;
    context.caches.controllers.upsert(written);
    Ok(())
}

fn outcome(facts: &Facts, step: &Step, failure: Option<Error>) -> Outcome {
    let running = facts.running.clone().filter(|_| facts.is_changed());
    let said = failure
        .map(|error| format!(" ({})", chain(&error)))
        .unwrap_or_default();
    match (running, step) {
        (Some(key), Step::Restore { .. } | Step::Forget) => Outcome::KeepRunning {
            key,
            problem: pending(&format!("a job started before all nodes were drained{said}")),
        },
        (Some(key), Step::Nothing | Step::Record | Step::Open | Step::Drain(_)) => Outcome::KeepRunning {
            key,
            problem: pending(&format!("no job runs, and all nodes are being drained{said}")),
        },
        (Some(key), Step::Wait(wait)) => Outcome::KeepRunning {
            key,
            problem: pending(&what_holds(wait)),
        },
        (Some(_), Step::Switch) | (None, Step::Nothing | Step::Switch) => {
            Outcome::UseWanted { waiting: None }
        }
        (None, Step::Wait(wait)) => Outcome::UseWanted {
            waiting: Some(what_holds(wait)),
        },
        (None, Step::Record | Step::Open | Step::Drain(_) | Step::Restore { .. } | Step::Forget) => {
            Outcome::UseWanted {
                waiting: Some(format!(
                    "nodes drained for another slurm.key are brought back{said}"
                )),
            }
        }
    }
}

fn what_holds(wait: &Wait) -> String {
    match wait {
        Wait::Silence(why) => format!("Slurm does not say which jobs run: {why}"),
        Wait::Jobs(jobs) => format!("{jobs} jobs run"),
        Wait::Starting(nodes) => {
            let shown: Vec<&str> = nodes.iter().take(5).map(|node| node.0.as_str()).collect();
            format!(
                "{} workers that are starting have not registered yet, such as {}",
                nodes.len(),
                shown.join(", ")
            )
        }
        Wait::Restart => {
            "slurmctld is restarting with another slurm.key; all nodes are drained until it is back"
                .to_owned()
        }
        Wait::Registration(nodes) => {
            let shown: Vec<&str> = nodes.iter().take(5).map(|node| node.0.as_str()).collect();
            format!(
                "{} nodes stay drained until they register with the new slurm.key, such as {}",
                nodes.len(),
                shown.join(", ")
            )
        }
    }
}

/// What a person is told while the new key waits.
fn pending(why: &str) -> Problem {
    Problem {
        reason: reason::KEY_PENDING,
        message: format!(
            "slurm.key has changed; {why}. As soon as no job runs, all nodes are drained and all daemons restart with the \
             new key (to get there, stop jobs from starting: scontrol update PartitionName=… State=DOWN). Until then \
             configuration changes are not applied, and a pod that is replaced cannot connect; to cancel, put the old \
             key back"
        ),
    }
}
