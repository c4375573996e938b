//! Carries out a change that needs a cluster without jobs, one step per reconcile, as `plan` decides.

pub mod plan;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use keelson_api::well_known::{annotation, reason, slurm::QUIESCE_REASON};
use keelson_runtime::{
    Key,
    apply::{self, Writer},
    run::chain,
};
use kube::ResourceExt;
use serde_json::json;
use slurm_rest::{Client, Fetched};

use super::{
    baseline::{Baseline, Standing},
    change, delivery,
};
use crate::controller::{
    build::Configuration,
    observe::{Live, Observed},
};
use crate::{
    caches::{CONTROLLER, OWNER, owned_by_value},
    context::Context,
    keys,
    nodeset::pod_facts,
    problem::Problem,
    slurm::{
        control::{self, Change},
        facts::{NodeName, Slurm, SlurmNode},
        mirrors::NOT_CONNECTED,
    },
    wording::{counted, listed},
};
use plan::{Facts, Reading, Record, Step, Wait};

/// Changes that running jobs would not survive and that slurmctld has not been given yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Fingerprint of another slurm.key.
    pub key: Option<String>,
    pub configuration: Option<ConfigurationChange>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationChange {
    /// Checksum of the new configuration and slurmctld's container.
    pub name: String,
    /// The parameters whose change jobs would not survive.
    pub what: String,
}

/// Prefix of the name of a configuration change.
const CONFIGURATION: &str = "configuration-";

impl Changes {
    /// Returns one name for all of them.
    fn name(&self) -> Option<String> {
        let key = self.key.iter().map(|key| format!("key-{key}"));
        let configuration = self.configuration.iter();
        let configuration = configuration.map(|change| format!("{CONFIGURATION}{}", change.name));
        let names: Vec<String> = key.chain(configuration).collect();
        (!names.is_empty()).then(|| names.join("."))
    }
}

/// Reports whether slurmctld was given the configuration of this name and nodes are still drained for it.
pub fn has_switched_to(observed: &Observed, configuration: &str) -> bool {
    let Some(Record::Switched(change)) = recorded(observed) else {
        return false;
    };
    let mut names = change.split('.');
    names.any(|name| name.strip_prefix(CONFIGURATION) == Some(configuration))
}

fn recorded(observed: &Observed) -> Option<Record> {
    let annotations = observed.controller.annotations();
    let text = annotations.get(annotation::QUIESCED_FOR)?;
    Some(Record::parse(text))
}

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to annotate the Controller")]
    Record(#[source] apply::Error),
    #[error("{NOT_CONNECTED}")]
    Disconnected,
    #[error("failed to update nodes")]
    Nodes(#[source] control::Error),
}

/// What a step means for the rest of the reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// There is no such change, or no job runs and none can start: slurmctld may get the change now.
    Proceed {
        /// What is still to be done in Slurm, for the status.
        waiting: Option<String>,
    },
    /// slurmctld keeps running as it does, for this reason.
    Hold(Problem),
}

/// Takes the next step. Nothing slow may come between this and what gives slurmctld the changes.
pub async fn advance(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    baseline: Option<&Baseline>,
    changes: &Changes,
) -> Outcome {
    let key = Key::of(observed.controller.as_ref());
    let recorded = recorded(observed);
    let lagging = lagging(&observed.live, baseline, recorded.as_ref());
    let Some(facts) = observe(context, observed, recorded, &lagging, &key, changes).await else {
        return Outcome::Proceed { waiting: None };
    };
    let step = plan::plan(&facts);
    let done = act(context, writer, observed, &key, &step).await;
    if let Err(error) = &done {
        tracing::warn!(controller = %key, error = chain(error), "failed to quiesce the cluster for a change");
    }
    outcome(changes, &facts, &step, &lagging, done.err())
}

/// Resumes nodes that were drained for a change, unless slurmctld needs them drained, and starts nothing new. Returns
/// what is still to be done, for the status.
pub async fn bring_back(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    baseline: Option<&Baseline>,
) -> Option<String> {
    match advance(context, writer, observed, baseline, &Changes::default()).await {
        Outcome::Proceed { waiting } => waiting,
        Outcome::Hold(problem) => Some(problem.message),
    }
}

