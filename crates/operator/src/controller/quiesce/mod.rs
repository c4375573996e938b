//! Takes the steps to a change that needs a cluster without jobs, one per pass, as `plan` decides.

pub mod plan;

use std::collections::{BTreeMap, BTreeSet};

use keelson_api::well_known::{
    annotation, reason,
    slurm::{QUIESCE_OVER, QUIESCE_REASON},
};
use keelson_runtime::{
    Key,
    apply::{self, Writer},
    run::chain,
};
use kube::ResourceExt;
use serde_json::json;
use slurm_rest::{Client, Fetched};

use super::{
    basis::{Basis, Standing},
    observe::{Live, Observed},
};
use crate::{
    caches::{CONTROLLER, OWNER, owned_by_value},
    context::Context,
    keys,
    nodeset::derive_facts,
    problem::Problem,
    slurm::{
        control::{self, Change},
        facts::{NodeName, Slurm, SlurmNode},
    },
};
use plan::{Facts, Reading, Step, Wait};

/// Changes that running jobs would not survive and that slurmctld was not given yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Another slurm.key: its checksum.
    pub key: Option<String>,
    pub configuration: Option<ConfigurationChange>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationChange {
    /// The name of the whole new configuration.
    pub name: String,
    /// The parameters that jobs would not survive.
    pub what: String,
}

impl Changes {
    /// One name for all of them.
    fn name(&self) -> Option<String> {
        let configuration = self.configuration.as_ref().map(|change| &change.name);
        let names: Vec<&str> = self.key.iter().chain(configuration).map(String::as_str).collect();
        (!names.is_empty()).then(|| names.join("."))
    }
}

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
    /// There is no such change, or no job runs and none can start: slurmctld may have it now.
    Proceed {
        /// What is still to be done in Slurm, for a person.
        waiting: Option<String>,
    },
    /// slurmctld goes on as it runs, for this reason.
    Hold(Problem),
}

/// Takes the next step. Nothing that takes long may come between this and what gives slurmctld the changes.
pub async fn advance(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    basis: Option<&Basis>,
    changes: &Changes,
) -> Outcome {
    let key = Key::of(observed.controller.as_ref());
    let Some(facts) = observe(context, observed, basis, &key, changes).await else {
        return Outcome::Proceed { waiting: None };
    };
    let step = plan::plan(&facts);
    let done = act(context, writer, observed, &key, &step).await;
    if let Err(error) = &done {
        tracing::warn!(controller = %key, error = chain(error), "failed to quiesce the cluster for a change");
    }
    outcome(changes, &step, done.err())
}

/// `None` when nothing is to be done.
async fn observe(
    context: &Context,
    observed: &Observed,
    basis: Option<&Basis>,
    key: &Key,
    changes: &Changes,
) -> Option<Facts> {
    let recorded = observed.controller.annotations().get(annotation::QUIESCED_FOR);
    // The annotation may have been removed by whoever replaced the whole object.
    let drained = match context.mirrors.slurm(key) {
        Slurm::Known { nodes, .. } => nodes.values().any(plan::is_due),
        Slurm::Unknown { .. } => false,
    };
    let begun = recorded.is_some() || drained;
    let change = changes.name();
    if change.is_none() && !begun {
        return None;
    }
    let mut facts = Facts {
        change,
        is_taking_in: is_taking_in(&observed.live, basis),
        recorded: recorded.cloned(),
        // Before Slurm is read: a worker that registers between the two is in the reading.
        starting: starting(context, key),
        slurm: Reading::Unknown("there is no connection to Slurm".to_owned()),
    };
    if let Some(client) = context.mirrors.client(key) {
        let reading = read(context, &client, begun).await;
        facts.slurm = reading.unwrap_or_else(|error| Reading::Unknown(chain(&error)));
    }
    Some(facts)
}