/// Returns `None` if there is nothing to do.
async fn observe(
    context: &Context,
    observed: &Observed,
    recorded: Option<Record>,
    lagging: &[String],
    key: &Key,
    changes: &Changes,
) -> Option<Facts> {
    // The annotation may have been lost when someone replaced the whole object.
    let slurm = context.mirrors.slurm(key);
    let (drained, why) = match &slurm {
        Slurm::Known { nodes, .. } => (nodes.values().any(plan::is_due), NOT_CONNECTED),
        Slurm::Unknown { why } => (false, why.as_str()),
    };
    let begun = recorded.is_some() || drained;
    let change = changes.name();
    if change.is_none() && !begun {
        return None;
    }
    let is_switched = matches!(recorded, Some(Record::Switched(_)));
    let mut facts = Facts {
        change,
        is_taking_in: !lagging.is_empty(),
        is_down: !observed.live.pods.iter().any(|pod| delivery::is_ready(pod)),
        recorded,
        // Before Slurm is read, so that a worker that registers between the two is in the reading.
        starting: starting(
            context,
            key,
            changes.key.is_none() && changes.configuration.is_some(),
        ),
        slurm: Reading::Unknown(why.to_owned()),
    };
    if let Some(client) = context.mirrors.client(key) {
        let reading = read(context, &client, begun).await;
        facts.slurm = reading.unwrap_or_else(|error| Reading::Unknown(chain(&error)));
    }
    // Otherwise it would remain unknown whether slurmctld has the change, and the nodes would stay drained.
    let untellable = delivery::image_is_ours(&observed.live.answers).is_none();
    if changes.configuration.is_some() && untellable && !is_switched {
        let why = "the slurmctld pods do not report on port 6816 which configuration they run with";
        facts.slurm = Reading::Unknown(why.to_owned());
    }
    Some(facts)
}

/// Returns the slurmctld pods that may run with something else than they were given, or a note that no pod is ready.
fn lagging(live: &Live, baseline: Option<&Baseline>, recorded: Option<&Record>) -> Vec<String> {
    if !live.pods.iter().any(|pod| delivery::is_ready(pod)) {
        return vec!["no pod is ready".to_owned()];
    }
    let without = |name: &str, wanted: Option<&String>, counts: &dyn Fn(&Pod) -> bool| -> Vec<String> {
        let pods = live.pods.iter().filter(|pod| counts(pod));
        pods.filter(|pod| pod.annotations().get(name) != wanted)
            .map(|pod| pod.name_any())
            .collect()
    };
    let key = keys::slurm_key_in_use(live.stateful_set.as_deref());
    let mut pods = without(annotation::SLURM_KEY_HASH, key.as_ref(), &|_| true);
    // The record may have been removed.
    let reconfigured = recorded.is_none_or(|recorded| {
        let change = recorded.change();
        change.is_some_and(|change| change.contains(CONFIGURATION))
    });
    if let Some(baseline) = baseline.filter(|_| reconfigured) {
        // A standby on a lost machine stays until someone deletes it; it is not active.
        let counts = |pod: &Pod| delivery::is_ready(pod) || pod.metadata.deletion_timestamp.is_none();
        let restarted = |wanted: &Configuration| {
            without(
                annotation::SLURM_CONFIG_HASH,
                wanted.restart_hash.as_ref(),
                &counts,
            )
        };
        let all = || live.pods.iter().map(|pod| pod.name_any()).collect();
        pods.extend(match (baseline.standing, &baseline.in_use) {
            // slurmctld keeps the previous one, and no job is lost if it applies this one after all.
            (Standing::Refused, Some(in_use)) if costs_no_job(in_use, &baseline.published) => {
                restarted(in_use)
            }
            _ if delivery::has_other_candidate(&live.answers) => all(),
            (Standing::Accepted, _) => restarted(&baseline.published),
            // slurmctld keeps the previous one, but only once that is published again.
            (Standing::Refused | Standing::Unknown, _) => all(),
        });
    }
    pods.sort();
    pods.dedup();
    pods
}

fn costs_no_job(from: &Configuration, to: &Configuration) -> bool {
    change::Step::between(from, to).is_none_or(|step| step.needs_empty_cluster(None).is_none())
}