/// Whether slurmctld may run with another key or another configuration than it was given last.
fn is_taking_in(live: &Live, basis: Option<&Basis>) -> bool {
    let key = keys::slurm_key_in_use(live.stateful_set.as_deref());
    let has = |name: &str, wanted: Option<&String>| {
        live.pods.iter().all(|pod| pod.annotations().get(name) == wanted)
    };
    let configured = basis.is_none_or(|basis| match basis.standing {
        Standing::Accepted => has(
            annotation::SLURM_CONFIG_HASH,
            basis.published.restart_hash.as_ref(),
        ),
        // It goes on with the one before.
        Standing::Refused => true,
        Standing::Unknown => false,
    });
    !has(annotation::SLURM_KEY_HASH, key.as_ref()) || !configured
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
    pods.map(|pod| derive_facts::pod_facts(&pod, now))
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
    step: &Step,
) -> Result<(), Error> {
    match step {
        Step::Nothing | Step::Wait(_) | Step::Switch => Ok(()),
        Step::Record(change) => record(context, writer, observed, Some(change)).await,
        Step::Open => record(context, writer, observed, Some(QUIESCE_OVER)).await,
        Step::Forget => record(context, writer, observed, None).await,
        Step::Drain(nodes) => {
            tracing::info!(controller = %key, nodes = nodes.len(), "draining all nodes for a change that running jobs would not survive");
            let drain = Change::Drain {
                reason: QUIESCE_REASON.to_owned(),
            };
            change(context, key, nodes, &drain, plan::takes_jobs).await
        }
        Step::Restore { undrain, resume } => {
            let nodes = undrain.len() + resume.len();
            tracing::info!(controller = %key, nodes, "bringing back nodes that were drained for a change");
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
    change: Option<&str>,
) -> Result<(), Error> {
    let patch = json!({ "metadata": { "annotations": { annotation::QUIESCED_FOR: change } } });
    let written = writer
        .merge(observed.controller.as_ref(), patch)
        .await
        .map_err(Error::Record)?;
    context.caches.controllers.upsert(written);
    Ok(())
}

fn outcome(changes: &Changes, step: &Step, failure: Option<Error>) -> Outcome {
    let failure = failure
        .map(|error| format!(" ({})", chain(&error)))
        .unwrap_or_default();
    if changes.name().is_none() {
        let waiting = match step {
            Step::Nothing | Step::Switch => None,
            Step::Wait(wait) => Some(describe(wait)),
            Step::Record(_) | Step::Open | Step::Drain(_) | Step::Restore { .. } | Step::Forget => Some(
                format!("nodes that were drained for a change are being brought back{failure}"),
            ),
        };
        return Outcome::Proceed { waiting };
    }
    let why = match step {
        Step::Switch => return Outcome::Proceed { waiting: None },
        Step::Restore { .. } | Step::Forget => {
            format!("a job started before all nodes were drained{failure}")
        }
        Step::Nothing | Step::Record(_) | Step::Open | Step::Drain(_) => {
            format!("no job runs, and all nodes are being drained{failure}")
        }
        Step::Wait(wait) => describe(wait),
    };
    Outcome::Hold(pending(changes, &why))
}

fn describe(wait: &Wait) -> String {
    let such_as = |nodes: &[NodeName]| -> String {
        let shown: Vec<&str> = nodes.iter().take(5).map(|node| node.0.as_str()).collect();
        shown.join(", ")
    };
    match wait {
        Wait::Silence(why) => format!("Slurm does not say which jobs run: {why}"),
        Wait::Jobs(jobs) => format!("{jobs} jobs run"),
        Wait::Starting(nodes) => format!(
            "{} workers that are starting have not registered yet, such as {}",
            nodes.len(),
            such_as(nodes)
        ),
        Wait::TakingIn => "slurmctld is taking in a change; all nodes are drained until it has".to_owned(),
        Wait::Registration(nodes) => format!(
            "{} nodes stay drained until they have registered with the restarted slurmctld, such as {}",
            nodes.len(),
            such_as(nodes)
        ),
    }
}

/// What a person is told while a change waits.
fn pending(changes: &Changes, why: &str) -> Problem {
    const SOONER: &str =
        "to get there sooner, stop jobs from starting: scontrol update PartitionName=… State=DOWN";
    match (&changes.key, &changes.configuration) {
        (None, Some(change)) => Problem {
            reason: reason::CONFIG_PENDING,
            message: format!(
                "{} would cost running jobs; {why}. As soon as no job runs, all nodes are drained and slurmctld gets it \
                 ({SOONER}). Until then every other change of slurm.conf waits too; to cancel, put the old value back",
                change.what
            ),
        },
        (_, change) => {
            let also = change.as_ref().map(|change| format!(" and {}", change.what));
            let (also, have) = match also {
                Some(also) => (also, "have"),
                None => (String::new(), "has"),
            };
            Problem {
                reason: reason::KEY_PENDING,
                message: format!(
                    "slurm.key{also} {have} changed; {why}. As soon as no job runs, all nodes are drained and all daemons \
                     restart with the new key ({SOONER}). Until then configuration changes are not applied, and a pod that \
                     is replaced cannot connect; to cancel, put the old key back"
                ),
            }
        }
    }
}