/// Returns nodes of workers that have not registered with Slurm yet. With another slurm.key, pods that were created
/// long ago are left out: they do not come up at all, or already have the new key and cannot register with a slurmctld
/// that has the old one. With another configuration, any of them may register at any time and get a job.
fn starting(context: &Context, key: &Key, reconfigured: bool) -> BTreeSet<NodeName> {
    let now = context.clock.now();
    let nodesets = context.caches.nodesets.find(CONTROLLER, &key.to_string());
    let pods = nodesets.iter().flat_map(|nodeset| {
        let owner = owned_by_value("NodeSet", &key.namespace, &nodeset.name_any());
        context.caches.pods.find(OWNER, &owner)
    });
    pods.map(|pod| pod_facts::pod_facts(&pod, now))
        .filter(|pod| pod.may_register(now) || (reconfigured && pod.may_register_later()))
        .map(|pod| pod.node)
        .collect()
}

async fn read(context: &Context, client: &Client, with_nodes: bool) -> Result<Reading, slurm_rest::Error> {
    let nodes = if with_nodes {
        let asked = context.clock.now();
        // The request was not for changes only; an answer without a list proves nothing.
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

/// Takes the step. If that fails, the next reconcile reads again and continues from there.
async fn act(
    context: &Context,
    writer: &Writer,
    observed: &Observed,
    key: &Key,
    step: &Step,
) -> Result<(), Error> {
    match step {
        Step::Nothing | Step::Wait(_) => Ok(()),
        Step::Record(change) => {
            record(context, writer, observed, Some(Record::Drained(change.clone()))).await
        }
        Step::Switch(change) => {
            record(context, writer, observed, Some(Record::Switched(change.clone()))).await
        }
        Step::Open => record(context, writer, observed, Some(Record::Over)).await,
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
            tracing::info!(controller = %key, nodes, "resuming nodes that were drained for a change");
            let undrained = change(context, key, undrain, &Change::Undrain, plan::is_ours).await;
            let resumed = change(context, key, resume, &Change::Resume, plan::is_ours).await;
            undrained.and(resumed)
        }
    }
}

/// Changes only nodes for which the change is still due. Someone may have drained a node, or replaced the reason of our
/// drain, while the jobs were read: their reason must stay.
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
    record: Option<Record>,
) -> Result<(), Error> {
    if recorded(observed) == record {
        return Ok(());
    }
    let text = record.as_ref().map(ToString::to_string);
    let patch = json!({ "metadata": { "annotations": { annotation::QUIESCED_FOR: text } } });
    let written = writer
        .merge(observed.controller.as_ref(), patch)
        .await
        .map_err(Error::Record)?;
    context.caches.controllers.upsert(written);
    Ok(())
}

fn outcome(
    changes: &Changes,
    facts: &Facts,
    step: &Step,
    lagging: &[String],
    failure: Option<Error>,
) -> Outcome {
    let failed = failure.is_some();
    let failure = failure
        .map(|error| format!(" ({})", chain(&error)))
        .unwrap_or_default();
    if changes.name().is_none() {
        let waiting = match step {
            Step::Nothing | Step::Switch(_) => None,
            Step::Wait(wait) => Some(describe(wait, lagging)),
            Step::Record(_) | Step::Open | Step::Drain(_) | Step::Restore { .. } | Step::Forget => Some(
                format!("resuming the nodes that were drained for a change{failure}"),
            ),
        };
        return Outcome::Proceed { waiting };
    }
    let why = match step {
        // A switch without a record did not happen.
        Step::Switch(_) if !failed => return Outcome::Proceed { waiting: None },
        Step::Restore { .. } | Step::Forget => {
            format!("a job started before all nodes were drained{failure}")
        }
        Step::Nothing | Step::Record(_) | Step::Open | Step::Drain(_) | Step::Switch(_) => {
            format!("no job is running, and all nodes are being drained{failure}")
        }
        Step::Wait(wait) if facts.recorded.is_some() => {
            format!("{}; nodes stay drained until then", describe(wait, lagging))
        }
        Step::Wait(wait) => describe(wait, lagging),
    };
    Outcome::Hold(pending(changes, &why))
}

fn describe(wait: &Wait, lagging: &[String]) -> String {
    let such_as = |nodes: &[NodeName]| listed(nodes, 5);
    match wait {
        Wait::Silence(why) => format!("cannot read the running jobs from Slurm: {why}"),
        Wait::Jobs(jobs) => format!("waiting for {}", counted(*jobs, "running job")),
        Wait::Starting(nodes) => format!(
            "waiting for {} to register: {}",
            counted(nodes.len(), "starting worker"),
            such_as(nodes)
        ),
        Wait::TakingIn => format!(
            "slurmctld is applying a change, or a refused change is being reverted ({}); all nodes stay drained until then",
            lagging.join(", ")
        ),
        Wait::Registration(nodes) => format!(
            "waiting for {} to register with the restarted slurmctld before being resumed: {}",
            counted(nodes.len(), "node"),
            such_as(nodes)
        ),
    }
}

/// Returns the problem to report while a change waits.
fn pending(changes: &Changes, why: &str) -> Problem {
    const SOONER: &str =
        "to speed this up, stop new jobs from starting: scontrol update PartitionName=… State=DOWN";
    match (&changes.key, &changes.configuration) {
        (None, Some(change)) => Problem {
            reason: reason::CONFIG_PENDING,
            message: format!(
                "{} would kill running jobs; {why}. It is applied once all nodes are drained and no job is running \
                 ({SOONER}). Until then every other change of slurm.conf waits too; to cancel, restore the old value",
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
                    "slurm.key{also} {have} changed; {why}. All daemons restart with the new key once all nodes are drained \
                     and no job is running ({SOONER}). Until then configuration changes are not applied, and a replaced \
                     pod cannot connect; to cancel, restore the old key"
                ),
            }
        }
    }
}

#[cfg(test)]
mod lagging_tests {
    use std::{collections::BTreeMap, sync::Arc};

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::configuration::delivery::Answer;

    fn pod(name: &str, hash: &str, ready: bool, deleted: bool) -> Arc<Pod> {
        let deleted = deleted.then_some("2026-01-01T00:00:00Z");
        let annotations = json!({ annotation::SLURM_CONFIG_HASH: hash });
        let pod: Value = json!({
            "metadata": { "name": name, "annotations": annotations, "deletionTimestamp": deleted },
            "status": { "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn baseline(standing: Standing) -> Baseline {
        let published = Configuration {
            files: BTreeMap::new(),
            restart_hash: Some("new".to_owned()),
            name: Some("name".to_owned()),
        };
        Baseline {
            in_use: Some(published.clone()),
            published,
            standing,
        }
    }

    fn answer(candidate: &str) -> Answer {
        let report = json!({ "config": { "candidate": candidate, "active": "name", "verdict": "applied" } });
        Answer::Ours(serde_json::from_value(report).unwrap())
    }

    #[rstest]
    #[case::has_it(vec![pod("a", "new", true, false)], Standing::Accepted, "name", &[])]
    #[case::restarts(vec![pod("a", "old", true, false)], Standing::Accepted, "name", &["a"])]
    #[case::a_standby_is_lost(vec![pod("a", "new", true, false), pod("b", "old", false, true)], Standing::Accepted, "name", &[])]
    #[case::nobody_says(vec![pod("a", "new", true, false)], Standing::Unknown, "name", &["a"])]
    #[case::the_refused_one_is_still_there(vec![pod("a", "new", true, false)], Standing::Accepted, "refused", &["a"])]
    #[case::a_harmless_one_was_refused(vec![pod("a", "new", true, false)], Standing::Refused, "refused", &[])]
    #[case::does_not_start(vec![pod("a", "new", false, false)], Standing::Accepted, "name", &["no pod is ready"])]
    fn slurmctld_has_a_change_when_every_pod_that_could_serve_has(
        #[case] pods: Vec<Arc<Pod>>,
        #[case] standing: Standing,
        #[case] candidate: &str,
        #[case] expected: &[&str],
    ) {
        let live = Live {
            pods,
            answers: vec![answer(candidate)],
            ..Live::default()
        };
        let baseline = baseline(standing);
        let recorded = |change: &str| Record::Switched(change.to_owned());
        let found = lagging(&live, Some(&baseline), Some(&recorded("configuration-1")));
        assert_eq!(found, expected);
        assert_eq!(
            lagging(&live, Some(&baseline), None),
            expected,
            "the record was lost"
        );
        // For another key it does not matter what the pods report about the configuration.
        let found = lagging(&live, Some(&baseline), Some(&recorded("key-1")));
        assert!(found.is_empty() || found == ["no pod is ready"], "{found:?}");
    }
}
